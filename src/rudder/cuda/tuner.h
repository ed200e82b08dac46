// Tuner: measures the kernels of a ShapeKernels on the device with the weights of the model, layer
// after layer, so that a weight comes from memory as it does in a step. It also checks that a
// kernel is batch-invariant. Used while a model is prepared.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <vector>

#include "rudder/cuda/shape_kernels.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

class Tuner {
 public:
  // Room for products of up to so many tokens, and values for them to work on. An Error: there is
  // no memory for it.
  static Result<std::unique_ptr<Tuner>> make(cudaStream_t stream, int64_t x_bytes, int64_t y_bytes,
                                             int64_t max_tokens);
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  // The fastest of the shape's candidates for the bucket, with its time. `weights` have the shape's
  // shape. A candidate that the library then refuses is passed over; an Error: none is left, or the
  // device has failed.
  Result<PolicyEntry> fastest(ShapeKernels& shape_kernels, int64_t bucket,
                              std::span<const ops::LinearWeight> weights);

  // Multiplies by the bucket's kernel, so that the library has loaded it.
  Result<void> run_once(ShapeKernels& shape_kernels, int64_t bucket,
                        const ops::LinearWeight& weight);

  // Multiplies some rows in batches of many sizes up to `max_tokens`, at many places: true when
  // each row gave the same bits in all.
  Result<bool> rows_are_independent(ShapeKernels& shape_kernels, const PolicyEntry& entry,
                                    int64_t max_tokens, const ops::LinearWeight& weight);

 private:
  explicit Tuner(cudaStream_t stream) : stream_(stream) {}
  ShapeKernels::Args args_of(const ShapeKernels& shape_kernels, int64_t tokens,
                             const ops::LinearWeight& weight) const;
  Result<void> fill_fp8(int64_t bytes);
  Result<void> measure_again(ShapeKernels& shape_kernels, int64_t bucket,
                             std::span<const ops::LinearWeight> weights,
                             std::vector<PolicyEntry>& measured);
  Result<double> microseconds(ShapeKernels& shape_kernels, const PolicyEntry& entry, int64_t tokens,
                              std::span<const ops::LinearWeight> weights, int repeats);

  // The bits of row `row` of the product of the `tokens` rows of x from `first` on.
  Result<std::vector<char>> row_of(ShapeKernels& shape_kernels, const PolicyEntry& entry,
                                   const ops::LinearWeight& weight, int64_t first, int64_t tokens,
                                   int64_t row);

  const cudaStream_t stream_;
  void* x_ = nullptr;
  void* y_ = nullptr;
  void* x_scale_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  size_t next_weight_ = 0;
};

}  // namespace rudder::cuda
