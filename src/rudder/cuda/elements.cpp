#include "rudder/cuda/elements.h"

#include <fmt/format.h>

#include "rudder/base/check.h"
#include "rudder/cuda/kernels/rows/convert.h"

namespace rudder::cuda {

using tensor::DType;

bool castable(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

Element element_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return Element::kF32;
    case DType::kF16:
      return Element::kF16;
    case DType::kBF16:
      return Element::kBf16;
    default:
      RUDDER_CHECK(dtype == DType::kF8E4M3, "{}", tensor::dtype_name(dtype));
      return Element::kFp8;
  }
}

KvType kv_type_of(const ops::KvLayer& kv) {
  const ops::KvFormat format = kv.format();
  if (!format.has_codes()) return KvType::kBf16;
  if (!format.scales_tokens) return KvType::kFp8E4m3;
  return format.dtype == tensor::DType::kI8 ? KvType::kInt8Tokens : KvType::kFp8Tokens;
}

std::string shapes(std::initializer_list<const tensor::View*> views) {
  std::string text;
  for (const tensor::View* view : views) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", view->shape.to_string(),
                        tensor::dtype_name(view->dtype));
  }
  return text;
}

Result<void> upload_cast(Uploader& uploader, const tensor::View& host, const tensor::View& device,
                         cudaStream_t stream) {
  RUDDER_CHECK(host.shape.numel() == device.shape.numel());
  if (host.dtype == device.dtype) {
    return uploader.copy(host.data, device.data, static_cast<int64_t>(host.bytes()));
  }
  if (!castable(host.dtype) || !castable(device.dtype)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the CUDA backend cannot convert {} to {}",
                            tensor::dtype_name(host.dtype), tensor::dtype_name(device.dtype)));
  }
  const auto from_bytes = static_cast<int64_t>(tensor::dtype_bytes(host.dtype));
  const auto to_bytes = static_cast<int64_t>(tensor::dtype_bytes(device.dtype));
  return uploader.for_each_piece(host.data, static_cast<int64_t>(host.bytes()), from_bytes,
                                 [&](const void* piece, int64_t offset, int64_t bytes) {
                                   CastParams params;
                                   params.from = piece;
                                   params.from_element = element_of(host.dtype);
                                   params.to = static_cast<char*>(device.data) +
                                               offset / from_bytes * to_bytes;
                                   params.to_element = element_of(device.dtype);
                                   params.count = bytes / from_bytes;
                                   return launch_cast(params, stream);
                                 });
}

}  // namespace rudder::cuda
