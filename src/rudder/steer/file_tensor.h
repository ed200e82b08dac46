// A tensor of a module's or dictionary's file, for every format, and the cursor that the readers of
// binary formats share. Internal to the room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tensor/dtype.h"

namespace rudder::steer {

struct FileTensor {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;  // f64, f32, f16, bf16, i32 or i64
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;  // exactly those of the shape; of the file, or of `owned`
  std::shared_ptr<const std::vector<std::byte>> owned;
};

struct FileTensors {
  std::vector<FileTensor> tensors;
  std::string model_hint;
  double unit = 1;  // what scale 1 of the module is times its vectors
};

// `bytes` is the whole file and outlives what is returned.
Result<FileTensors> read_safetensors(std::span<const std::byte> bytes, const std::string& file);
Result<FileTensors> read_npz(std::span<const std::byte> bytes, const std::string& file);
Result<FileTensors> read_gguf(std::span<const std::byte> bytes, const std::string& file);

inline tl::unexpected<Error> corrupt_file(std::string message, const std::string& file,
                                          std::string_view part = {}) {
  return fail(ErrorCode::kCorruptFile, std::move(message),
              part.empty() ? file : file + ": " + std::string(part));
}

// Product of the extents times `unit`; false on overflow.
inline bool checked_bytes(const std::vector<uint64_t>& shape, uint64_t unit, uint64_t& bytes) {
  bytes = unit;
  for (const uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return false;
  }
  return true;
}

// Reads little-endian values one after another and never past the end: a read that would fails, and
// so does every later one.
class ByteCursor {
 public:
  explicit ByteCursor(std::span<const std::byte> bytes, size_t at = 0) : bytes_(bytes), at_(at) {
    if (at > bytes.size()) failed_ = true;
  }

  template <typename T>
  T take() {
    T value = {};
    const auto taken = take_bytes(sizeof(T));
    if (!failed_) std::memcpy(&value, taken.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> take_bytes(uint64_t count) {
    if (failed_ || count > bytes_.size() - at_) {
      failed_ = true;
      return {};
    }
    const auto taken = bytes_.subspan(at_, count);
    at_ += count;
    return taken;
  }
  std::string_view take_text(uint64_t count) {
    const auto taken = take_bytes(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  bool failed() const { return failed_; }
  size_t at() const { return at_; }
  size_t left() const { return failed_ ? 0 : bytes_.size() - at_; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_;
  bool failed_ = false;
};

}  // namespace rudder::steer
