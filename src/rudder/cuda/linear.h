// Linear: the weights of one device and their products. For each shape of weight and each bucket of
// tokens it uses one kernel, which was fastest when it was measured here (kernel_policy.h): one of
// our own for few tokens, or cuBLASLt with one of its algorithms. prepare() makes this choice
// before the first step. In batch-invariant mode only kernels of our own take part that give an
// element the same bits in any number of tokens; a shape that they do not take has one kernel of
// the library for all. CudaOps owns it; its thread uses it.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rudder/cuda/cublaslt_api.h"
#include "rudder/cuda/device_memory.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/kernel_policy.h"
#include "rudder/cuda/kernels/products/low_bits.h"
#include "rudder/cuda/kernels/products/product_scales.h"
#include "rudder/cuda/product.h"
#include "rudder/cuda/uploader.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

class ShapeKernels;
class Tuner;

// Parts stacked along `out`, on the device.
struct CudaWeight final : ops::PackedWeight {
  // [out, in] bf16 | e4m3; of LowBits: its blocks, [experts, bytes] u8 (1: no mixture)
  ops::View weight;
  ops::View scale;  // [out] f32, of e4m3: value = stored * scale; of LowBits: its row factors
  LowBits low;
  bool interleaves = false;  // LowBits of experts: rows of gate and up in turn (few_pairs.h)
  ops::View bias;            // [out] bf16; optional
  mutable const ShapeKernels* kernels = nullptr;  // of its shape: of the Linear that prepared it
};
inline const CudaWeight& cuda_weight(const ops::LinearWeight& weight) {
  return static_cast<const CudaWeight&>(*weight.packed);
}

// [out] bf16 of all parts; empty: they have none.
Result<ops::View> upload_biases(std::span<const ops::LinearPart> parts, DeviceMemory& memory,
                                Uploader& uploader, cudaStream_t stream);

// Whether the kernel that multiplies `next` (null: unknown) by so many tokens fetches weights while
// kernels in front of it run, so that the one right in front had better let it begin.
bool fetches_ahead(const ops::LinearWeight* next, int64_t tokens);

struct LinearSettings {
  // Dtype of weights and of the inputs of products; kF8E4M3: both are quantised. Parts that are
  // F8E4M3 in the checkpoint keep their bytes.
  tensor::DType dtype = tensor::DType::kBF16;
  tensor::DType head_dtype = tensor::DType::kBF16;  // of the output head's, likewise
  ops::WeightFormat low = {};    // of U4 or I8: wide weights but the head's are rounded to it
  std::string policy_path;       // empty: measurements are not kept
  bool tune = true;              // false: the library's first guess
  bool batch_invariant = false;  // a shape's sums have one order, for any tokens
  // Of a rank: prepare() runs every kernel once. A library loads one at its first launch, and may
  // wait for the device, which then waits for other ranks.
  bool loads_all = false;
  int32_t num_sms = 132;
};

// What products with the weight read.
inline tensor::DType input_dtype(const ops::LinearWeight& weight) {
  return weight.input == ops::InputForm::kF8Rows ? tensor::DType::kF8E4M3 : tensor::DType::kBF16;
}

class Linear {
 public:
  // API, memory and status outlive it. `policy`: what another one of this GPU measures, and this
  // one then does not; null: that of the file.
  static Result<std::unique_ptr<Linear>> make(const CublasLtApi& api,
                                              const LinearSettings& settings,
                                              const PolicyIdentity& identity, DeviceMemory& memory,
                                              cudaStream_t stream, DeviceStatus& status,
                                              std::shared_ptr<KernelPolicy> policy = nullptr);
  ~Linear();

  // ops::Ops::stored_format and format_for, and what makes of parts what they say.
  // Parts of several low-bit formats become one (low_weight.h), so that a weight is one product.
  Result<ops::WeightFormat> stored_format(const ops::WeightFormat& file) const;
  Result<ops::WeightFormat> format_for(const ops::WeightFormat& file, ops::ProductUse use) const;
  Result<ops::LinearWeight> make_weight(std::span<const ops::LinearPart> parts, Uploader& uploader);

  bool multiplies_fp8() const { return multiplies_fp8_; }  // true when a weight is fp8
  // For make(). prepare() writes it; others read it when they multiply, which is later.
  const std::shared_ptr<KernelPolicy>& policy() const { return policy_; }

  // Chooses the kernels of every shape of a model: for up to `max_tokens`; for the head, whose
  // products are f32, for up to `max_rows`; null where that was done before. A measurement rotates
  // through the weights of a shape. An Error names a shape that no kernel takes.
  Result<void> prepare(std::span<const ops::LinearWeight> linears, const ops::LinearWeight* head,
                       int64_t max_tokens, int64_t max_rows);

  // y = x · W^T (+ bias), then the soft-cap when it is not 0. What prepare() has not settled is
  // multiplied as the policy says, or by guess. Faults go to the status.
  // Returns the scales that the reader of y has to apply; none unless `reader_scales`.
  ProductScales multiply(const ops::View& x, const ops::View& x_scale,
                         const ops::LinearWeight& weight, const ops::View& y, float softcap,
                         bool reader_scales, const char* op);

  // A scale is in front of the soft-cap, which a product applies itself: both have a pass of their
  // own then.
  void logits(const ops::LogitsArgs& args);

  // Kernel and time of every shape and bucket that is settled, for people.
  std::string to_table() const;

 private:
  Linear(const CublasLtApi& api, const LinearSettings& settings, DeviceMemory& memory,
         cudaStream_t stream, DeviceStatus& status, std::shared_ptr<KernelPolicy> policy);

  Result<ops::WeightFormat> store_parts(std::span<const ops::LinearPart> parts, int64_t out,
                                        Uploader& uploader, CudaWeight& weight);
  Result<void> store_part(const ops::LinearPart& part, int64_t first_row, CudaWeight& weight,
                          Uploader& uploader);
  // Our kernels fetch weights before the kernel in front of them has ended: what fills a weight has
  // ended long before.
  void finish_loading();
  // A shape of weight, and what prepare() is to settle for it.
  struct Job {
    ShapeKernels* shape_kernels = nullptr;
    int64_t max_tokens = 0;
    std::vector<ops::LinearWeight> weights;
  };
  Result<void> add_job(const ops::LinearWeight& weight, tensor::DType out_dtype, int64_t max_tokens,
                       std::vector<Job>& jobs);
  Result<std::unique_ptr<Tuner>> make_tuner(std::span<const Job> jobs) const;
  Result<void> measure(std::span<const Job> jobs);
  Result<void> settle_invariant(std::span<const Job> jobs);
  Result<void> load_all(std::span<const Job> jobs);
  Result<void> keep_policy(size_t measured) const;
  Result<ShapeKernels*> kernels_of(const ops::LinearWeight& weight, tensor::DType out_dtype);
  Result<void> make_low_room();
  // The bucket's kernel as it was measured; true when the policy has one that is there.
  bool settle_as_known(ShapeKernels& shape_kernels, int64_t bucket) const;

  const CublasLtApi& api_;
  const LinearSettings settings_;
  DeviceMemory& memory_;
  const cudaStream_t stream_;
  DeviceStatus& status_;
  cublasLtHandle_t handle_ = nullptr;
  const std::shared_ptr<KernelPolicy> policy_;
  Product::Workspace workspace_;
  ops::View low_parts_;  // LowProductParams; made with the first low-bit weight
  ops::View low_flags_;
  bool is_reader_ = false;   // of weights that another one has made
  bool is_loading_ = false;  // weights were made since the last product
  bool multiplies_fp8_ = false;
  std::map<PolicyKey, std::unique_ptr<ShapeKernels>> kernels_;  // bucket 0
};

}  // namespace rudder::cuda
