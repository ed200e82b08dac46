#include "rudder/cuda/rank_exchange.h"

#include "rudder/cuda/kernels/peers/peer.h"

namespace rudder::cuda {
namespace {

// A sum of more bytes goes in two shots where more than two ranks add it.
constexpr int64_t kOneShotBytes = int64_t{512} << 10;
// The same of a sum with no flags, whose exchanges are shorter.
constexpr int64_t kOneShotRowBytes = int64_t{128} << 10;

PeerSumParams params_of_sum(const ops::View& y) {
  PeerSumParams params;
  params.y = y.data;
  params.rows = y.shape[0];
  params.cols = y.shape[1];
  return params;
}

}  // namespace

cudaError_t put_side_by_side(std::span<const ops::View> parts, const ops::View& out,
                             cudaStream_t stream) {
  const auto row_bytes = [](const ops::View& view) {
    return view.bytes() / static_cast<size_t>(view.shape[0]);
  };
  char* to = static_cast<char*>(out.data);
  for (const ops::View& part : parts) {
    const size_t row = row_bytes(part);
    const cudaError_t error =
        cudaMemcpy2DAsync(to, row_bytes(out), part.data, row, row,
                          static_cast<size_t>(part.shape[0]), cudaMemcpyDeviceToDevice, stream);
    if (error != cudaSuccess) return error;
    to += row;
  }
  return cudaSuccess;
}

Result<void> RankExchange::prepare(DeviceMemory& memory, int64_t max_tokens) {
  if (!squares_.empty() && squares_.shape[0] >= max_tokens) return {};  // of another model
  const int64_t count = comm_->rank().count;
  RUDDER_TRY(squares_, memory.allocate(tensor::DType::kF32, {max_tokens, 2}));
  RUDDER_TRY(ranks_squares_, memory.allocate(tensor::DType::kF32, {max_tokens, 2 * count}));
  return {};
}

bool RankExchange::takes_scales(const ops::View& y) {
  return cuda::takes_scales(params_of_sum(y));
}

PeerResidualParams RankExchange::residual_params(const ResidualNormParams& norm,
                                                 const ProductScales& scales) const {
  PeerResidualParams params;
  params.links = comm_->links(is_capturing_);
  params.scales = scales;
  params.norm = norm;
  const bool is_two_shot = params.links.count > 2 && norm.rows * norm.hidden * 2 > kOneShotRowBytes;
  params.way = is_two_shot ? PeerWay::kTwoShot : PeerWay::kOneShot;
  return params;
}

// More rows than blocks take turns, and a kernel for each part is as fast.
bool RankExchange::has_sum_and_norm(const ResidualNormParams& params) const {
  const PeerResidualParams both = residual_params(params, {});
  return both.links.is_open && params.rows <= kPeerBlocks && has_peer_residual(both);
}

cudaError_t RankExchange::sum_and_norm(const ResidualNormParams& params,
                                       const ProductScales& scales) const {
  return launch_peer_residual_norm(residual_params(params, scales), stream_);
}

// Rows that sum_and_norm() takes are exchanged as there, so that ranks may differ in what follows.
cudaError_t RankExchange::sum(const ops::View& y, const ProductScales& scales) const {
  ResidualNormParams rows;
  rows.delta = y.data;
  rows.rows = y.shape[0];
  rows.hidden = y.shape[1];
  if (has_sum_and_norm(rows)) {
    PeerResidualParams params = residual_params(rows, scales);
    params.only_sums = true;
    return launch_peer_residual_norm(params, stream_);
  }
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

// A number of each rank, which nobody reads.
cudaError_t RankExchange::meet() const {
  PeerGatherParams params;
  params.links = comm_->links(is_capturing_);
  params.part = squares_.as<float>();
  params.out = ranks_squares_.as<float>();
  params.rows = 1;
  for (int i = 0; i <= params.links.count; ++i) params.begin[i] = i;
  return launch_peer_gather(params, stream_);
}

cudaError_t RankExchange::gather_columns(const ops::View& part, const ops::View& whole) const {
  constexpr int64_t kPair = 2;  // numbers of bf16 go as a float does
  if (part.shape[1] % kPair != 0) return cudaErrorInvalidValue;
  PeerGatherParams params;
  params.links = comm_->links(is_capturing_);
  params.part = static_cast<const float*>(part.data);
  params.out = static_cast<float*>(whole.data);
  params.rows = part.shape[0];
  for (int i = 0; i <= params.links.count; ++i) {
    params.begin[i] = static_cast<int32_t>(i * part.shape[1] / kPair);
  }
  return launch_peer_gather(params, stream_);
}

cudaError_t RankExchange::keep_columns(const ops::View& whole, const ops::View& part) const {
  const size_t row = static_cast<size_t>(part.shape[1]) * tensor::dtype_bytes(part.dtype);
  const char* const from = static_cast<const char*>(whole.data) + comm_->rank().index * row;
  return cudaMemcpy2DAsync(part.data, row, from, row * comm_->rank().count, row,
                           static_cast<size_t>(part.shape[0]), cudaMemcpyDeviceToDevice, stream_);
}

}  // namespace rudder::cuda
