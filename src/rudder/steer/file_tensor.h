// A tensor of a module's or dictionary's file, for every format. Internal to the room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tensor/dtype.h"
#include "rudder/weights/byte_cursor.h"

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

using weights::ByteCursor;

}  // namespace rudder::steer
