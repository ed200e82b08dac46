// Comm: what one device of a rank group knows of the group. A rank group computes one model
// together (tensor parallel): each rank has a share of every layer's heads and neurons and of the
// head's vocabulary, and all of the residual stream. The ops that read other ranks' memory
// (ResidualNormArgs.sums_ranks, QkvPrepArgs.norms_span_ranks, Ops::gather_logits) wait for them,
// for a bounded time; PatternArgs are for a record that ranks share. Once the group has failed no
// rank waits any more, and every event recorded from then on tells the failure. Ops owns it; a
// device alone has none.
#pragma once

#include <cstdint>

#include "rudder/base/result.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

struct Rank {
  int32_t index = 0;  // from 0 to count - 1
  int32_t count = 1;  // of ranks in the group

  bool is_alone() const { return count == 1; }
};

// A range of the elements of a dimension.
struct Share {
  int64_t begin = 0;
  int64_t count = 0;
};

// The rank's share of `total` elements, which the number of ranks divides.
inline Share equal_share(int64_t total, Rank rank) {
  const int64_t each = total / rank.count;
  return {rank.index * each, each};
}

// The rank's share of the output head's rows. Shares lie in the order of ranks, begin at multiples
// of 16 and differ by no more than that; the first is the largest, and the last is empty where
// there are too many ranks.
inline Share vocab_share(int64_t vocab, Rank rank) {
  constexpr int64_t kUnit = 16;
  const int64_t units = (vocab + kUnit - 1) / kUnit;
  const auto begin_of = [&](int64_t index) {
    const int64_t begin = (units * index + rank.count - 1) / rank.count * kUnit;
    return begin < vocab ? begin : vocab;
  };
  const int64_t begin = begin_of(rank.index);
  return {begin, begin_of(rank.index + 1) - begin};
}

class Comm {
 public:
  virtual ~Comm() = default;

  virtual Rank rank() const = 0;
  // Memory of the first rank's device that every rank may write, zeroed, 64-byte aligned, alive as
  // long as the group has a rank: one piece, which each rank asks for with the same shape. What a
  // rank has written is there for another behind the next op in which they meet
  // (Ops::end_patterns).
  virtual Result<tensor::View> shared_memory(tensor::DType dtype, tensor::Shape shape) = 0;
  // Called by each rank when it is ready for its first step. Before, an op that is run and not
  // captured does without the other ranks, some of which may still be loading.
  virtual void open() {}
  // Called by each rank when it has enqueued an iteration of the step `step`, as every rank must,
  // so that none runs away from another that stands still: waits for the others, where devices do
  // not wait for each other anyway.
  virtual void meet(uint64_t step) = 0;
  // The group's first failure. Any thread.
  virtual Result<void> status() const = 0;
  // This rank cannot go on, so no other can. The first failure counts. Any thread.
  virtual void fail(const Error& error) = 0;
};

}  // namespace rudder::ops
