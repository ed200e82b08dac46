// TensorReader: takes the tensors of a dictionary's file by name, each with the shape that the
// caller knows it must have, as f32. Internal to the room; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/file_tensor.h"
#include "rudder/weights/mapped_file.h"

namespace rudder::steer {

using Floats = std::shared_ptr<const float[]>;
using Extents = std::vector<uint64_t>;

class TensorReader {
 public:
  // .safetensors or .npz.
  static Result<TensorReader> open(const std::string& path);

  bool has(std::string_view name) const { return find(name) != nullptr; }
  // The shape of a tensor that must be there and have `rank` extents, each from 1 to 2^30.
  Result<Extents> shape(std::string_view name, size_t rank) const;

  // All of a tensor of exactly this shape. kInvalidArgument with file and tensor: absent, another
  // shape or dtype, a value that is not finite or above kMaxMagnitude.
  Result<Floats> take(std::string_view name, const Extents& shape);
  Result<std::vector<float>> take_list(std::string_view name, uint64_t count);
  // Of a tensor [rows, cols], as [cols, rows].
  Result<Floats> take_transposed(std::string_view name, uint64_t rows, uint64_t cols);
  // Of a tensor [a, b, c], as [b, a, c].
  Result<Floats> take_swapped(std::string_view name, const Extents& shape);

  // Of a tensor [count], [1, count], [1] or []: the last two hold one value for all.
  Result<std::vector<float>> take_spread(std::string_view name, uint64_t count);
  // The tensor in the dtype of this name as PyTorch writes it ("float32", "torch.bfloat16") has the
  // values that it has here: it is that, or one of which float32 loses nothing more.
  Result<void> check_dtype(std::string_view name, std::string_view dtype) const;

  // A tensor that may be there and means nothing here.
  void ignore(std::string_view name) { taken_.emplace_back(name); }
  // Every tensor was taken, and the file did not change meanwhile.
  Result<void> finish() const;

  std::string where(std::string_view name) const { return path_ + ": " + std::string(name); }

 private:
  const FileTensor* find(std::string_view name) const;

  std::string path_;
  std::shared_ptr<const weights::MappedFile> file_;
  std::vector<FileTensor> tensors_;
  std::vector<std::string> taken_;
};

}  // namespace rudder::steer
