#include "rudder/cpu/keep_paths.h"

#include "rudder/base/check.h"
#include "rudder/ops/sample_row.h"

namespace rudder::cpu {
namespace {

// In ascending order a token never goes to where one lies that is still to be moved: a path's n-th
// token is no earlier than the n-th of its sequence.
void move_path(const ops::KeepPathsArgs& args, int64_t seq, int64_t first_row, MoveToken move) {
  const int32_t* const q_begin = args.batch.q_begin.as<int32_t>() + seq;
  const int32_t* const tokens = args.logits_rows.as<int32_t>();
  const auto* const sampled = static_cast<const ops::SampledToken*>(args.sampled.data);
  const int64_t base = args.batch.kv_len.as<int32_t>()[seq] - (q_begin[1] - q_begin[0]);
  int64_t count = 0;
  for (int64_t row = first_row; row < args.logits_rows.num_rows(); ++row) {
    if (tokens[row] >= q_begin[1]) break;
    if (sampled[row].end == ops::SampleEnd::kRejected) continue;
    const int64_t from = base + tokens[row] - q_begin[0];
    const int64_t to = base + count++;
    if (from == to) continue;
    for (const ops::KvLayer& kv : args.layers) {
      const int32_t* const blocks = args.batch.table_of(kv.group)
                                        .rows(args.batch.table_row.as<int32_t>()[seq], 1)
                                        .as<int32_t>();
      const auto slot_of = [&](int64_t offset) {
        return int64_t{blocks[offset / kv.block_size]} * kv.block_size + offset % kv.block_size;
      };
      move(kv, slot_of(from), slot_of(to));
    }
  }
}

}  // namespace

void keep_paths(const ops::KeepPathsArgs& args, MoveToken move) {
  const int32_t* const q_begin = args.batch.q_begin.as<int32_t>();
  const int32_t* const tokens = args.logits_rows.as<int32_t>();
  RUDDER_CHECK(args.sampled.num_rows() == args.logits_rows.num_rows());
  int64_t row = 0;
  for (int64_t seq = 0; seq < args.batch.kv_len.num_rows(); ++seq) {
    while (row < args.logits_rows.num_rows() && tokens[row] < q_begin[seq]) ++row;
    const bool is_tree =
        q_begin[seq + 1] > q_begin[seq] && args.batch.ancestors_of(q_begin[seq]) != 0;
    if (is_tree) move_path(args, seq, row, move);
  }
}

}  // namespace rudder::cpu
