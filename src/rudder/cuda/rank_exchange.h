// RankExchange: what the ops of one rank ask of the others (kernels/peers/peer.h), from their
// arguments to the launch of a kernel. CudaOps has one where it is a rank of a group.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>

#include "rudder/cuda/device_memory.h"
#include "rudder/cuda/kernels/peers/peer_residual.h"
#include "rudder/cuda/kernels/qkv/qkv_prep.h"
#include "rudder/cuda/peer_comm.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

// Of a reader, which is no rank: the columns that `parts` have of rows [rows, .] f32, in `out`.
// They may lie on other GPUs of the group.
cudaError_t put_side_by_side(std::span<const ops::View> parts, const ops::View& out,
                             cudaStream_t stream);

class RankExchange {
 public:
  RankExchange(std::shared_ptr<PeerComm> comm, cudaStream_t stream)
      : comm_(std::move(comm)), stream_(stream) {}

  // Of ops that are enqueued between this call and the next: whether they are captured.
  void set_capturing(bool is_capturing) { is_capturing_ = is_capturing; }
  Result<void> prepare(DeviceMemory& memory, int64_t max_tokens);

  // `y` [rows, cols] bf16 becomes the sum of the ranks' y. `scales` are of this rank's, if
  // takes_scales().
  static bool takes_scales(const ops::View& y);
  cudaError_t sum(const ops::View& y, const ProductScales& scales) const;
  // The sum of params.delta, which has `scales`, and the norm behind it in one kernel, if there is
  // one. What follows a sum of such rows does not matter to the other ranks.
  bool has_sum_and_norm(const ResidualNormParams& params) const;
  cudaError_t sum_and_norm(const ResidualNormParams& params, const ProductScales& scales) const;
  // Whether `params` has a norm for which gather_squares() is to be called, which completes them.
  static bool needs_squares(const QkvPrepParams& params);
  cudaError_t gather_squares(QkvPrepParams& params) const;
  cudaError_t gather_logits(const ops::GatherLogitsArgs& args) const;
  // What each rank has stored in the memory of another by now is there for that one.
  cudaError_t meet() const;
  // Rows of which each rank has the columns `part` [rows, width] bf16, side by side in `whole`.
  cudaError_t gather_columns(const ops::View& part, const ops::View& whole) const;
  // This rank's columns of `whole`, to `part`.
  cudaError_t keep_columns(const ops::View& whole, const ops::View& part) const;

 private:
  PeerResidualParams residual_params(const ResidualNormParams& norm,
                                     const ProductScales& scales) const;

  const std::shared_ptr<PeerComm> comm_;
  const cudaStream_t stream_;
  bool is_capturing_ = false;
  ops::View squares_;        // [max_tokens, 2] f32 of this rank's q and k
  ops::View ranks_squares_;  // [max_tokens, 2 * ranks] f32
};

}  // namespace rudder::cuda
