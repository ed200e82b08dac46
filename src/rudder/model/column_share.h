// ColumnShare: of rows that every rank of a group has, the columns whose products the rank
// computes: the inputs of a product that is cut by them. The ranks add their parts of the product,
// so all of them have the same bits, whichever kernel each of them multiplies with. Draft heads and
// Medusa heads use it, on the executor's worker thread.
#pragma once

#include <cstdint>

#include "rudder/base/result.h"
#include "rudder/model/shard.h"
#include "rudder/ops/ops.h"

namespace rudder::model {

// The inputs of a product of `width` that the rank has; all of them where it is alone.
inline Extent input_extent(int64_t width, ops::Rank rank) {
  return {width, ops::equal_share(width, rank)};
}

class ColumnShare {
 public:
  // Of up to `max_rows` rows; `ops` outlives it. An Error is the backend's.
  static Result<ColumnShare> make(ops::Ops& ops, int64_t max_rows);
  // Device bytes that make() allocates.
  static int64_t device_bytes(int64_t max_rows, ops::Rank rank);

  // The rank's columns of `x` [R, width], in `buffer`; x itself where it is alone.
  ops::View of(const ops::View& x, const ops::View& buffer) const;
  // The ranks' parts of a product become their sum.
  void sum(const ops::View& y) const;

 private:
  ops::Ops* ops_ = nullptr;
  int64_t num_ranks_ = 1;
  // [max_rows] i32: where a row's share lies, in units of shares. Empty where the rank is alone.
  ops::View shares_;
};

}  // namespace rudder::model
