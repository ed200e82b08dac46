// HostOps::begin_step: edits of slots, and where the tokens of a step stand.
#include <algorithm>
#include <cstring>

#include "rudder/base/check.h"
#include "rudder/cpu/host_ops.h"

namespace rudder::cpu {
namespace {

using tensor::View;

void open_slots(const ops::BeginStepArgs& args) {
  const ops::SlotState& state = args.state;
  const auto* opened = static_cast<const ops::OpenedSlot*>(args.opened.data);
  for (int64_t i = 0; i < args.opened.num_rows(); ++i) {
    const int32_t slot = opened[i].slot;
    state.ended.as<int32_t>()[slot] = 0;
    state.carry.as<int32_t>()[slot] = -1;
    if (opened[i].has_counts == 0) continue;
    for (const View& counts : {state.output_count.rows(slot, 1), state.prompt_seen.rows(slot, 1)}) {
      std::memset(counts.data, 0, counts.bytes());
    }
  }
}

void count_history(const ops::BeginStepArgs& args) {
  const int64_t vocab = args.state.output_count.shape[1];
  const auto* history = static_cast<const ops::HistoryToken*>(args.history.data);
  for (int64_t i = 0; i < args.history.num_rows(); ++i) {
    const int64_t at = history[i].slot * vocab + history[i].token;
    if (history[i].is_prompt != 0) {
      args.state.prompt_seen.as<uint8_t>()[at] = 1;
    } else {
      ++args.state.output_count.as<int32_t>()[at];
    }
  }
}

void keep_tokens(const ops::BeginStepArgs& args) {
  const auto* kept = static_cast<const ops::KeptToken*>(args.kept.data);
  for (int64_t i = 0; i < args.kept.num_rows(); ++i) {
    const int64_t at = kept[i].slot * args.state.history.shape[1] + kept[i].position;
    args.state.history.as<int32_t>()[at] = kept[i].token;
  }
}

void write_blocks(const ops::BeginStepArgs& args) {
  const int64_t max_blocks = args.state.block_table.shape[1];
  const auto* blocks = static_cast<const ops::BlockWrite*>(args.blocks.data);
  for (int64_t i = 0; i < args.blocks.num_rows(); ++i) {
    const int64_t at = blocks[i].row * max_blocks + blocks[i].index;
    args.state.block_table.as<int32_t>()[at] = blocks[i].block;
  }
}

void place_carried(const ops::BeginStepArgs& args) {
  int32_t* ids = args.ids.as<int32_t>();
  const int64_t num_tokens = args.ids.num_rows();
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (ids[t] >= 0) continue;
    const int32_t slot = -1 - ids[t];
    ids[t] = std::max(0, args.state.carry.as<int32_t>()[slot]);
    if (args.state.ended.as<int32_t>()[slot] == 0) continue;
    for (int64_t at = t; at < args.kv_slot.num_rows(); at += num_tokens) {
      args.kv_slot.as<int32_t>()[at] = -1;
    }
  }
}

// The n-th token of a slot's guess; below 0: it has none.
int32_t guessed(const ops::SlotState& state, int32_t slot, int64_t n) {
  const int64_t most = state.guess.empty() ? 0 : state.guess.shape[1];
  return n < most ? state.guess.as<int32_t>()[slot * most + n] : -1;
}

// Moves the sequences that begin with a carry to where it stands. Ids still name slots.
void place_sequences(const ops::BeginStepArgs& args) {
  const ops::BeginStepArgs::Placement& placement = args.placement;
  const int64_t max_blocks = args.state.block_table.shape[1];
  const int64_t group_rows = args.state.ended.shape[0];
  const int64_t num_tokens = args.ids.num_rows();
  const int64_t num_groups = num_tokens > 0 ? args.kv_slot.num_rows() / num_tokens : 0;
  const int32_t* q_begin = placement.q_begin.as<int32_t>();
  auto* sample_rows = static_cast<ops::SampleRow*>(placement.sample_rows.data);
  const int32_t* logits_rows = placement.logits_rows.as<int32_t>();
  int64_t row = 0;  // the first that belongs to this sequence or to one behind it
  for (int64_t seq = 0; seq < placement.kv_len.num_rows(); ++seq) {
    const int64_t first_row = row;
    const int32_t begin = q_begin[seq];
    const int32_t end = q_begin[seq + 1];
    while (row < placement.logits_rows.num_rows() && logits_rows[row] < end) ++row;
    if (begin == end || args.ids.as<int32_t>()[begin] >= 0) continue;
    const int32_t slot = placement.table_row.as<int32_t>()[seq];
    const bool has_ended = args.state.ended.as<int32_t>()[slot] != 0;
    const int32_t back = has_ended ? 0
                                   : placement.positions.as<int32_t>()[begin] -
                                         args.state.carry_position.as<int32_t>()[slot];
    RUDDER_CHECK(back >= 0, "slot {} stands {} tokens further on than its plan", slot, -back);
    placement.kv_len.as<int32_t>()[seq] -= back;
    for (int32_t t = begin; t < end; ++t) {
      placement.positions.as<int32_t>()[t] -= back;
      const int32_t offset = placement.positions.as<int32_t>()[begin] + t - begin;
      for (int64_t g = 0; g < num_groups; ++g) {
        const int64_t at = (g * group_rows + slot) * max_blocks + offset / placement.block_size;
        args.kv_slot.as<int32_t>()[g * num_tokens + t] =
            has_ended ? -1
                      : args.state.block_table.as<int32_t>()[at] * placement.block_size +
                            offset % placement.block_size;
      }
      if (!placement.since_prompt.empty()) placement.since_prompt.as<int32_t>()[t] -= back;
      int32_t& id = args.ids.as<int32_t>()[t];
      if (t > begin && id < 0) id = std::max(0, guessed(args.state, slot, t - begin - 1));
    }
    for (int64_t r = first_row; r < row; ++r) {
      sample_rows[r].position -= back;
      if (sample_rows[r].draft == ops::kNoDraft) {
        const int32_t token = guessed(args.state, slot, logits_rows[r] - begin);
        if (token >= 0) sample_rows[r].draft = token;
      }
      if (!placement.rows_since_prompt.empty())
        placement.rows_since_prompt.as<int32_t>()[r] -= back;
    }
  }
}

void gather_entries(const ops::TapTable& table, const ops::TapBatch& batch) {
  const int64_t num_points = table.points.shape[1];
  const auto* points = static_cast<const ops::TapEntry*>(table.points.data);
  auto* entry = static_cast<ops::TapEntry*>(batch.entries.data);
  for (int64_t t = 0; t < batch.num_tokens(); ++t) {
    const int64_t row = batch.row.as<int32_t>()[t];
    const int64_t set = batch.capture_set.as<int32_t>()[t];
    for (int64_t point = 0; point < num_points; ++point, ++entry) {
      *entry = points[row * num_points + point];
      if (set < 0) continue;
      const int32_t* offsets = table.captures.as<int32_t>() + (set * num_points + point) * 2;
      if (offsets[0] >= 0 || offsets[1] >= 0) entry->flags |= ops::TapEntry::kCaptured;
    }
  }
}

}  // namespace

void HostOps::begin_step(const ops::BeginStepArgs& args) {
  open_slots(args);
  count_history(args);
  keep_tokens(args);
  write_blocks(args);
  if (!args.placement.empty()) place_sequences(args);
  place_carried(args);
  if (args.tap_table == nullptr) return;
  gather_entries(*args.tap_table, args.taps);
  gather_entries(*args.tap_table, args.rows_taps);
}

}  // namespace rudder::cpu
