#include "rudder/tensor/view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace rudder::tensor {

Shape::Shape(std::initializer_list<int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  RUDDER_CHECK(rank_ <= kMaxRank);
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

int64_t Shape::numel() const {
  int64_t count = 1;
  for (int axis = 0; axis < rank_; ++axis) count *= (*this)[axis];
  return count;
}

std::string Shape::to_string() const {
  return fmt::format("[{}]", fmt::join(dims_.begin(), dims_.begin() + rank_, ", "));
}

View View::rows(int64_t begin, int64_t count) const {
  RUDDER_CHECK(shape.rank() >= 1 && begin >= 0 && begin + count <= shape[0]);
  View part = *this;
  const int64_t row_bytes = shape[0] == 0 ? 0 : static_cast<int64_t>(bytes()) / shape[0];
  part.data = static_cast<std::byte*>(data) + begin * row_bytes;
  switch (shape.rank()) {
    case 1:
      part.shape = {count};
      break;
    case 2:
      part.shape = {count, shape[1]};
      break;
    case 3:
      part.shape = {count, shape[1], shape[2]};
      break;
    default:
      part.shape = {count, shape[1], shape[2], shape[3]};
  }
  return part;
}

}  // namespace rudder::tensor
