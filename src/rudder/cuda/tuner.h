// Measures the kernels of a ShapePlan on the device, on the weights of the model: layer after
// layer, so that a weight comes from memory as it does in a step. Used while a model is prepared.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>

#include "rudder/cuda/shape_plan.h"
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

  // The fastest of the plan's candidates for the bucket, with its time. `weights` have the plan's
  // shape. A candidate that the library then refuses is passed over; an Error: none is left, or the
  // device has failed.
  Result<PolicyEntry> fastest(ShapePlan& plan, int64_t bucket,
                              std::span<const ops::LinearWeight> weights);

 private:
  explicit Tuner(cudaStream_t stream) : stream_(stream) {}
  Result<double> microseconds(ShapePlan& plan, const PolicyEntry& entry, int64_t tokens,
                              std::span<const ops::LinearWeight> weights, int repeats);

  const cudaStream_t stream_;
  void* x_ = nullptr;
  void* y_ = nullptr;
  void* x_scale_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  size_t next_weight_ = 0;
};

}  // namespace rudder::cuda
