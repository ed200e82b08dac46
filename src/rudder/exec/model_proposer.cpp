#include "rudder/exec/model_proposer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

using ops::View;
using tensor::DType;

constexpr const char* kWhere = "speculative-config.model";

// The first that keeps every token; their number: none does.
size_t whole_group(const step::KvGroups& groups) {
  const auto* found = std::ranges::find(groups, 0, &step::KvGroup::window);
  return static_cast<size_t>(found - groups.begin());
}

model::DecoderLimits limits_of(const step::Capacity& capacity) {
  return {.max_tokens = capacity.max_tokens_per_step,
          .max_logits_rows = capacity.num_slots,
          .max_seq_len = capacity.max_seq_len};
}

// Elements of i32 that a pass reads.
int64_t pass_elements(const step::Capacity& capacity) {
  return 3 * int64_t{capacity.max_tokens_per_step} +
         int64_t{capacity.num_slots} * (4 + max_blocks_per_seq(capacity)) + 1;
}

// The likeliest token, of equal ones the lowest; -1: none is above -Inf.
int32_t likeliest(const float* logits, int64_t vocab) {
  int64_t best = -1;
  float highest = -INFINITY;
  for (int64_t token = 0; token < vocab; ++token) {
    if (!(logits[token] > highest)) continue;
    highest = logits[token];
    best = token;
  }
  return static_cast<int32_t>(best);
}

}  // namespace

Result<KvLayout> draft_kv_layout(const model::ModelSpec& spec, DType dtype, int32_t block_size) {
  // To sequences of one token no window means anything.
  RUDDER_TRY(KvLayout layout,
             plan_kv_layout(spec, {.dtype = dtype, .block_size = block_size, .max_seq_len = 1}));
  if (layout.groups.size() == 1) return layout;
  return fail(ErrorCode::kUnsupported, "layers of a draft model that keep KV in several shapes",
              kWhere);
}

Result<void> check_draft_model(const model::ModelSpec& draft, const model::ModelSpec& model,
                               const step::KvGroups& groups, int32_t max_seq_len, ops::Ops& ops) {
  if (!ops.runs_at_once()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the backend {} does not run draft models yet, a CPU does", ops.name()),
                "speculative-config.method");
  }
  if (!ops::rank_of(ops).is_alone()) {
    return fail(ErrorCode::kUnsupported, "a draft model for several ranks", "tensor-parallel-size");
  }
  if (draft.vocab != model.vocab) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("it has {} tokens, the model {}", draft.vocab, model.vocab), kWhere);
  }
  if (draft.max_positions < max_seq_len) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("it was made for {} positions, sequences have up to {}: see "
                            "--max-model-len",
                            draft.max_positions, max_seq_len),
                kWhere);
  }
  if (whole_group(groups) == static_cast<size_t>(groups.size())) {
    return fail(ErrorCode::kUnsupported,
                "a draft model for a model of which every layer has a window", kWhere);
  }
  return {};
}

ModelProposer::ModelProposer(DraftModel draft, ops::Ops& ops, const step::Capacity& capacity)
    : draft_(std::move(draft)),
      ops_(ops),
      capacity_(capacity),
      group_(whole_group(capacity.kv_groups)) {}

Result<std::unique_ptr<ModelProposer>> ModelProposer::make(DraftModel draft, ops::Ops& ops,
                                                           const step::Capacity& capacity) {
  RUDDER_CHECK(ops.runs_at_once() && ops::rank_of(ops).is_alone() &&
               draft.spec.vocab == capacity.vocab_size && capacity.guesses &&
               whole_group(capacity.kv_groups) < static_cast<size_t>(capacity.kv_groups.size()));
  std::unique_ptr<ModelProposer> proposer(new ModelProposer(std::move(draft), ops, capacity));
  RUDDER_TRY_VOID(proposer->prepare());
  return proposer;
}

int64_t ModelProposer::device_bytes(const model::ModelSpec& spec, const step::Capacity& capacity,
                                    DType act) {
  return model::Decoder::workspace_bytes(spec, limits_of(capacity), act) +
         pass_elements(capacity) * int64_t{sizeof(int32_t)};
}

Result<void> ModelProposer::prepare() {
  RUDDER_TRY(layout_, draft_kv_layout(draft_.spec, ops_.kv_dtype(), capacity_.block_size));
  RUDDER_TRY(const View pool,
             ops_.allocate(DType::kU8, {capacity_.num_blocks, layout_.block_bytes}));
  std::vector<ops::KvLayer> kv;
  for (size_t layer = 0; layer < draft_.spec.layers.size(); ++layer) {
    kv.push_back(layer_kv(layout_, model::kv_geometry(draft_.spec.layers[layer]), layer,
                          capacity_.block_size, ops_.kv_dtype(), pool));
  }
  RUDDER_TRY(decoder_,
             model::Decoder::make(draft_.spec, draft_.weights, kv, ops_, limits_of(capacity_)));
  const int64_t tokens = capacity_.max_tokens_per_step;
  const int64_t seqs = capacity_.num_slots;
  for (View* view : {&ids_, &positions_, &kv_slot_}) {
    RUDDER_TRY(*view, ops_.allocate(DType::kI32, {tokens}));
  }
  for (View* view : {&kv_len_, &table_row_, &logits_rows_}) {
    RUDDER_TRY(*view, ops_.allocate(DType::kI32, {seqs}));
  }
  RUDDER_TRY(q_begin_, ops_.allocate(DType::kI32, {seqs + 1}));
  RUDDER_TRY(block_table_, ops_.allocate(DType::kI32, {seqs, max_blocks_per_seq(capacity_)}));
  return {};
}

void ModelProposer::run(std::span<Ask> asks) {
  run_tokens(asks);
  guess_on(asks);
}

// In passes of as many tokens as the decoder takes. A sequence's last token gives its first guess.
void ModelProposer::run_tokens(std::span<Ask> asks) {
  int64_t left = capacity_.max_tokens_per_step;
  const auto flush = [&] {
    pass(pieces_);
    pieces_.clear();
    guessed_.clear();
    left = capacity_.max_tokens_per_step;
  };
  for (Ask& ask : asks) {
    std::span<const int32_t> rest = ask.tokens;
    while (!rest.empty()) {
      const auto taken = rest.first(std::min(rest.size(), static_cast<size_t>(left)));
      const auto done = static_cast<int32_t>(ask.tokens.size() - rest.size());
      rest = rest.subspan(taken.size());
      const bool wants_logits = rest.empty() && ask.num_guess > 0;
      pieces_.push_back({&ask, ask.begin + done, taken, wants_logits});
      if (wants_logits) guessed_.push_back(&ask);
      left -= static_cast<int64_t>(taken.size());
      if (left == 0) flush();
    }
  }
  if (!pieces_.empty()) flush();
}

// Each guess but the last gives the next one.
void ModelProposer::guess_on(std::span<Ask> asks) {
  while (true) {
    pieces_.clear();
    guessed_.clear();
    for (Ask& ask : asks) {
      if (ask.guess.empty() || std::ssize(ask.guess) >= ask.num_guess) continue;
      const auto position = static_cast<int32_t>(ask.tokens.size() + ask.guess.size());
      pieces_.push_back({&ask, ask.begin + position - 1, std::span(ask.guess).last(1), true});
      guessed_.push_back(&ask);
    }
    if (pieces_.empty()) return;
    const size_t before = guessed_.front()->guess.size();
    pass(pieces_);
    // Where nothing can be guessed, the sequence is done.
    for (Ask* ask : guessed_) {
      if (ask->guess.size() == before) ask->num_guess = static_cast<int32_t>(before);
    }
  }
}

View ModelProposer::put(const View& buffer, std::span<const int32_t> values) {
  const View part = buffer.rows(0, std::ssize(values));
  std::memcpy(part.data, values.data(), values.size_bytes());
  return part;
}

void ModelProposer::pass(std::span<const Piece> pieces) {
  packed_ = {};
  packed_.q_begin.push_back(0);
  const int32_t size = capacity_.block_size;
  const auto layers = layout_.groups[0].layers;
  int32_t max_q_len = 0;
  int32_t max_kv_len = 0;
  for (const Piece& piece : pieces) {
    const step::GroupTable& blocks = piece.ask->slot->blocks[group_];
    const auto row = static_cast<int32_t>(packed_.table_row.size());
    int32_t position = piece.begin;
    for (const int32_t token : piece.tokens) {
      const step::BlockId block = blocks[static_cast<size_t>(position / size)];
      packed_.ids.push_back(token);
      packed_.positions.push_back(position);
      packed_.kv_slot.push_back(block * layers * size + position % size);
      ++position;
    }
    int32_t* const table = block_table_.as<int32_t>() + row * block_table_.shape[1];
    for (int32_t i = 0; i * size < position; ++i) {
      table[i] = blocks[static_cast<size_t>(i)] * layers;
    }
    if (piece.wants_logits) {
      packed_.logits_rows.push_back(static_cast<int32_t>(packed_.ids.size()) - 1);
    }
    packed_.q_begin.push_back(static_cast<int32_t>(packed_.ids.size()));
    packed_.kv_len.push_back(position);
    packed_.table_row.push_back(row);
    max_q_len = std::max(max_q_len, static_cast<int32_t>(piece.tokens.size()));
    max_kv_len = std::max(max_kv_len, position);
  }
  const View logits =
      decoder_->forward({.ids = put(ids_, packed_.ids),
                         .positions = put(positions_, packed_.positions),
                         .kv_slot = put(kv_slot_, packed_.kv_slot),
                         .attention = {.q_begin = put(q_begin_, packed_.q_begin),
                                       .kv_len = put(kv_len_, packed_.kv_len),
                                       .table_row = put(table_row_, packed_.table_row),
                                       .block_table = block_table_,
                                       .max_q_len = max_q_len,
                                       .max_kv_len = max_kv_len,
                                       .group_rows = capacity_.num_slots},
                         .logits_rows = put(logits_rows_, packed_.logits_rows)});
  append_guesses(guessed_, logits);
}

void ModelProposer::append_guesses(std::span<Ask*> guessed, const View& logits) {
  RUDDER_CHECK(guessed.empty() || logits.num_rows() == std::ssize(guessed));
  for (size_t i = 0; i < guessed.size(); ++i) {
    const float* const row = logits.as<float>() + static_cast<int64_t>(i) * capacity_.vocab_size;
    const int32_t token = likeliest(row, capacity_.vocab_size);
    if (token >= 0) guessed[i]->guess.push_back(token);
  }
}

void list_asks(const step::StepPlan& plan, const SlotTable& slots,
               std::vector<ModelProposer::Ask>& asks) {
  asks.clear();
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    const step::SeqWork& work = plan.seqs[i];
    if (work.guess.empty()) continue;
    asks.push_back({.seq = static_cast<int32_t>(i),
                    .begin = work.guess.begin,
                    .tokens = work.guess.tokens,
                    .num_guess = work.guess.num_guess,
                    .slot = &slots.slot(work.slot)});
  }
}

void add_sampled(std::span<const int32_t> sampled_seq, const ops::SampledToken* sampled,
                 std::span<ModelProposer::Ask> asks) {
  size_t row = 0;
  for (ModelProposer::Ask& ask : asks) {
    while (row < sampled_seq.size() && sampled_seq[row] < ask.seq) ++row;
    if (ask.num_guess == 0) continue;
    bool has_ended = false;
    for (; row < sampled_seq.size() && sampled_seq[row] == ask.seq; ++row) {
      if (sampled[row].end == ops::SampleEnd::kRejected) continue;
      has_ended = has_ended || sampled[row].end != ops::SampleEnd::kNone;
      ask.tokens.push_back(sampled[row].token);
    }
    // The last draft may be followed by one more token of the sequence.
    const int32_t len = ask.begin + static_cast<int32_t>(ask.tokens.size());
    ask.num_guess = has_ended ? 0 : std::clamp(ask.slot->max_len - len - 1, 0, ask.num_guess);
    if (has_ended) ask.tokens.clear();
  }
}

}  // namespace rudder::exec
