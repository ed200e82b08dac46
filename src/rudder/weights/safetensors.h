// Reads a safetensors file from memory: checks the whole header before it uses any part of it.
// Called by Checkpoint and by the loaders of steering vectors. Pure functions, any thread; results
// are views into the caller's bytes.
//
// The format (https://huggingface.co/docs/safetensors, "Format"): 8 bytes little-endian N, N bytes
// of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, …, "__metadata__": {…}}, then
// the data. Besides short and ill-formed files it refuses: N above 100 MB, a header that
// does not begin with '{' or is padded with anything but spaces, names given twice, unknown dtypes
// and fields, a size that overflows or does not equal its offsets, and data that the tensors do not
// cover exactly, in order, without holes, overlaps or trailing bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tensor/dtype.h"

namespace rudder::weights {

inline constexpr size_t kMaxRank = 8;

struct TensorShape {
  std::array<uint64_t, kMaxRank> dims = {};
  uint8_t rank = 0;

  static TensorShape of(std::initializer_list<uint64_t> dims);
  std::span<const uint64_t> extents() const { return {dims.data(), rank}; }
  std::string to_string() const;  // "[2, 3]"
  bool operator==(const TensorShape&) const = default;
};

struct TensorEntry {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;
  TensorShape shape;
  uint64_t begin = 0;  // in the data section, bytes
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

struct Safetensors {
  std::vector<TensorEntry> tensors;                           // sorted by name
  std::vector<std::pair<std::string, std::string>> metadata;  // sorted by key
  std::span<const std::byte> data;                            // of the caller

  const TensorEntry* find(std::string_view name) const;  // null when absent
  std::span<const std::byte> bytes_of(const TensorEntry& tensor) const {
    return data.subspan(tensor.begin, tensor.bytes());
  }
};

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr uint64_t kMaxTensors = 1'000'000;

// `bytes` is the whole file, `file` its name in errors, which are kCorruptFile with the file and
// the tensor as `where`. Data may lie at any alignment.
Result<Safetensors> parse_safetensors(std::span<const std::byte> bytes, const std::string& file);

// Product of the extents times `unit`; false on overflow.
bool checked_tensor_bytes(const TensorShape& shape, uint64_t unit, uint64_t& bytes);

}  // namespace rudder::weights
