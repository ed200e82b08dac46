#include "rudder/cpu/keep_paths.h"

#include <cstring>

#include "rudder/base/check.h"
#include "rudder/ops/sample_row.h"

namespace rudder::cpu {
namespace {

// Where the token at `offset` of its sequence lies in the blocks of a KV group, in blocks of one
// layer.
int64_t slot_of(const ops::AttentionBatch& batch, int64_t seq, int32_t group, int32_t block_size,
                int64_t offset) {
  const int32_t row = batch.table_row.as<int32_t>()[seq];
  const auto* const blocks = batch.table_of(group).rows(row, 1).as<int32_t>();
  return int64_t{blocks[offset / block_size]} * block_size + offset % block_size;
}

void move_row(const ops::TokenRows& beside, int64_t from, int64_t to) {
  const auto bytes =
      static_cast<size_t>(beside.rows.shape[1]) * tensor::dtype_bytes(beside.rows.dtype);
  const auto row_at = [&](int64_t slot) {
    const int64_t size = beside.block_size;
    const int64_t row = slot / size / beside.group_layers * size + slot % size;
    RUDDER_CHECK(row < beside.rows.num_rows(), "row {} of {}", row, beside.rows.num_rows());
    return static_cast<std::byte*>(beside.rows.data) + static_cast<size_t>(row) * bytes;
  };
  std::memcpy(row_at(to), row_at(from), bytes);
}

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
    const auto slot = [&](int32_t group, int32_t block_size, int64_t offset) {
      return slot_of(args.batch, seq, group, block_size, offset);
    };
    for (const ops::KvLayer& kv : args.layers) {
      move(kv, slot(kv.group, kv.block_size, from), slot(kv.group, kv.block_size, to));
    }
    const ops::TokenRows& beside = args.beside;
    if (beside.rows.empty()) continue;
    move_row(beside, slot(beside.group, beside.block_size, from),
             slot(beside.group, beside.block_size, to));
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
