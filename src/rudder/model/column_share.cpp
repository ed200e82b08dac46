#include "rudder/model/column_share.h"

#include <vector>

#include "rudder/model/branch.h"

namespace rudder::model {

Result<ColumnShare> ColumnShare::make(ops::Ops& ops, int64_t max_rows) {
  const ops::Rank rank = ops::rank_of(ops);
  ColumnShare share;
  share.ops_ = &ops;
  share.num_ranks_ = rank.count;
  if (rank.is_alone()) return share;
  std::vector<int32_t> shares(static_cast<size_t>(max_rows));
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i] = static_cast<int32_t>(i) * rank.count + rank.index;
  }
  RUDDER_TRY(share.shares_,
             ops.upload({shares.data(), tensor::DType::kI32, {max_rows}}, tensor::DType::kI32));
  return share;
}

int64_t ColumnShare::device_bytes(int64_t max_rows, ops::Rank rank) {
  return rank.is_alone() ? 0 : max_rows * static_cast<int64_t>(sizeof(int32_t));
}

// A row of `x` is as many rows of shares.
ops::View ColumnShare::of(const ops::View& x, const ops::View& buffer) const {
  if (num_ranks_ == 1) return x;
  const int64_t rows = x.shape[0];
  const int64_t width = x.shape[1] / num_ranks_;
  ops::View all = x;
  all.shape = {rows * num_ranks_, width};
  const ops::View out = shaped(buffer, rows, width);
  ops_->gather_rows({.x = all, .rows = shares_.rows(0, rows), .out = out});
  return out;
}

void ColumnShare::sum(const ops::View& y) const {
  if (num_ranks_ > 1) ops_->rank_ops()->sum_ranks(y);
}

}  // namespace rudder::model
