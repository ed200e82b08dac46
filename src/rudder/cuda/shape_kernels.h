// ShapeKernels: the kernels that multiply weights of one shape, one for each bucket of tokens, and
// how to launch each. Chosen at start; the thread of the Ops runs them. Owned by Linear.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rudder/cuda/kernel_policy.h"
#include "rudder/cuda/kernels/products/gemv.h"
#include "rudder/cuda/product.h"
#include "rudder/cuda/token_buckets.h"

namespace rudder::cuda {

class ShapeKernels {
 public:
  struct Device {
    const CublasLtApi* api = nullptr;
    cublasLtHandle_t handle = nullptr;
    cudaStream_t stream = nullptr;
    Product::Workspace workspace;
    int32_t num_sms = 132;
    float* low_parts = nullptr;  // LowProductParams; of a low-bit shape
    uint32_t* low_flags = nullptr;
  };
  // One product. x_scale and w_scale with fp8 operands; of low-bit weights w_scale is their row
  // factors. bias where the shape has one.
  struct Args {
    const void* x = nullptr;
    const float* x_scale = nullptr;
    const void* weight = nullptr;
    const float* w_scale = nullptr;
    const void* bias = nullptr;
    void* y = nullptr;
    int64_t tokens = 0;
    float softcap = 0.0f;
    // The reader of y applies fp8 scales and bias, if the kernel does not.
    bool reader_scales = false;
  };

  // `key.bucket` is not used. An Error: no kernel takes this shape. fixes_order: where kernels of
  // ours can, all candidates take sums in one order, whatever the number of tokens.
  static Result<std::unique_ptr<ShapeKernels>> make(const Device& device, const PolicyKey& key,
                                                    bool fixes_order = false);

  const PolicyKey& key() const { return key_; }
  int32_t num_sms() const { return device_.num_sms; }
  // Candidates of any bucket give an element the same bits.
  bool has_fixed_order() const { return fixed_splits_ > 0; }

  // Every way to compute a bucket that there is here: ours, then the library's, its best guess
  // first.
  Result<std::vector<PolicyEntry>> candidates(int64_t bucket, int max_algorithms);
  // The kernel of a bucket from now on. False: the library does not take that algorithm.
  bool settle(int64_t bucket, const PolicyEntry& entry);
  // As settle() with what candidates() puts first.
  Result<void> settle_by_guess(int64_t bucket);
  // Without a fixed order, batch-invariant: kernels of the library that take any number of tokens
  // and add no sum of parts, best guess first. An Error: there is none.
  Result<std::vector<PolicyEntry>> candidates_for_all(int max_algorithms);
  // The kernel of every number of tokens from now on; one of candidates_for_all().
  void settle_for_all(const PolicyEntry& entry) { for_all_ = entry; }
  const std::optional<PolicyEntry>& settled_for_all() const { return for_all_; }
  // Null: not settled.
  const PolicyEntry* settled(int64_t bucket) const;

  // Whether what is settled for so many tokens asks for weights before the kernel in front ends.
  bool fetches_ahead(int64_t tokens) const;
  bool fetches_ahead(int64_t tokens, const PolicyEntry& entry) const;

  // By the bucket's kernel; a bucket that is not settled is settled by guess. The value: scales and
  // bias were left to the reader.
  Result<bool> run(const Args& args);
  Result<bool> run(const Args& args, const PolicyEntry& entry);

 private:
  ShapeKernels(const Device& device, const PolicyKey& key, int32_t fixed_splits)
      : device_(device), key_(key), fixed_splits_(fixed_splits) {}

  bool is_fp8() const { return key_.dtype == tensor::DType::kF8E4M3; }
  GemvParams own_params(const Args& args) const;
  Result<void> run_own(const Args& args, const PolicyEntry& entry);
  Result<void> run_low(const Args& args, const PolicyEntry& entry);
  Result<void> run_tiles(const Args& args, const PolicyEntry& entry);
  std::vector<PolicyEntry> fixed_candidates(int64_t bucket, int most) const;
  Result<void> finish(const Args& args, bool scale, bool bias);
  Result<void> add_candidates(Product& product, ProductKernel kernel, int64_t bucket,
                              int max_algorithms, std::vector<PolicyEntry>& out);

  const Device device_;
  const PolicyKey key_;
  const int32_t fixed_splits_;      // of kernels with a fixed order; else 0
  std::unique_ptr<Product> unit_;   // null of a low-bit shape
  std::unique_ptr<Product> outer_;  // fp8 alone
  std::array<std::optional<PolicyEntry>, kNumTokenBuckets> buckets_;
  std::optional<PolicyEntry> for_all_;  // instead of the buckets'
};

}  // namespace rudder::cuda
