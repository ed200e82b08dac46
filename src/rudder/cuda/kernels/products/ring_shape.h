// How the products of ring_product.h are cut up. Plain data; any thread.
#pragma once

#include <cstdint>

#include "rudder/cuda/kernels/products/gemv.h"

namespace rudder::cuda {

constexpr int64_t kRingMaxTokens = 64;

// How the work is cut up; none if rows is 0. Sums depend on it, so it is part of a policy.
struct RingShape {
  int32_t rows = 0;    // of W, of a block: of kRingRows
  int32_t splits = 1;  // of `in`: of kRingSplits

  bool operator==(const RingShape& other) const {
    return rows == other.rows && splits == other.splits;
  }
};
constexpr int64_t kRingChunkBytes = 128;  // of a row, one turn
inline constexpr int32_t kRingRows[] = {32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256};
inline constexpr int32_t kMostFp8RingRows = 128;  // more leave no registers to add in fp32
inline constexpr int32_t kRingSplits[] = {1, 2, 4};

constexpr int64_t ratio_up(int64_t dividend, int64_t divisor) {
  return (dividend + divisor - 1) / divisor;
}
// What the copy engine brings are pieces of 16 bytes.
constexpr int64_t kRingPieceBytes = 16;
inline int64_t row_bytes(const GemvParams& product) {
  return product.in * (product.is_fp8 ? 1 : 2);
}
inline bool is_made_of_pieces(const GemvParams& product) {
  const auto begins_one = [](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % kRingPieceBytes == 0;
  };
  return row_bytes(product) % kRingPieceBytes == 0 && begins_one(product.weight) &&
         begins_one(product.x);
}

// The n-th best guess for a device of so many multiprocessors, by the bytes that one of them reads.
RingShape guess_ring_shape(const GemvParams& product, int32_t num_sms, int n);

// Whether launch_ring_product takes the product (of its pointers only their alignment counts: 16
// bytes, as of whole rows).
bool ring_takes(const GemvParams& product, const RingShape& shape);

}  // namespace rudder::cuda
