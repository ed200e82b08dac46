// PackedTensor: numbers of a file that no view can show, since they lie in blocks, or in another
// order or with another offset than a model has them. Who needs them unpacks them into memory of
// its own. Plain data; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rudder/weights/block_type.h"

namespace rudder::weights {

struct PackedTensor {
  const BlockType* type = nullptr;   // one that expands
  std::span<const std::byte> bytes;  // of the file
  int64_t rows = 1;
  int64_t columns = 0;
  // Of heads with so many rows each, whose rows 2j and 2j + 1 are the model's j and j + half:
  // pairs that turn together lie together in the file. 0: rows are in the model's order.
  int64_t head_rows = 0;
  float add = 0;  // to each number of the file

  // The blocks of row `row` of the model.
  const std::byte* blocks_of(int64_t row) const;
  // Row `row` of the model, [columns].
  void unpack_row(int64_t row, float* out) const;
  void unpack(float* out) const;  // [rows, columns]
};

}  // namespace rudder::weights
