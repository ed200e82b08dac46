#include "rudder/weights/packed_tensor.h"

namespace rudder::weights {

void PackedTensor::unpack_row(int64_t row, float* out) const {
  int64_t stored = row;
  if (head_rows > 0) {
    const int64_t in_head = row % head_rows;
    const int64_t half = head_rows / 2;
    stored = row - in_head + 2 * (in_head % half) + in_head / half;
  }
  type->expand(bytes.data() + stored * type->row_bytes(columns), columns / type->values, out);
  if (add == 0) return;
  for (int64_t i = 0; i < columns; ++i) out[i] += add;
}

void PackedTensor::unpack(float* out) const {
  for (int64_t row = 0; row < rows; ++row) unpack_row(row, out + row * columns);
}

}  // namespace rudder::weights
