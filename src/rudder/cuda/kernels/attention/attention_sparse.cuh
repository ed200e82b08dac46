// Values of the tokens that some row weighs, for the split kernel under a gate. When a page's
// weights are known, a warp sends for those rows of V by cp.async; the other rows become zeros
// where they lie. The page is added when later ones have been sent for. So pages are added one by
// one in their order, as with all their values, and a page that nobody weighs costs nothing.
//
// Rows of V go to the V halves of the warp's ring, which the copy engine does not use then. The
// weights of pages that are on their way lie where the warp's sums do at the end of a part.
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"

namespace rudder::cuda {

// P: Page or FewRowsPage.
template <typename Shared, typename P>
class SparseValues {
 public:
  static constexpr int kLaneBytes = sizeof(typename P::Weights);
  static constexpr int kWeightBytes = 32 * kLaneBytes;  // of a page
  static constexpr int kMostAhead = static_cast<int>(sizeof(Shared::sums[0])) / kWeightBytes;
  // Pages whose rows are on their way, at most.
  static constexpr int kAhead = Shared::kStages < kMostAhead ? Shared::kStages : kMostAhead;
  static_assert(kAhead >= 2);

  __device__ SparseValues(const AttentionParams& params, Shared& shared, int32_t warp, int32_t lane)
      : storage_(static_cast<const uint8_t*>(params.kv_storage) + lane * 16),
        shared_(shared),
        weights_(shared_address(&shared.sums[warp][0][0]) + lane * kLaneBytes),
        warp_(warp),
        lane_(lane) {}

  // The weights of a page whose values begin at row `row` of the cache.
  __device__ void add(const typename P::Scores& s, int64_t row, typename P::Sums& out) {
    const uint32_t tokens = __reduce_or_sync(kAllLanes, P::weighed(s, lane_));
    if (tokens == 0) return;
    typename P::Weights weights;
    P::pack_weights(weights, s);
    store_shared(weights_ + stage_ * kWeightBytes, weights);
    load(row, tokens);
    if (ahead_ == kAhead) add_oldest<kAhead - 1>(out);
  }

  // Adds what is left.
  __device__ void finish(typename P::Sums& out) {
    while (ahead_ > 0) add_oldest<0>(out);
  }

 private:
  __device__ uint32_t values_of(int32_t stage) const {
    return shared_address(shared_.ring[warp_][stage][1]);
  }

  // Sends for the rows of `tokens`.
  __device__ void load(int64_t row, uint32_t tokens) {
    const uint8_t* from = storage_ + row * (P::kChunks * 16);
    const uint32_t to = values_of(stage_);
#pragma unroll
    for (int i = 0; i < kPageTokens * P::kChunks / 32; ++i) {
      const int32_t token = (i * 32 + lane_) / P::kChunks;
      const int32_t chunk = (i * 32 + lane_) % P::kChunks;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                       to + chunk / 8 * P::kGroupBytes + P::chunk_at(token, chunk % 8)),
                   "l"(from + i * 512), "r"((tokens >> token & 1) << 4)
                   : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    stage_ = stage_ + 1 == kAhead ? 0 : stage_ + 1;
    ++ahead_;
  }

  // Adds the page that was sent for first, once at most kPending others are on their way.
  template <int kPending>
  __device__ void add_oldest(typename P::Sums& out) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
    __syncwarp();
    const int32_t stage = stage_ >= ahead_ ? stage_ - ahead_ : stage_ - ahead_ + kAhead;
    typename P::Weights weights;
    load_shared(weights, weights_ + stage * kWeightBytes);
    P::template add_values<false>(out, weights, values_of(stage), kPageTokens, lane_);
    --ahead_;
    __syncwarp();
  }

  const uint8_t* const storage_;  // the lane's chunk
  Shared& shared_;
  const uint32_t weights_;  // the lane's
  const int32_t warp_;
  const int32_t lane_;
  int32_t stage_ = 0;  // where the next page's values go
  int32_t ahead_ = 0;  // pages on their way
};

}  // namespace rudder::cuda
