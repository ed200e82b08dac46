// HostDraftOps::place_tails and keep_guess: what a proposer reads of slots, and what it leaves
// there.
#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/cpu/draft_ops.h"

namespace rudder::cpu {
namespace {

// Of sequence `seq`, which is of `slot`.
void place_tail(const ops::PlaceTailsArgs& args, int64_t seq, int32_t slot) {
  const int32_t begin = args.q_begin.as<int32_t>()[seq];
  const int32_t q_len = args.q_begin.as<int32_t>()[seq + 1] - begin;
  const int32_t len = args.model.carry_position.as<int32_t>()[slot] + 1;
  const int32_t last = len - 1 + args.num_ahead;
  const int32_t first = std::max(args.shift, last - q_len + 1);
  auto& row = static_cast<ops::SampleRow*>(args.sample_rows.data)[seq];
  const int32_t count = std::min(row.num_guess, row.max_len - len - 1);
  row.position = last + 1;
  row.max_len = len + count;
  row.num_guess = count;
  int32_t& ended = args.own.ended.as<int32_t>()[slot];
  if (args.model.ended.as<int32_t>()[slot] != 0 || count <= 0) ended = 1;
  args.kv_len.as<int32_t>()[seq] = first - args.shift + (args.keeps_kv ? q_len : 0);
  args.logits_rows.as<int32_t>()[seq] = begin + last - first;
  if (!args.step_rows.empty() && ended == 0) {
    int32_t& goes_on = args.goes_on_rows.as<int32_t>()[begin];
    const auto* step_rows = static_cast<const ops::SampleRow*>(args.step_rows.data);
    goes_on += len - 1 - step_rows[goes_on].position;
  }
  const int32_t* history =
      args.model.history.as<int32_t>() + int64_t{slot} * args.model.history.shape[1];
  const int32_t* table =
      args.own.block_table.as<int32_t>() + int64_t{slot} * args.own.block_table.shape[1];
  for (int32_t i = 0; i < q_len; ++i) {
    const int32_t token = first + i;
    const int32_t offset = token - args.shift;
    const bool is_carry = token == len;
    int32_t id = 0;
    if (token < len) id = history[token];
    if (is_carry && args.num_ahead > 0) id = std::max(0, args.own.carry.as<int32_t>()[slot]);
    args.ids.as<int32_t>()[begin + i] = id;
    args.positions.as<int32_t>()[begin + i] = offset;
    args.kv_slot.as<int32_t>()[begin + i] =
        token > last || ended != 0 || !args.keeps_kv
            ? -1
            : table[offset / args.block_size] * args.block_size + offset % args.block_size;
  }
}

}  // namespace

void HostDraftOps::place_tails(const ops::PlaceTailsArgs& args) {
  const auto padding = static_cast<int32_t>(args.model.carry.shape[0] - 1);
  const int64_t count = std::min(args.kv_len.num_rows(), args.sample_rows.num_rows());
  for (int64_t seq = 0; seq < count; ++seq) {
    const int32_t slot = args.table_row.as<int32_t>()[seq];
    if (slot < padding) place_tail(args, seq, slot);
  }
}

void HostDraftOps::keep_guess(const ops::KeepGuessArgs& args) {
  const auto padding = static_cast<int32_t>(args.model.carry.shape[0] - 1);
  const int64_t most = args.model.guess.shape[1];
  RUDDER_CHECK(args.index >= 0 && args.index < most, "token {} of {} guessed", args.index, most);
  const auto* rows = static_cast<const ops::SampleRow*>(args.rows.data);
  const auto* sampled = static_cast<const ops::SampledToken*>(args.sampled.data);
  for (int64_t r = 0; r < args.rows.num_rows(); ++r) {
    if (rows[r].slot >= padding || sampled[r].token < 0) continue;
    if (args.index >= rows[r].num_guess) continue;
    args.model.guess.as<int32_t>()[rows[r].slot * most + args.index] = sampled[r].token;
  }
}

}  // namespace rudder::cpu
