#include "rudder/cuda/check_bounds.h"

#include <fmt/format.h>

#include "rudder/cuda/kernels/rows/rows.h"
#include "rudder/cuda/kernels/sampling/sample.h"
#include "rudder/cuda/kernels/taps/tapped_rows.h"

namespace rudder::cuda {

Result<void> check_stored(std::initializer_list<tensor::DType> dtypes, const ops::KvFormat& kv) {
  for (const tensor::DType dtype : dtypes) {
    if (dtype == tensor::DType::kBF16 || dtype == tensor::DType::kF8E4M3) continue;
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("the CUDA backend stores BF16 or F8_E4M3, not {}", tensor::dtype_name(dtype)),
        "dtype");
  }
  if (kv.has_codes() || kv == ops::KvFormat{tensor::DType::kBF16}) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("the CUDA backend has no KV cache of {}", ops::kv_format_name(kv)),
              "kv-cache-dtype");
}

Result<void> check_sizes(const ops::StepBounds& bounds, bool multiplies_fp8) {
  const auto too_large = [](const char* what, int64_t value, int64_t most) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the CUDA backend takes {} up to {}, not {}", what, most, value),
                "device");
  };
  if (bounds.hidden > kMaxNormWidth) return too_large("rows", bounds.hidden, kMaxNormWidth);
  if (bounds.residual_width > kMaxTappedRow) {
    return too_large("rows of all streams", bounds.residual_width, kMaxTappedRow);
  }
  if (bounds.head != nullptr && bounds.head->out > kMaxSampleVocab) {
    return too_large("vocabularies", bounds.head->out, kMaxSampleVocab);
  }
  if (multiplies_fp8 && bounds.max_linear_in > kMaxQuantisedWidth) {
    return too_large("fp8 rows", bounds.max_linear_in, kMaxQuantisedWidth);
  }
  return {};
}

}  // namespace rudder::cuda
