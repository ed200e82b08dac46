#include "rudder/exec/step_buffers.h"

#include <algorithm>
#include <cstring>

#include "rudder/base/check.h"
#include "rudder/base/token_mask.h"
#include "rudder/exec/step_layout.h"
#include "rudder/ops/adapter_batch.h"

namespace rudder::exec {
namespace {

using ops::View;
using tensor::DType;
using tensor::Shape;

// Words of stop ids and biases when every row has as many as it may.
int64_t max_list_words(const step::Capacity& capacity) {
  return int64_t{capacity.num_slots} * (step::kMaxStopIds + 2 * step::kMaxLogitBias);
}

// Longer lists go in several parts. A step that opens the longest sequence goes in one.
int64_t kept_history(const step::Capacity& capacity) {
  return std::max(capacity.max_seq_len, capacity.max_tokens_per_step);
}
// Every prompt that begins in a step brings all of its tokens, cached ones too.
int64_t kept_tokens(const step::Capacity& capacity) {
  if (!capacity.drafts.keeps_guesses) return 0;
  return int64_t{capacity.max_seq_len} + 4 * int64_t{capacity.max_tokens_per_step};
}
int64_t kept_blocks(const step::Capacity& capacity) {
  return (int64_t{max_blocks_per_seq(capacity)} + capacity.num_slots +
          capacity.max_tokens_per_step / capacity.block_size) *
         capacity.kv_groups.size();
}

int64_t step_bytes(const step::Capacity& capacity) {
  const bool has_taps = capacity.taps.steering() || capacity.taps.capture();
  const int32_t in_trees = capacity.drafts.takes_trees ? capacity.max_tokens_per_step : 0;
  // A padded step may have one sequence more than there are slots.
  const int64_t num_seqs = int64_t{capacity.num_slots} + 1;
  return layout_of(capacity.max_tokens_per_step, num_seqs, max_sampled_rows(capacity),
                   capacity.kv_groups.size(), has_taps,
                   {.states = capacity.states.empty() ? 0 : num_seqs,
                    .feedback_rows = capacity.num_slots,
                    .goes_on_rows = std::max(capacity.num_slots, in_trees),
                    .ancestors = in_trees,
                    .adapters = !capacity.adapters.empty()})
             .lists +
         part_bytes<int32_t>(max_list_words(capacity)) +
         part_bytes<ops::OpenedSlot>(capacity.num_slots) +
         part_bytes<ops::HistoryToken>(kept_history(capacity)) +
         part_bytes<ops::BlockWrite>(kept_blocks(capacity)) +
         part_bytes<ops::KeptToken>(kept_tokens(capacity));
}

// Of slots; their rows are as wide as 16-byte loads of them are whole.
Shape history_shape(const step::Capacity& capacity) {
  if (!capacity.drafts.keeps_guesses) return {0, 0};
  return {int64_t{capacity.num_slots} + 1, (int64_t{capacity.max_seq_len} + 3) / 4 * 4};
}
Shape guess_shape(const step::Capacity& capacity) {
  if (!capacity.drafts.keeps_guesses) return {0, 0};
  return {int64_t{capacity.num_slots} + 1, capacity.drafts.max_draft};
}

// None where nothing is counted: such rows have no masks either.
Shape masks_shape(const step::Capacity& capacity, StepBuffers::Counts counts) {
  const bool has_masks = counts == StepBuffers::Counts::kKept;
  return {has_masks ? max_sampled_rows(capacity) : 0,
          static_cast<int64_t>(mask_words(capacity.vocab_size))};
}
// Of the tokens, and of the rows of logits behind them.
Shape tap_entries_shape(const step::Capacity& capacity) {
  if (!capacity.taps.steering() && !capacity.taps.capture()) return {0, 0, 0};
  return {int64_t{capacity.max_tokens_per_step} + max_sampled_rows(capacity),
          capacity.geometry.num_points(), ops::kTapEntryWords};
}
Shape sampled_shape(const step::Capacity& capacity) {
  return {max_sampled_rows(capacity), sizeof(ops::SampledToken) / sizeof(int32_t)};
}
Shape top_shape(const step::Capacity& capacity) {
  return {max_sampled_rows(capacity), step::kMaxLogprobs,
          sizeof(ops::TopLogprob) / sizeof(int32_t)};
}

// One where nothing is counted: the tables' width says how large the vocabulary is.
int64_t count_rows(const step::Capacity& capacity, StepBuffers::Counts counts) {
  return counts == StepBuffers::Counts::kKept ? int64_t{capacity.num_slots} + 1 : 1;
}

// The first elements of `rest`, at most `most`, which are taken off it.
template <typename T>
std::span<const T> take(std::span<const T>& rest, int64_t most) {
  const auto taken = rest.first(std::min(rest.size(), static_cast<size_t>(most)));
  rest = rest.subspan(taken.size());
  return taken;
}

View range(const View& bytes, int64_t begin, int64_t end) {
  return bytes.rows(begin, end - begin);
}

template <typename T>
void put(const View& staging, int64_t offset, std::span<const T> values) {
  RUDDER_CHECK(offset + static_cast<int64_t>(values.size_bytes()) <= staging.shape[0]);
  if (values.empty()) return;
  std::memcpy(staging.as<std::byte>() + offset, values.data(), values.size_bytes());
}
template <typename T>
void put(const View& staging, int64_t offset, const std::vector<T>& values) {
  put(staging, offset, std::span<const T>(values));
}

ops::BeginStepArgs::Placement placement_of(const DeviceStep& step, int32_t block_size) {
  const bool has_taps = step.forward.tap_table != nullptr;
  return {.q_begin = step.forward.attention.q_begin,
          .table_row = step.forward.attention.table_row,
          .kv_len = step.forward.attention.kv_len,
          .positions = step.forward.positions,
          .sample_rows = step.sample.rows,
          .logits_rows = step.forward.logits_rows,
          .since_prompt = has_taps ? step.forward.taps.since_prompt : View{},
          .rows_since_prompt = has_taps ? step.forward.rows_taps.since_prompt : View{},
          .block_size = block_size};
}

}  // namespace

Result<std::unique_ptr<StepBuffers>> StepBuffers::make(ops::Ops& ops,
                                                       const step::Capacity& capacity,
                                                       const ops::TapTable* table, Counts counts) {
  std::unique_ptr<StepBuffers> buffers(new StepBuffers(ops, capacity, table));
  RUDDER_TRY_VOID(buffers->allocate(counts));
  return buffers;
}

int64_t StepBuffers::device_bytes(const step::Capacity& capacity, Counts counts) {
  const int64_t rows = int64_t{capacity.num_slots} + 1;
  const auto word = static_cast<int64_t>(sizeof(int32_t));
  return step_bytes(capacity) +
         word * (masks_shape(capacity, counts).numel() + sampled_shape(capacity).numel() +
                 top_shape(capacity).numel() + tap_entries_shape(capacity).numel() +
                 history_shape(capacity).numel() + guess_shape(capacity).numel()) +
         rows * (word * (2 + (capacity.drafts.max_draft > 0 ? 1 : 0) +
                         capacity.kv_groups.size() * max_blocks_per_seq(capacity))) +
         count_rows(capacity, counts) * capacity.vocab_size * (word + int64_t{sizeof(uint8_t)});
}

// What guesses need that stay in the slots.
Result<void> StepBuffers::allocate_guesses() {
  RUDDER_TRY(state_.history, ops_.allocate(DType::kI32, history_shape(capacity_)));
  RUDDER_TRY(state_.guess, ops_.allocate(DType::kI32, guess_shape(capacity_)));
  for (Staging& staging : staging_) {
    RUDDER_TRY(staging.guesses, ops_.allocate_staging(static_cast<int64_t>(state_.guess.bytes())));
  }
  return {};
}

Result<void> StepBuffers::allocate(Counts counts) {
  const int64_t rows = int64_t{capacity_.num_slots} + 1;
  const int64_t vocab = capacity_.vocab_size;
  const int64_t bytes = step_bytes(capacity_);
  RUDDER_TRY(state_.carry, ops_.allocate(DType::kI32, {rows}));
  if (capacity_.drafts.max_draft > 0) {
    RUDDER_TRY(state_.carry_position, ops_.allocate(DType::kI32, {rows}));
  }
  RUDDER_TRY(state_.ended, ops_.allocate(DType::kI32, {rows}));
  RUDDER_TRY(state_.block_table, ops_.allocate(DType::kI32, {capacity_.kv_groups.size() * rows,
                                                             max_blocks_per_seq(capacity_)}));
  const int64_t counted = count_rows(capacity_, counts);
  RUDDER_TRY(state_.output_count, ops_.allocate(DType::kI32, {counted, vocab}));
  RUDDER_TRY(state_.prompt_seen, ops_.allocate(DType::kU8, {counted, vocab}));
  RUDDER_TRY(device_, ops_.allocate(DType::kU8, {bytes}));
  RUDDER_TRY(masks_, ops_.allocate(DType::kI32, masks_shape(capacity_, counts)));
  RUDDER_TRY(sampled_, ops_.allocate(DType::kI32, sampled_shape(capacity_)));
  RUDDER_TRY(top_, ops_.allocate(DType::kI32, top_shape(capacity_)));
  if (table_ != nullptr) {
    RUDDER_TRY(tap_entries_, ops_.allocate(DType::kI32, tap_entries_shape(capacity_)));
  }
  for (int32_t i = 0; i < capacity_.max_in_flight; ++i) {
    Staging staging;
    RUDDER_TRY(staging.step, ops_.allocate_staging(bytes));
    RUDDER_TRY(staging.masks, ops_.allocate_staging(static_cast<int64_t>(masks_.bytes())));
    const int64_t repeat = capacity_.max_repeat;
    RUDDER_TRY(staging.sampled,
               ops_.allocate_staging(repeat * static_cast<int64_t>(sampled_.bytes())));
    RUDDER_TRY(staging.top, ops_.allocate_staging(repeat * static_cast<int64_t>(top_.bytes())));
    staging_.push_back(staging);
  }
  part_sent_ = ops_.make_event();
  return capacity_.drafts.keeps_guesses ? allocate_guesses() : Result<void>();
}

View StepBuffers::part(int64_t offset, DType dtype, Shape shape) const {
  View view{device_.as<std::byte>() + offset, dtype, shape};
  RUDDER_CHECK(offset + static_cast<int64_t>(view.bytes()) <= device_.shape[0]);
  return view;
}

DeviceStep StepBuffers::views(const PackedStep& packed) const {
  const StepLayout layout = layout_of(packed);
  const int64_t seqs = packed.num_seqs();
  const int64_t sampled = packed.num_sampled();
  const Shape tokens = {packed.num_tokens()};
  DeviceStep step;
  step.forward = {.ids = part(layout.ids, DType::kI32, tokens),
                  .positions = part(layout.positions, DType::kI32, tokens),
                  .kv_slot = part(layout.kv_slot, DType::kI32,
                                  {std::ssize(packed.kv_slot) * packed.num_tokens()}),
                  .attention = {.q_begin = part(layout.q_begin, DType::kI32, {seqs + 1}),
                                .kv_len = part(layout.kv_len, DType::kI32, {seqs}),
                                .table_row = part(layout.table_row, DType::kI32, {seqs}),
                                .block_table = state_.block_table,
                                .max_q_len = packed.max_q_len,
                                .max_kv_len = packed.max_kv_len,
                                .group_rows = capacity_.num_slots + 1},
                  .logits_rows = part(layout.logits_rows, DType::kI32, {sampled})};
  if (!packed.states.state.empty()) {
    step.forward.states = {.state = part(layout.state, DType::kI32, {seqs}),
                           .num_draft = part(layout.num_draft, DType::kI32, {seqs})};
  }
  if (!packed.guesses.feedback_rows.empty()) {
    step.forward.feedback_rows =
        part(layout.feedback_rows, DType::kI32, {std::ssize(packed.guesses.feedback_rows)});
  }
  if (!packed.guesses.goes_on_rows.empty())
    step.forward.goes_on_rows = part(layout.goes_on_rows, DType::kI32, tokens);
  if (!packed.ancestors.empty()) {
    step.forward.attention.ancestors = part(layout.ancestors, DType::kI64, tokens);
  }
  if (packed.taps.adapters.is_used) {
    const int64_t at_once = packed.taps.adapters.has_one ? 1 : capacity_.adapters.num_rows;
    const auto adapters = [&](int64_t begin, int64_t count) {
      const int64_t array = part_bytes<int32_t>(count);
      const int64_t groups = ops::most_adapter_groups(count, at_once);
      return ops::AdapterBatch{.rows = part(begin, DType::kI32, {count}),
                               .order = part(begin + array, DType::kI32, {count}),
                               .groups = part(begin + 2 * array, DType::kI32, {groups, 4})};
    };
    step.forward.adapters = adapters(layout.adapters, packed.num_tokens());
    step.forward.rows_adapters = adapters(layout.rows_adapters, sampled);
    step.forward.adapter_mid = adapter_scratch_.mid;
    step.forward.adapter_act = adapter_scratch_.act;
  }
  if (packed.taps.is_used) {
    const auto arrays = [&](int64_t begin, int64_t count, int64_t first_entry) {
      const auto array = [&](int64_t i) {
        return part(begin + i * part_bytes<int32_t>(count), DType::kI32, {count});
      };
      return ops::TapBatch{array(0),
                           array(1),
                           array(2),
                           array(3),
                           array(4),
                           array(5),
                           tap_entries_.rows(first_entry, count),
                           packed.taps.only_adds};
    };
    step.forward.tap_table = table_;
    step.forward.taps = arrays(layout.taps, packed.num_tokens(), 0);
    step.forward.rows_taps = arrays(layout.rows_taps, sampled, capacity_.max_tokens_per_step);
    step.forward.tapped = &packed.taps.tapped;
    step.forward.encodes = packed.taps.encodes;
    step.forward.keep_all_rows = packed.taps.keep_all_rows;
  }
  step.sample = {.logits = {},
                 .rows = part(layout.sample_rows, DType::kU8, {sampled, sizeof(ops::SampleRow)}),
                 .lists = part(layout.lists, DType::kI32, {max_list_words(capacity_)}),
                 .masks = masks_,
                 .state = state_,
                 .sampled = sampled_.rows(0, sampled),
                 .top = top_.rows(0, sampled),
                 .all_greedy = packed.all_greedy,
                 .any_logprobs = packed.any_logprobs,
                 .any_changed = packed.any_changed,
                 .any_masked = packed.num_masks > 0,
                 .any_drafts = packed.any_drafts};
  if (capacity_.drafts.keeps_guesses && sampled > 0) {
    step.look_up = {.state = state_,
                    .rows = step.sample.rows,
                    .sampled = step.sample.sampled,
                    .min_n = std::max(1, capacity_.drafts.look_up.min_n),
                    .max_n = std::max(1, capacity_.drafts.look_up.max_n)};
  }
  return step;
}

Result<DeviceStep> StepBuffers::begin(const PackedStep& packed, size_t flight) {
  RUDDER_CHECK(static_cast<int64_t>(packed.lists.size()) <= max_list_words(capacity_));
  const DeviceStep step = views(packed);
  const View& staging = staging_[flight].step;
  const StepLayout layout = layout_of(packed);
  put(staging, layout.q_begin, packed.q_begin);
  put(staging, layout.kv_len, packed.kv_len);
  put(staging, layout.table_row, packed.table_row);
  put(staging, layout.state, packed.states.state);
  put(staging, layout.num_draft, packed.states.num_draft);
  put(staging, layout.logits_rows, packed.logits_rows);
  put(staging, layout.ids, packed.ids);
  put(staging, layout.positions, packed.positions);
  for (int64_t g = 0; g < std::ssize(packed.kv_slot); ++g) {
    const int64_t begin = layout.kv_slot + g * packed.num_tokens() * int64_t{sizeof(int32_t)};
    put(staging, begin, packed.kv_slot[static_cast<size_t>(g)]);
  }
  put_taps(packed, staging);
  put_adapters(packed, staging);
  put(staging, layout.sample_rows, packed.sample_rows);
  put(staging, layout.feedback_rows, packed.guesses.feedback_rows);
  put(staging, layout.goes_on_rows, packed.guesses.goes_on_rows);
  put(staging, layout.ancestors, packed.ancestors);
  put(staging, layout.lists, packed.lists);
  RUDDER_TRY_VOID(send(packed, step, flight));
  return step;
}

// In the order of ops::TapBatch; those of the sampled rows are picked from those of the tokens.
void StepBuffers::put_taps(const PackedStep& packed, const View& staging) const {
  const PackedTaps& taps = packed.taps;
  if (!taps.is_used) return;
  RUDDER_CHECK(table_ != nullptr && static_cast<int64_t>(taps.row.size()) == packed.num_tokens());
  const StepLayout layout = layout_of(packed);
  const std::vector<int32_t>* const arrays[kTapArrays] = {&taps.row,           &taps.since_prompt,
                                                          &taps.slot,          &taps.capture_set,
                                                          &taps.capture_begin, &taps.token};
  int64_t of_tokens = layout.taps;
  int64_t of_rows = layout.rows_taps;
  for (const std::vector<int32_t>* array : arrays) {
    put(staging, of_tokens, *array);
    auto* picked = reinterpret_cast<int32_t*>(staging.as<std::byte>() + of_rows);
    for (const int32_t row : packed.logits_rows) *picked++ = (*array)[static_cast<size_t>(row)];
    of_tokens += part_bytes<int32_t>(packed.num_tokens());
    of_rows += part_bytes<int32_t>(packed.num_sampled());
  }
}

void StepBuffers::put_adapters(const PackedStep& packed, const View& staging) const {
  const std::vector<int32_t>& row = packed.taps.adapters.row;
  if (!packed.taps.adapters.is_used) return;
  RUDDER_CHECK(!adapter_scratch_.mid.empty() && std::ssize(row) == packed.num_tokens());
  const StepLayout layout = layout_of(packed);
  const auto put_batch = [&](int64_t begin, std::span<const int32_t> rows) {
    std::byte* const to = staging.as<std::byte>() + begin;
    const int64_t array = part_bytes<int32_t>(std::ssize(rows));
    std::memcpy(to, rows.data(), rows.size_bytes());
    ops::group_tokens(rows, {reinterpret_cast<int32_t*>(to + array), rows.size()},
                      {reinterpret_cast<ops::AdapterGroup*>(to + 2 * array), rows.size()});
  };
  put_batch(layout.adapters, row);
  std::vector<int32_t> picked;
  picked.reserve(packed.logits_rows.size());
  for (const int32_t token : packed.logits_rows) picked.push_back(row[static_cast<size_t>(token)]);
  put_batch(layout.rows_adapters, picked);
}

// The lists that begin_step reads go behind the rest, in as many parts as they need; the rest goes
// with the first part, the tokens are resolved with the last.
Result<void> StepBuffers::send(const PackedStep& packed, const DeviceStep& step, size_t flight) {
  const View& staging = staging_[flight].step;
  std::span<const ops::OpenedSlot> opened = packed.edits.opened;
  std::span<const ops::HistoryToken> history = packed.edits.history;
  std::span<const ops::BlockWrite> blocks = packed.edits.blocks;
  std::span<const ops::KeptToken> kept = packed.edits.kept;
  const int64_t lists_end =
      layout_of(packed).lists + part_bytes<int32_t>(static_cast<int64_t>(packed.lists.size()));
  for (int64_t begin = 0;; begin = lists_end) {
    ops::BeginStepArgs args;
    args.state = state_;
    int64_t end = lists_end;
    const auto add = [&](auto values, int64_t width) {
      const auto count = static_cast<int64_t>(values.size());
      put(staging, end, values);
      const View view = part(end, DType::kI32, {count, width});
      end += aligned(static_cast<int64_t>(values.size_bytes()));
      return view;
    };
    args.opened = add(take(opened, capacity_.num_slots), 2);
    args.history = add(take(history, kept_history(capacity_)), 3);
    args.blocks = add(take(blocks, kept_blocks(capacity_)), 3);
    args.kept = add(take(kept, kept_tokens(capacity_)), 3);
    const bool is_last = opened.empty() && history.empty() && blocks.empty() && kept.empty();
    if (is_last) {
      args.ids = step.forward.ids;
      args.kv_slot = step.forward.kv_slot;
      if (capacity_.drafts.max_draft > 0) args.placement = placement_of(step, capacity_.block_size);
      args.tap_table = step.forward.tap_table;
      args.taps = step.forward.taps;
      args.rows_taps = step.forward.rows_taps;
    }
    ops_.copy_in(range(device_, begin, end), range(staging, begin, end));
    ops_.begin_step(args);
    if (is_last) return {};
    // The next part is written where this one still may be read from.
    ops_.record(*part_sent_);
    RUDDER_TRY_VOID(part_sent_->wait());
  }
}

void StepBuffers::advance(DeviceStep& step) {
  ops_.advance_step({.state = state_,
                     .ids = step.forward.ids,
                     .positions = step.forward.positions,
                     .kv_slot = step.forward.kv_slot,
                     .kv_len = step.forward.attention.kv_len,
                     .sample_rows = step.sample.rows,
                     .since_prompt = step.forward.taps.since_prompt,
                     .block_size = capacity_.block_size});
  int32_t& max_kv_len = step.forward.attention.max_kv_len;
  max_kv_len = std::min(max_kv_len + 1, capacity_.max_seq_len);
}

void StepBuffers::put_masks(std::span<const uint32_t> masks, size_t flight) {
  put(staging_[flight].masks, 0, masks);
}

void StepBuffers::send_masks(int64_t num_masks, size_t flight) {
  const View rows = masks_.rows(0, num_masks);
  ops_.copy_in(rows, range(staging_[flight].masks, 0, static_cast<int64_t>(rows.bytes())));
}

void StepBuffers::fetch(int64_t num_rows, bool with_top, size_t flight, int32_t iteration) {
  const auto copy = [&](const View& staging, const View& device) {
    const View rows = device.rows(0, num_rows);
    const int64_t begin = iteration * static_cast<int64_t>(device.bytes());
    ops_.copy_out(range(staging, begin, begin + static_cast<int64_t>(rows.bytes())), rows);
  };
  copy(staging_[flight].sampled, sampled_);
  if (with_top) copy(staging_[flight].top, top_);
}

void StepBuffers::fetch_guesses(size_t flight) {
  ops_.copy_out(staging_[flight].guesses, state_.guess);
}

std::span<const int32_t> StepBuffers::guess(size_t flight, step::SlotId slot) const {
  const auto most = static_cast<size_t>(capacity_.drafts.max_draft);
  const auto* all = static_cast<const int32_t*>(staging_[flight].guesses.data);
  const std::span<const int32_t> guess(all + static_cast<size_t>(slot.value) * most, most);
  return guess.first(static_cast<size_t>(std::ranges::find(guess, -1) - guess.begin()));
}

const ops::SampledToken* StepBuffers::sampled(size_t flight, int32_t iteration) const {
  const auto* all = static_cast<const ops::SampledToken*>(staging_[flight].sampled.data);
  return all + iteration * sampled_.shape[0];
}

const ops::TopLogprob* StepBuffers::top(size_t flight, int32_t iteration) const {
  const auto* all = static_cast<const ops::TopLogprob*>(staging_[flight].top.data);
  return all + iteration * top_.shape[0] * step::kMaxLogprobs;
}

}  // namespace rudder::exec
