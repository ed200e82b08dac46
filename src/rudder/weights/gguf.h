// Reads a GGUF file from memory: checks the header, every value of the metadata and the whole table
// of tensors before it uses any part of them. Called by the loaders of models (gguf_model.h) and of
// steering modules. Pure functions, any thread; results are views into the caller's bytes.
//
// The format (https://github.com/ggml-org/ggml, docs/gguf.md), little-endian: "GGUF", u32 version
// (2 or 3), u64 tensors, u64 values; a value is key, u32 type, value; a string is u64 length and
// bytes, an array u32 type, u64 count and its items. Then the tensors: name, u32 rank, u64 extents
// (the fastest first), u32 type, u64 offset. The data begin at the next multiple of the alignment.
// Besides short and ill-formed files it refuses: keys and names that are empty, too long or given
// twice, a bool that is neither 0 nor 1, an array of arrays, types that no number has, rows that
// are not whole blocks, a size that overflows, and data that do not lie in the order of the table,
// aligned, without holes. Nothing is allocated by a number of the file beyond the file's own size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/weights/block_type.h"
#include "rudder/weights/safetensors.h"

namespace rudder::weights {

enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// A checked value, as it lies in the file.
struct GgufValue {
  GgufType type = GgufType::kU8;  // of an array: of its items
  bool is_array = false;
  uint64_t count = 1;                // items
  std::span<const std::byte> bytes;  // of all items; a string has its length in front
};

struct GgufTensor {
  std::string_view name;
  const BlockType* type = nullptr;
  TensorShape shape;  // the slowest extent first; as values, not blocks
  std::span<const std::byte> bytes;
};

class GgufFile {
 public:
  // `bytes` is the whole file, `file` its name in errors: kCorruptFile, or kUnsupported for a
  // version, byte order or type that is not read; `where` is the file with the key or the tensor.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string file);

  const std::string& file() const { return file_; }
  const std::map<std::string_view, GgufValue>& values() const { return values_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the file's order

  bool has(std::string_view key) const { return values_.contains(key); }
  // kCorruptFile without the key, and for a value of another kind or beyond the range; `where` is
  // file and key.
  Result<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
  Result<double> number(std::string_view key) const;  // finite; of an integer too
  Result<bool> boolean(std::string_view key) const;
  Result<std::string_view> text(std::string_view key) const;
  Result<std::vector<std::string_view>> texts(std::string_view key) const;
  Result<std::vector<double>> numbers(std::string_view key) const;  // of integers and bools too

  // The same with a value for an absent key.
  Result<int64_t> integer_or(std::string_view key, int64_t fallback, int64_t low,
                             int64_t high) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string_view> text_or(std::string_view key, std::string_view fallback) const;

  std::string where(std::string_view key) const;          // "FILE: key 'KEY'"
  std::string where_tensor(std::string_view name) const;  // "FILE: tensor 'NAME'"

 private:
  Result<const GgufValue*> require(std::string_view key, bool is_array) const;
  tl::unexpected<Error> ill_typed(std::string_view key, std::string_view wanted) const;

  std::string file_;
  std::map<std::string_view, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace rudder::weights
