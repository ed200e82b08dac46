// DeviceMemory: the host memory of one CPU backend: zeroed, 64-byte aligned, freed with the
// backend. Large pieces are mapped separately with huge pages, which reading weights at full
// bandwidth needs. An Ops owns it. One thread at a time calls allocate(); any thread uses the
// memory.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tensor/view.h"

namespace rudder::cpu {

// Rounds up to a multiple of `unit`.
template <typename T>
constexpr T round_up(T value, std::type_identity_t<T> unit) {
  return (value + unit - 1) / unit * unit;
}

struct BufferFree {
  size_t bytes = 0;
  void operator()(void* data) const;
};

// One zeroed, 64-byte aligned piece. Move-only; frees itself.
class Buffer {
 public:
  Buffer() = default;
  static Result<Buffer> make(size_t bytes);

  void* data() const { return data_.get(); }
  size_t bytes() const { return data_.get_deleter().bytes; }

 private:
  std::unique_ptr<void, BufferFree> data_;
};

class DeviceMemory {
 public:
  Result<tensor::View> allocate(tensor::DType dtype, tensor::Shape shape);
  // A copy of `host`, converted: any of f32, f16, bf16 to any of these; other types only to
  // themselves.
  Result<tensor::View> upload(const tensor::View& host, tensor::DType dtype);

 private:
  std::vector<Buffer> buffers_;
};

// Converts `count` values; the same types as DeviceMemory::upload.
Result<void> convert_values(const void* from, tensor::DType from_dtype, void* to,
                            tensor::DType to_dtype, int64_t count);

}  // namespace rudder::cpu
