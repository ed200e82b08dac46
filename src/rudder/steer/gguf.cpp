// GGUF control vectors: a file of architecture "controlvector" whose tensors are not in blocks.
#include <fmt/format.h>

#include "rudder/steer/file_tensor.h"
#include "rudder/weights/gguf.h"

namespace rudder::steer {
namespace {

Result<tensor::DType> dtype_of(const weights::GgufFile& gguf, const weights::GgufTensor& tensor) {
  switch (tensor.type->number) {
    case weights::kGgufF32:
      return tensor::DType::kF32;
    case weights::kGgufF16:
      return tensor::DType::kF16;
    case weights::kGgufF64:
      return tensor::DType::kF64;
    case weights::kGgufBF16:
      return tensor::DType::kBF16;
    default:
      return fail(ErrorCode::kUnsupported,
                  fmt::format("tensor type {}: F64, F32, F16 or BF16 is needed", tensor.type->name),
                  gguf.where_tensor(tensor.name));
  }
}

}  // namespace

Result<FileTensors> read_gguf(std::span<const std::byte> bytes, const std::string& file) {
  RUDDER_TRY(const weights::GgufFile gguf, weights::GgufFile::parse(bytes, file));
  RUDDER_TRY(const std::string_view architecture, gguf.text_or("general.architecture", ""));
  if (architecture != "controlvector") {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("a GGUF of architecture '{}': steering is a 'controlvector'", architecture),
        file);
  }
  FileTensors out;
  RUDDER_TRY(out.model_hint, gguf.text_or("controlvector.model_hint", ""));
  for (const weights::GgufTensor& one : gguf.tensors()) {
    FileTensor& tensor = out.tensors.emplace_back();
    tensor.name = one.name;
    RUDDER_TRY(tensor.dtype, dtype_of(gguf, one));
    const auto extents = one.shape.extents();
    tensor.shape.assign(extents.begin(), extents.end());
    tensor.bytes = one.bytes;
  }
  return out;
}

}  // namespace rudder::steer
