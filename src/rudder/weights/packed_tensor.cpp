#include "rudder/weights/packed_tensor.h"

namespace rudder::weights {

const std::byte* PackedTensor::blocks_of(int64_t row) const {
  int64_t stored = row;
  if (head_rows > 0) {
    const int64_t in_head = row % head_rows;
    const int64_t half = head_rows / 2;
    stored = row - in_head + 2 * (in_head % half) + in_head / half;
  }
  return bytes.data() + stored * type->row_bytes(columns);
}

void PackedTensor::unpack_row(int64_t row, float* out) const {
  type->expand(blocks_of(row), columns / type->values, out);
  if (add == 0) return;
  for (int64_t i = 0; i < columns; ++i) out[i] += add;
}

void PackedTensor::unpack(float* out) const {
  for (int64_t row = 0; row < rows; ++row) unpack_row(row, out + row * columns);
}

}  // namespace rudder::weights
