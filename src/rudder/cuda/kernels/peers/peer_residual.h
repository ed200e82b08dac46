// The sum of ranks (peer.h) and the residual norm behind it (rows.h) in one kernel: a cluster of
// blocks has a row, exchanges it with the same blocks of the peers, and keeps the sum in its
// registers while it adds and norms. Launched by the host class of this room, on every rank with
// equal sizes. Bits are those of launch_peer_sum() and launch_residual_norm(); the branch is not
// written.
//
// Moves, of T rows of H columns, T * H * 2 bytes to each peer (twice that over the number of
// ranks two-shot), and of memory what the residual norm does. Floors: docs/adr/0052.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/peers/peer.h"
#include "rudder/cuda/kernels/rows/rows.h"

namespace rudder::cuda {

// As of PeerSumParams: every rank adds all, or each adds its part and sends the sums on. No flag
// stands behind what is stored, which would wait until all has arrived: every word tells by itself
// that it has come.
enum class PeerWay : uint8_t { kOneShot, kTwoShot };

struct PeerResidualParams {
  PeerLinks links;
  ProductScales scales;     // of norm.delta
  ResidualNormParams norm;  // `delta`: this rank's numbers; no delta_scales, no alphas
  PeerWay way = PeerWay::kOneShot;
  // delta = the sum, and nothing else of `norm`. On the wire it is the same: ranks may differ here.
  bool only_sums = false;
  // Blocks of a row, a power of two up to 8; 0: as many as the kernel's kPeerBlocks blocks give
  // each row, or each warp of it. A row that these have no threads for has more. Equal on all
  // ranks.
  int32_t row_blocks = 0;
};
// Whether there is a kernel: of 2 or 4 ranks, norms that are RMS, aligned rows up to kMaxNormWidth.
bool has_peer_residual(const PeerResidualParams& params);
// `links` are open.
cudaError_t launch_peer_residual_norm(const PeerResidualParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
