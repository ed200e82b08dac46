// How products are cut up that give an element the same bits in any number of rows. The order of a
// sum is that of the chunks of a part, then of the parts, and how many parts there are depends on
// the shape of the weight alone. Up to kRingMaxTokens rows ring_product.h computes them, above
// tile_product.h. Plain data; any thread.
#pragma once

#include <cstdint>

#include "rudder/cuda/kernels/products/gemv.h"

namespace rudder::cuda {

constexpr int32_t kTileTokens = 128;

// Of a product in tiles of kTileTokens rows of x; none if rows is 0. Only `splits` has a part in
// the order of sums.
struct TileShape {
  int32_t rows = 0;    // of W, of a block: of kTileRows
  int32_t splits = 1;  // of `in`, as of a RingShape
  // The blocks of a cluster have a part each; else a block takes the parts in turn.
  bool side_by_side = false;

  bool operator==(const TileShape& other) const {
    return rows == other.rows && splits == other.splits && side_by_side == other.side_by_side;
  }
};
inline constexpr int32_t kTileRows[] = {64, 96, 128, 160, 192, 224, 256};

// How many parts `in` has in every product with weights of this shape.
int32_t fixed_splits(int64_t out, int64_t in, bool is_fp8);

// The n-th best guess of those with so many splits.
TileShape guess_tile_shape(const GemvParams& product, int32_t splits, int32_t num_sms, int n);

// Whether launch_tile_product takes the product (of its pointers only their alignment counts).
bool tile_takes(const GemvParams& product, const TileShape& shape);

}  // namespace rudder::cuda
