// Opens GPUs: one that is alone, the ranks of a group, the stages of a pipeline.
#include "rudder/cuda/open_cuda_ops.h"
#include "rudder/cuda/peer_access.h"

namespace rudder::cuda {

Result<std::unique_ptr<ops::Ops>> make_cuda_ops(const CudaOpsSettings& settings) {
  return open_cuda_ops(settings, nullptr, false);
}

Result<std::vector<std::unique_ptr<ops::Ops>>> make_cuda_ranks(const CudaOpsSettings& settings,
                                                               std::span<const int32_t> devices,
                                                               int32_t patience_ms) {
  load_kernels_early();
  RUDDER_TRY(std::vector<std::shared_ptr<PeerComm>> comms,
             PeerComm::make_group(devices, patience_ms));
  std::vector<std::unique_ptr<ops::Ops>> ranks;
  for (std::shared_ptr<PeerComm>& comm : comms) {
    CudaOpsSettings of_rank = settings;
    of_rank.device = comm->device();
    RUDDER_TRY(ranks.emplace_back(), open_cuda_ops(of_rank, std::move(comm), false));
  }
  return ranks;
}

Result<std::vector<std::unique_ptr<ops::Ops>>> make_cuda_stages(const CudaOpsSettings& settings,
                                                                std::span<const int32_t> devices) {
  load_kernels_early();
  RUDDER_TRY_VOID(enable_peer_access(devices, "pipeline-parallel-size"));
  std::vector<std::unique_ptr<ops::Ops>> stages;
  for (const int32_t device : devices) {
    CudaOpsSettings of_stage = settings;
    of_stage.device = device;
    RUDDER_TRY(stages.emplace_back(), open_cuda_ops(of_stage, nullptr, true));
  }
  return stages;
}

}  // namespace rudder::cuda
