// Opens GPUs: one that is alone, the ranks of a group, the stages of a pipeline.
#include "rudder/cuda/open_cuda_ops.h"
#include "rudder/cuda/peer_access.h"

namespace rudder::cuda {
namespace {

// Adds the ranks of one group.
Result<void> open_group(const CudaOpsSettings& settings, std::span<const int32_t> devices,
                        int32_t patience_ms, bool is_stage,
                        std::vector<std::unique_ptr<ops::Ops>>& ranks) {
  RUDDER_TRY(std::vector<std::shared_ptr<PeerComm>> comms,
             PeerComm::make_group(devices, patience_ms));
  for (std::shared_ptr<PeerComm>& comm : comms) {
    CudaOpsSettings of_rank = settings;
    of_rank.device = comm->device();
    RUDDER_TRY(ranks.emplace_back(), open_cuda_ops(of_rank, std::move(comm), is_stage));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ops::Ops>> make_cuda_ops(const CudaOpsSettings& settings) {
  return open_cuda_ops(settings, nullptr, false);
}

Result<std::vector<std::unique_ptr<ops::Ops>>> make_cuda_ranks(const CudaOpsSettings& settings,
                                                               std::span<const int32_t> devices,
                                                               int32_t patience_ms) {
  load_kernels_early();
  std::vector<std::unique_ptr<ops::Ops>> ranks;
  RUDDER_TRY_VOID(open_group(settings, devices, patience_ms, false, ranks));
  return ranks;
}

Result<std::vector<std::unique_ptr<ops::Ops>>> make_cuda_stages(const CudaOpsSettings& settings,
                                                                std::span<const int32_t> devices,
                                                                int32_t num_ranks) {
  load_kernels_early();
  RUDDER_TRY_VOID(check_each_its_own(devices, "pipeline-parallel-size"));
  RUDDER_TRY_VOID(enable_peer_access(devices, "pipeline-parallel-size"));
  std::vector<std::unique_ptr<ops::Ops>> stages;
  const auto of_stage = static_cast<size_t>(num_ranks);
  for (size_t first = 0; first < devices.size(); first += of_stage) {
    if (num_ranks > 1) {
      RUDDER_TRY_VOID(open_group(settings, devices.subspan(first, of_stage), PeerComm::kPatienceMs,
                                 true, stages));
      continue;
    }
    CudaOpsSettings alone = settings;
    alone.device = devices[first];
    RUDDER_TRY(stages.emplace_back(), open_cuda_ops(alone, nullptr, true));
  }
  return stages;
}

}  // namespace rudder::cuda
