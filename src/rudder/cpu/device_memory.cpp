#include "rudder/cpu/device_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::cpu {
namespace {

using tensor::BF16;
using tensor::DType;
using tensor::F16;
using tensor::View;

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

float widen(float value) {
  return value;
}
float widen(BF16 value) {
  return tensor::to_float(value);
}
float widen(F16 value) {
  return tensor::to_float(value);
}
void narrow(float value, float& to) {
  to = value;
}
void narrow(float value, BF16& to) {
  to = tensor::to_bf16(value);
}
void narrow(float value, F16& to) {
  to = tensor::to_f16(value);
}

template <typename From, typename To>
void convert(const void* from, void* to, int64_t count) {
  const From* in = static_cast<const From*>(from);
  To* out = static_cast<To*>(to);
  for (int64_t i = 0; i < count; ++i) narrow(widen(in[i]), out[i]);
}

template <typename From>
bool convert_from(const void* from, void* to, DType dtype, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      convert<From, float>(from, to, count);
      return true;
    case DType::kBF16:
      convert<From, BF16>(from, to, count);
      return true;
    case DType::kF16:
      convert<From, F16>(from, to, count);
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<Buffer> Buffer::make(size_t bytes) {
  Buffer buffer;
  buffer.data_.get_deleter().bytes = bytes;
  void* data = nullptr;
  if (bytes >= kHugePage) {
    // Mapped memory is zero. 2 MiB alignment lets every page of it be a huge one.
    const size_t mapped = round_up(bytes, kHugePage);
    data = mmap(nullptr, mapped + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                -1, 0);
    if (data != MAP_FAILED) {
      char* raw = static_cast<char*>(data);
      const size_t skip =
          round_up(reinterpret_cast<uintptr_t>(raw), kHugePage) - reinterpret_cast<uintptr_t>(raw);
      if (skip > 0) munmap(raw, skip);
      if (skip < kHugePage) munmap(raw + skip + mapped, kHugePage - skip);
      data = raw + skip;
      madvise(data, mapped, MADV_HUGEPAGE);  // a hint: without it only speed is lost
    } else {
      data = nullptr;
    }
  } else {
    const size_t size = round_up(std::max<size_t>(bytes, 1), kAlignment);
    data = std::aligned_alloc(kAlignment, size);
    if (data != nullptr) std::memset(data, 0, size);
  }
  if (data == nullptr) return fail(ErrorCode::kIo, fmt::format("cannot allocate {} bytes", bytes));
  buffer.data_.reset(data);
  return buffer;
}

void BufferFree::operator()(void* data) const {
  if (bytes >= kHugePage) {
    munmap(data, round_up(bytes, kHugePage));
  } else {
    std::free(data);
  }
}

Result<void> convert_values(const void* from, DType from_dtype, void* to, DType to_dtype,
                            int64_t count) {
  if (from_dtype == to_dtype) {
    if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * dtype_bytes(to_dtype));
    return {};
  }
  bool converted = false;
  if (from_dtype == DType::kF32) converted = convert_from<float>(from, to, to_dtype, count);
  if (from_dtype == DType::kBF16) converted = convert_from<BF16>(from, to, to_dtype, count);
  if (from_dtype == DType::kF16) converted = convert_from<F16>(from, to, to_dtype, count);
  if (converted) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("the CPU backend cannot convert {} to {}", tensor::dtype_name(from_dtype),
                          tensor::dtype_name(to_dtype)));
}

Result<View> DeviceMemory::allocate(DType dtype, tensor::Shape shape) {
  View view{nullptr, dtype, shape};
  RUDDER_TRY(Buffer buffer, Buffer::make(view.bytes()));
  view.data = buffer.data();
  buffers_.push_back(std::move(buffer));
  return view;
}

Result<View> DeviceMemory::upload(const View& host, DType dtype) {
  RUDDER_TRY(View view, allocate(dtype, host.shape));
  RUDDER_TRY_VOID(convert_values(host.data, host.dtype, view.data, dtype, host.shape.numel()));
  return view;
}

}  // namespace rudder::cpu
