// Shape and View: a View is a pointer, a dtype and row-major dimensions; it owns nothing. Its
// memory is on the host or on a device. Only the room that made a view of device memory may read
// through it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "rudder/base/check.h"
#include "rudder/tensor/dtype.h"

namespace rudder::tensor {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);  // NOLINT(google-explicit-constructor)

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[static_cast<size_t>(axis)]; }
  int64_t numel() const;  // 1 for rank 0
  bool operator==(const Shape&) const = default;
  std::string to_string() const;  // "[3, 64]"

 private:
  std::array<int64_t, kMaxRank> dims_ = {};
  int rank_ = 0;
};

struct View {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  bool empty() const { return data == nullptr; }
  size_t bytes() const { return static_cast<size_t>(shape.numel()) * dtype_bytes(dtype); }

  // Typed access on the host. T must be the C++ type of `dtype`.
  template <typename T>
  T* as() const {
    RUDDER_DCHECK(sizeof(T) == dtype_bytes(dtype));
    return static_cast<T*>(data);
  }
  // Rows [begin, begin + count) of the first axis.
  View rows(int64_t begin, int64_t count) const;
  // Length of the first axis; 0 for an empty view.
  int64_t num_rows() const { return empty() || shape.rank() == 0 ? 0 : shape[0]; }
};

// A view of rank 1 of host values; the callee only reads it.
inline View host_view(std::span<const int32_t> values) {
  return {const_cast<int32_t*>(values.data()), DType::kI32, {static_cast<int64_t>(values.size())}};
}

}  // namespace rudder::tensor
