#include "rudder/cuda/product.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rudder/base/check.h"

namespace rudder::cuda {
namespace {

using tensor::DType;

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kF32:
      return CUDA_R_32F;
    default:
      RUDDER_CHECK(dtype == DType::kBF16, "{}", tensor::dtype_name(dtype));
      return CUDA_R_16BF;
  }
}

static_assert(sizeof(Product::Algorithm) == sizeof(cublasLtMatmulAlgo_t));

cublasLtMatmulAlgo_t library_algorithm(const Product::Algorithm& algorithm) {
  cublasLtMatmulAlgo_t out = {};
  std::memcpy(&out, algorithm.data.data(), sizeof(out));
  return out;
}

// RAII for the library's preference object.
class Preference {
 public:
  explicit Preference(const CublasLtApi& api) : api_(api) {}
  ~Preference() {
    if (handle_ != nullptr) api_.preference_destroy(handle_);
  }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  cublasStatus_t make() { return api_.preference_create(&handle_); }
  template <typename T>
  cublasStatus_t set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    return api_.preference_set(handle_, attribute, &value, sizeof(value));
  }
  cublasLtMatmulPreference_t handle() const { return handle_; }

 private:
  const CublasLtApi& api_;
  cublasLtMatmulPreference_t handle_ = nullptr;
};

}  // namespace

#define RUDDER_LT_RETURN(call)                                        \
  do {                                                                \
    const cublasStatus_t rudder_status = (call);                      \
    if (rudder_status != CUBLAS_STATUS_SUCCESS) return rudder_status; \
  } while (false)

std::string ProductShape::to_string() const {
  return fmt::format("[{} -> {}] {} to {}{}{}", in, out, tensor::dtype_name(dtype),
                     tensor::dtype_name(out_dtype), bias ? " with bias" : "",
                     scales == ScaleMode::kOuter ? " with scales" : "");
}

int64_t row_alignment(int64_t width, DType dtype) {
  const int64_t bytes = width * static_cast<int64_t>(tensor::dtype_bytes(dtype));
  return std::min<int64_t>(16, bytes & -bytes);
}

std::string product_refusal(const ProductShape& shape) {
  if (shape.out < 1 || shape.in < 1 || shape.out > INT32_MAX || shape.in > INT32_MAX) {
    return fmt::format("{}: its sizes are out of range", shape.to_string());
  }
  if (shape.dtype == DType::kF8E4M3 && (shape.in % 16 != 0 || shape.out % 16 != 0)) {
    return fmt::format("{}: fp8 products need multiples of 16", shape.to_string());
  }
  return {};
}

Result<std::unique_ptr<Product>> Product::make(const CublasLtApi& api, cublasLtHandle_t handle,
                                               const ProductShape& shape) {
  if (const std::string why = product_refusal(shape); !why.empty()) {
    return fail(ErrorCode::kUnsupported, why, "quantization");
  }
  std::unique_ptr<Product> product(new Product(api, handle, shape));
  const cublasStatus_t status = product->set_up();
  if (status != CUBLAS_STATUS_SUCCESS) {
    return tl::unexpected(product->library_error(status, "descriptors", 0));
  }
  return product;
}

Product::~Product() {
  if (desc_ != nullptr) api_.desc_destroy(desc_);
  for (cublasLtMatrixLayout_t layout : {weight_, x_, y_}) {
    if (layout != nullptr) api_.layout_destroy(layout);
  }
}

cublasStatus_t Product::set_up() {
  RUDDER_LT_RETURN(api_.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    return api_.desc_set(desc_, attribute, &value, sizeof(value));
  };
  RUDDER_LT_RETURN(set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{CUBLAS_OP_T}));
  RUDDER_LT_RETURN(set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{CUBLAS_OP_N}));
  if (shape_.dtype == DType::kF8E4M3) {
    RUDDER_LT_RETURN(set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1}));
    if (shape_.scales == ScaleMode::kOuter) {
      const int32_t outer = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      RUDDER_LT_RETURN(set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, outer));
      RUDDER_LT_RETURN(set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, outer));
    }
  }
  if (shape_.bias) {
    RUDDER_LT_RETURN(set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_BIAS}));
    RUDDER_LT_RETURN(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{CUDA_R_16BF}));
  }
  // The heuristics ask how a pointer is aligned, not where it points; run() sets the real ones.
  const auto* aligned = reinterpret_cast<const float*>(uintptr_t{256});
  RUDDER_LT_RETURN(set_pointers({.bias = aligned, .x_scale = aligned, .w_scale = aligned}));
  const cudaDataType_t in_type = data_type(shape_.dtype);
  const auto in = static_cast<uint64_t>(shape_.in);
  const auto out = static_cast<uint64_t>(shape_.out);
  RUDDER_LT_RETURN(api_.layout_create(&weight_, in_type, in, out, shape_.in));
  RUDDER_LT_RETURN(api_.layout_create(&x_, in_type, in, 1, shape_.in));
  return api_.layout_create(&y_, data_type(shape_.out_dtype), out, 1, shape_.out);
}

cublasStatus_t Product::set_tokens(int64_t tokens) {
  const auto columns = static_cast<uint64_t>(tokens);
  RUDDER_LT_RETURN(api_.layout_set(x_, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns)));
  return api_.layout_set(y_, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns));
}

cublasStatus_t Product::set_pointers(const Operands& operands) {
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const void* pointer) {
    return api_.desc_set(desc_, attribute, &pointer, sizeof(pointer));
  };
  if (shape_.bias) RUDDER_LT_RETURN(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias));
  if (shape_.scales == ScaleMode::kOuter) {
    RUDDER_LT_RETURN(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.w_scale));
    RUDDER_LT_RETURN(set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.x_scale));
  }
  return CUBLAS_STATUS_SUCCESS;
}

Result<std::vector<Product::Algorithm>> Product::candidates(int64_t tokens, size_t workspace_bytes,
                                                            int max_count, bool whole_sums) {
  Preference preference(api_);
  const auto prepare = [&] {
    RUDDER_LT_RETURN(preference.make());
    RUDDER_LT_RETURN(preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes));
    // Parts of a sum are added as fp32 too, not as they are stored in y.
    const uint32_t reduction =
        whole_sums ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    RUDDER_LT_RETURN(preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction));
    const auto x = static_cast<uint32_t>(row_alignment(shape_.in, shape_.dtype));
    const auto y = static_cast<uint32_t>(row_alignment(shape_.out, shape_.out_dtype));
    RUDDER_LT_RETURN(preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x));
    RUDDER_LT_RETURN(preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y));
    RUDDER_LT_RETURN(preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y));
    return set_tokens(tokens);
  };
  if (const cublasStatus_t status = prepare(); status != CUBLAS_STATUS_SUCCESS) {
    return tl::unexpected(library_error(status, "preference", tokens));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(max_count));
  int count = 0;
  const cublasStatus_t status = api_.algo_get_heuristic(
      handle_, desc_, weight_, x_, y_, y_, preference.handle(), max_count, results.data(), &count);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return tl::unexpected(library_error(status, "cublasLtMatmulAlgoGetHeuristic", tokens));
  }
  std::vector<Algorithm> found;
  for (int i = 0; i < count; ++i) {
    if (results[static_cast<size_t>(i)].state != CUBLAS_STATUS_SUCCESS) continue;
    Algorithm algorithm;
    std::memcpy(algorithm.data.data(), &results[static_cast<size_t>(i)].algo,
                sizeof(algorithm.data));
    // One algorithm serves a bucket: all counts from just above half of it.
    if (!accepts(algorithm, tokens / 2 + 1, workspace_bytes)) continue;
    found.push_back(algorithm);
  }
  if (found.empty()) {
    return tl::unexpected(library_error(CUBLAS_STATUS_NOT_SUPPORTED, "the heuristics", tokens));
  }
  return found;
}

bool Product::accepts(const Algorithm& algorithm, int64_t tokens, size_t workspace_bytes) {
  if (set_tokens(tokens) != CUBLAS_STATUS_SUCCESS) return false;
  const cublasLtMatmulAlgo_t algo = library_algorithm(algorithm);
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      api_.algo_check(handle_, desc_, weight_, x_, y_, y_, &algo, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes;
}

Result<void> Product::run(const Operands& operands, const Algorithm& algorithm,
                          const Workspace& workspace, cudaStream_t stream) {
  constexpr float kOne = 1;
  constexpr float kZero = 0;
  const cublasLtMatmulAlgo_t algo = library_algorithm(algorithm);
  cublasStatus_t status = set_tokens(operands.tokens);
  if (status == CUBLAS_STATUS_SUCCESS) status = set_pointers(operands);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status =
        api_.matmul(handle_, desc_, &kOne, operands.weight, weight_, operands.x, x_, &kZero,
                    operands.y, y_, operands.y, y_, &algo, workspace.data, workspace.bytes, stream);
  }
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return tl::unexpected(library_error(status, "cublasLtMatmul", operands.tokens));
}

Error Product::library_error(cublasStatus_t status, const char* call, int64_t tokens) const {
  return Error{ErrorCode::kInternal,
               fmt::format("cuBLASLt: {} for {} tokens of {}: {}", call, tokens, shape_.to_string(),
                           api_.status_string(status)),
               "device"};
}

}  // namespace rudder::cuda
