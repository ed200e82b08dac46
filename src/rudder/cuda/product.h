// Product: y[T, out] = x[T, in] · W[out, in]^T, all row-major, as cuBLASLt computes it for one
// shape of weight and any T. In the library's column-major terms: D[out × T] = A^T · B with A = W
// as [in × out], B = x as [in × T]. Sums are fp32. Made at start, run by the thread of the Ops.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/cuda/cublaslt_api.h"
#include "rudder/tensor/dtype.h"

namespace rudder::cuda {

// How an fp8 product takes its scales (a bf16 one has none).
enum class ScaleMode : uint8_t {
  kUnit,   // it does not: y is the product of the stored values, the caller scales rows and columns
  kOuter,  // by the library: y[t, o] = x_scale[t] * w_scale[o] * sum
};

struct ProductShape {
  int64_t out = 0;
  int64_t in = 0;
  tensor::DType dtype = tensor::DType::kBF16;      // of x and W: kBF16, or kF8E4M3
  tensor::DType out_dtype = tensor::DType::kBF16;  // of y: kBF16 or kF32
  bool bias = false;                               // the library adds it: [out] bf16
  ScaleMode scales = ScaleMode::kUnit;

  bool operator==(const ProductShape&) const = default;
  std::string to_string() const;  // "[18944 -> 3584] F8_E4M3 to BF16"
};

// Of device memory that a product may use beside its operands.
inline constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

// Alignment in bytes that rows of `width` elements have in a buffer whose start has 16.
int64_t row_alignment(int64_t width, tensor::DType dtype);

// Empty when the library multiplies this shape, else why not (fp8 asks for multiples of 16).
std::string product_refusal(const ProductShape& shape);

class Product {
 public:
  struct Algorithm {
    std::array<uint64_t, 8> data = {};  // cublasLtMatmulAlgo_t
    bool operator==(const Algorithm&) const = default;
  };
  struct Operands {
    const void* x = nullptr;
    const void* weight = nullptr;
    const void* bias = nullptr;
    const float* x_scale = nullptr;  // both only with kOuter
    const float* w_scale = nullptr;
    void* y = nullptr;
    int64_t tokens = 0;
  };
  struct Workspace {
    void* data = nullptr;
    size_t bytes = 0;
  };

  static Result<std::unique_ptr<Product>> make(const CublasLtApi& api, cublasLtHandle_t handle,
                                               const ProductShape& shape);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  // What the library proposes for `tokens`, best guess first; only what also runs for fewer tokens.
  // whole_sums: none that adds a sum of parts.
  Result<std::vector<Algorithm>> candidates(int64_t tokens, size_t workspace_bytes, int max_count,
                                            bool whole_sums = false);
  // The library accepts the algorithm for this many tokens (one from a file may be anything).
  bool accepts(const Algorithm& algorithm, int64_t tokens, size_t workspace_bytes);

  Result<void> run(const Operands& operands, const Algorithm& algorithm, const Workspace& workspace,
                   cudaStream_t stream);

  const ProductShape& shape() const { return shape_; }

 private:
  Product(const CublasLtApi& api, cublasLtHandle_t handle, const ProductShape& shape)
      : api_(api), handle_(handle), shape_(shape) {}
  cublasStatus_t set_up();
  cublasStatus_t set_tokens(int64_t tokens);
  cublasStatus_t set_pointers(const Operands& operands);
  Error library_error(cublasStatus_t status, const char* call, int64_t tokens) const;

  const CublasLtApi& api_;
  const cublasLtHandle_t handle_;
  const ProductShape shape_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t y_ = nullptr;
};

}  // namespace rudder::cuda
