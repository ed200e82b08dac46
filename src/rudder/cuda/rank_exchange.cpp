#include "rudder/cuda/rank_exchange.h"

#include "rudder/cuda/kernels/peer.h"

namespace rudder::cuda {
namespace {

// A sum of more bytes goes in two shots where more than two ranks add it.
constexpr int64_t kOneShotBytes = int64_t{512} << 10;

PeerSumParams params_of_sum(const ops::View& y) {
  PeerSumParams params;
  params.y = y.data;
  params.rows = y.shape[0];
  params.cols = y.shape[1];
  return params;
}

}  // namespace

Result<void> RankExchange::prepare(DeviceMemory& memory, int64_t max_tokens) {
  const int64_t count = comm_->rank().count;
  RUDDER_TRY(squares_, memory.allocate(tensor::DType::kF32, {max_tokens, 2}));
  RUDDER_TRY(ranks_squares_, memory.allocate(tensor::DType::kF32, {max_tokens, 2 * count}));
  return {};
}

bool RankExchange::takes_scales(const ops::View& y) {
  return cuda::takes_scales(params_of_sum(y));
}

cudaError_t RankExchange::sum(const ops::View& y, const ProductScales& scales) const {
  PeerSumParams params = params_of_sum(y);
  params.links = comm_->links(is_capturing_);
  params.scales = scales;
  params.is_two_shot = comm_->rank().count > 2 && static_cast<int64_t>(y.bytes()) > kOneShotBytes;
  return launch_peer_sum(params, stream_);
}

bool RankExchange::needs_squares(const QkvPrepParams& params) {
  return params.q_norm != nullptr && params.q_alpha == nullptr;
}

cudaError_t RankExchange::gather_squares(QkvPrepParams& params) const {
  const cudaError_t error = launch_qkv_squares(params, squares_.as<float>(), stream_);
  if (error != cudaSuccess) return error;
  PeerGatherParams gather;
  gather.links = comm_->links(is_capturing_);
  gather.part = squares_.as<float>();
  gather.out = ranks_squares_.as<float>();
  gather.rows = params.rows;
  for (int i = 0; i <= gather.links.count; ++i) gather.begin[i] = 2 * i;
  params.rank_squares = gather.out;
  params.num_ranks = gather.links.count;
  return launch_peer_gather(gather, stream_);
}

cudaError_t RankExchange::gather_logits(const ops::GatherLogitsArgs& args) const {
  const int64_t vocab = args.out.shape[1];
  PeerGatherParams params;
  params.links = comm_->links(is_capturing_);
  params.part = args.part.as<float>();
  params.out = args.out.as<float>();
  params.rows = args.out.shape[0];
  const int32_t count = params.links.count;
  for (int32_t i = 0; i < count; ++i) {
    params.begin[i] = static_cast<int32_t>(ops::vocab_share(vocab, {i, count}).begin);
  }
  params.begin[count] = static_cast<int32_t>(vocab);
  return launch_peer_gather(params, stream_);
}

}  // namespace rudder::cuda
