#include "rudder/steer/features/tensor_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/steer/invalid_field.h"
#include "rudder/steer/vectors.h"

namespace rudder::steer {
namespace {

std::string shape_text(const Extents& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

Result<TensorReader> TensorReader::open(const std::string& path) {
  TensorReader reader;
  reader.path_ = path;
  RUDDER_TRY(reader.file_, weights::MappedFile::open(path));
  const auto bytes = reader.file_->bytes();
  RUDDER_TRY(FileTensors read,
             path.ends_with(".npz") ? read_npz(bytes, path) : read_safetensors(bytes, path));
  reader.tensors_ = std::move(read.tensors);
  return reader;
}

const FileTensor* TensorReader::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &FileTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

Result<Extents> TensorReader::shape(std::string_view name, size_t rank) const {
  const FileTensor* tensor = find(name);
  if (tensor == nullptr) return invalid_field("the tensor is missing", where(name));
  constexpr uint64_t kMaxExtent = uint64_t{1} << 30;
  const bool has_extents = std::ranges::all_of(
      tensor->shape, [](uint64_t extent) { return extent > 0 && extent <= kMaxExtent; });
  if (tensor->shape.size() == rank && has_extents) return tensor->shape;
  return invalid_field(
      fmt::format("shape {}: {} extents are needed", shape_text(tensor->shape), rank), where(name));
}

Result<Floats> TensorReader::take(std::string_view name, const Extents& shape) {
  const FileTensor* tensor = find(name);
  if (tensor == nullptr) return invalid_field("the tensor is missing", where(name));
  if (tensor->shape != shape) {
    return invalid_field(
        fmt::format("shape {}: {} is needed", shape_text(tensor->shape), shape_text(shape)),
        where(name));
  }
  if (!is_vector_dtype(tensor->dtype)) {
    return invalid_field(
        fmt::format("dtype {}: f64, f32, f16 or bf16 is needed", tensor::dtype_name(tensor->dtype)),
        where(name));
  }
  Floats values = widen(tensor->bytes, tensor->dtype);
  const size_t count = tensor->bytes.size() / tensor::dtype_bytes(tensor->dtype);
  if (const auto bad = first_bad({values.get(), count})) {
    return invalid_field(
        fmt::format("element {} is {}: finite numbers of at most {} in magnitude "
                    "are needed",
                    *bad, values[static_cast<std::ptrdiff_t>(*bad)], kMaxMagnitude),
        where(name));
  }
  taken_.emplace_back(name);
  return values;
}

Result<std::vector<float>> TensorReader::take_list(std::string_view name, uint64_t count) {
  RUDDER_TRY(const Floats values, take(name, {count}));
  return std::vector<float>(values.get(), values.get() + count);
}

Result<Floats> TensorReader::take_transposed(std::string_view name, uint64_t rows, uint64_t cols) {
  RUDDER_TRY(const Floats values, take(name, {rows, cols}));
  auto turned = std::make_shared_for_overwrite<float[]>(rows * cols);
  // By squares that stay in the first cache.
  constexpr uint64_t kSquare = 32;
  for (uint64_t row = 0; row < rows; row += kSquare) {
    for (uint64_t col = 0; col < cols; col += kSquare) {
      for (uint64_t i = row; i < std::min(row + kSquare, rows); ++i) {
        for (uint64_t j = col; j < std::min(col + kSquare, cols); ++j) {
          turned.get()[j * rows + i] = values.get()[i * cols + j];
        }
      }
    }
  }
  return Floats(std::move(turned));
}

Result<Floats> TensorReader::take_swapped(std::string_view name, const Extents& shape) {
  RUDDER_TRY(const Floats values, take(name, shape));
  const uint64_t a = shape[0];
  const uint64_t b = shape[1];
  const uint64_t c = shape[2];
  auto turned = std::make_shared_for_overwrite<float[]>(a * b * c);
  for (uint64_t i = 0; i < a; ++i) {
    for (uint64_t j = 0; j < b; ++j) {
      std::copy_n(values.get() + (i * b + j) * c, c, turned.get() + (j * a + i) * c);
    }
  }
  return Floats(std::move(turned));
}

Result<std::vector<float>> TensorReader::take_spread(std::string_view name, uint64_t count) {
  const FileTensor* tensor = find(name);
  if (tensor == nullptr) return invalid_field("the tensor is missing", where(name));
  const Extents shape = tensor->shape;
  const bool is_one = count > 1 && (shape.empty() || shape == Extents{1});
  const bool is_row = shape == Extents{1, count};
  RUDDER_TRY(const Floats values, take(name, is_one || is_row ? shape : Extents{count}));
  if (is_one) return std::vector<float>(count, values.get()[0]);
  return std::vector<float>(values.get(), values.get() + count);
}

Result<void> TensorReader::check_dtype(std::string_view name, std::string_view dtype) const {
  struct Spelling {
    std::string_view name;
    tensor::DType dtype;
  };
  static constexpr Spelling kSpellings[] = {{"float64", tensor::DType::kF64},
                                            {"float32", tensor::DType::kF32},
                                            {"float16", tensor::DType::kF16},
                                            {"bfloat16", tensor::DType::kBF16}};
  constexpr std::string_view kPrefix = "torch.";
  if (dtype.starts_with(kPrefix)) dtype.remove_prefix(kPrefix.size());
  const FileTensor* tensor = find(name);
  const auto* said = std::ranges::find(kSpellings, dtype, &Spelling::name);
  const bool is_known = said != std::end(kSpellings);
  const bool is_wide =
      is_known && (said->dtype == tensor::DType::kF32 || said->dtype == tensor::DType::kF64);
  if (tensor == nullptr || is_wide || (is_known && said->dtype == tensor->dtype)) return {};
  return invalid_field(fmt::format("dtype {}, the configuration says '{}'",
                                   tensor::dtype_name(tensor->dtype), dtype),
                       where(name));
}

Result<void> TensorReader::finish() const {
  for (const FileTensor& tensor : tensors_) {
    if (std::ranges::find(taken_, tensor.name) != taken_.end()) continue;
    return invalid_field("no dictionary of this kind has such a tensor", where(tensor.name));
  }
  return file_->check_unchanged();
}

}  // namespace rudder::steer
