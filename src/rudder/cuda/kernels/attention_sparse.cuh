// Values of the tokens that some row weighs, for the split kernel under a gate. A warp collects
// such tokens page after page in their order, so that results do not depend on timing; 16 of them
// are a batch, whose rows of V come by cp.async and are added when later batches are on their way.
//
// Rows of V go to the V halves of the warp's ring, which the copy engine does not use then. The
// weights of a batch lie where the warp's sums do at the end of a part.
#pragma once

#include "rudder/cuda/kernels/attention_device.cuh"

namespace rudder::cuda {

template <typename Shared>
class SparseValues {
 public:
  using P = typename Shared::P;
  static constexpr int kBatchTokens = 16;
  struct Batch {
    uint16_t weights[16][kBatchTokens];  // of the rows; bf16 or f16, as the cache is multiplied
    int32_t rows[kBatchTokens];          // of the cache
  };
  // Batches whose rows of V are on their way, at most.
  static constexpr int kMostAhead = Shared::kSumBytes / static_cast<int>(sizeof(Batch)) - 1;
  static constexpr int kAhead = Shared::kStages < kMostAhead ? Shared::kStages : kMostAhead;
  // And one that is filled, or read when the next one has begun.
  static constexpr int kBatches = kAhead + 1;
  static_assert(kAhead >= 2);

  __device__ SparseValues(const AttentionParams& params, Shared& shared, int32_t warp, int32_t lane)
      : storage_(static_cast<const uint8_t*>(params.kv_storage)),
        shared_(shared),
        batches_(reinterpret_cast<Batch*>(&shared.sums[warp][0][0])),
        warp_(warp),
        lane_(lane) {}

  // The weights of a page whose values begin at row `row` of the cache.
  __device__ void add(const float (&s)[2][4], int32_t row, float (&out)[P::kOutTiles][4]) {
    const int t = lane_ % 4;
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool counts = s[i / 2][i % 2] != 0 || s[i / 2][i % 2 + 2] != 0;  // also NaN
      mine |= counts ? 1u << (i / 2 * 8 + 2 * t + i % 2) : 0u;
    }
    const uint32_t tokens = __reduce_or_sync(kAllLanes, mine);
    if (tokens == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = i / 2 * 8 + 2 * t + i % 2;
      if ((tokens >> token & 1) == 0) continue;
      const int32_t at = index_of(tokens, token);
      Batch& batch = batches_[at < kBatchTokens ? filling_ : after(filling_)];
      const uint32_t two = pack(s[i / 2][i % 2], s[i / 2][i % 2 + 2]);
      batch.weights[lane_ / 4][at % kBatchTokens] = static_cast<uint16_t>(two);
      batch.weights[lane_ / 4 + 8][at % kBatchTokens] = static_cast<uint16_t>(two >> 16);
    }
    if (lane_ < kPageTokens && (tokens >> lane_ & 1) != 0) {
      const int32_t at = index_of(tokens, lane_);
      batches_[at < kBatchTokens ? filling_ : after(filling_)].rows[at % kBatchTokens] =
          row + lane_;
    }
    filled_ += __popc(tokens);
    if (filled_ < kBatchTokens) return;
    filled_ -= kBatchTokens;
    load(kBatchTokens);
    if (ahead_ == kAhead) add_oldest<kAhead - 1>(out);
  }

  // Adds what is left.
  __device__ void finish(float (&out)[P::kOutTiles][4]) {
    if (filled_ > 0) {
      Batch& batch = batches_[filling_];
      for (int32_t token = filled_ + lane_ / 16; token < kBatchTokens; token += 2) {
        batch.weights[lane_ % 16][token] = 0;
      }
      load(filled_);
      filled_ = 0;
    }
    while (ahead_ > 0) add_oldest<0>(out);
  }

 private:
  __device__ static int32_t after(int32_t batch) {
    return batch + 1 == kBatches ? 0 : batch + 1;
  }
  __device__ int32_t index_of(uint32_t tokens, int token) const {
    return filled_ + __popc(tokens & ((1u << token) - 1));
  }
  __device__ static uint32_t pack(float low, float high) {
    return P::kFp8 ? pack_half(low, high) : pack_bf16(low, high);
  }
  __device__ uint32_t values_of(int32_t stage) const {
    return shared_address(shared_.ring[warp_][stage][1]);
  }

  // Sends for the rows of the batch that has been filled; entries from `count` on become zeros.
  __device__ void load(int32_t count) {
    __syncwarp();
    const Batch& batch = batches_[filling_];
    const uint32_t to = values_of(stage_);
    constexpr int kRowBytes = P::kChunks * 16;
#pragma unroll
    for (int i = 0; i < kBatchTokens * P::kChunks / 32; ++i) {
      const int32_t entry = (i * 32 + lane_) / P::kChunks;
      const int32_t chunk = (i * 32 + lane_) % P::kChunks;
      const bool is_there = entry < count;
      const int64_t row = is_there ? batch.rows[entry] : 0;
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
              to + chunk / 8 * P::kGroupBytes + entry * 128 + (((chunk % 8) ^ (entry % 8)) << 4)),
          "l"(storage_ + row * kRowBytes + chunk * 16), "r"(is_there ? 16 : 0)
          : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    filling_ = after(filling_);
    stage_ = stage_ + 1 == kAhead ? 0 : stage_ + 1;
    ++ahead_;
  }

  // Adds the batch that was sent for first, once at most kPending others are on their way.
  template <int kPending>
  __device__ void add_oldest(float (&out)[P::kOutTiles][4]) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
    __syncwarp();
    const int32_t batch = filling_ >= ahead_ ? filling_ - ahead_ : filling_ - ahead_ + kBatches;
    const int32_t stage = stage_ >= ahead_ ? stage_ - ahead_ : stage_ - ahead_ + kAhead;
    uint32_t weights[4];
    load_matrices(weights, shared_address(batches_[batch].weights[lane_ % 16]) + lane_ / 16 * 16);
    P::template add_values<false>(out, weights, values_of(stage), kPageTokens, lane_);
    --ahead_;
    __syncwarp();
  }

  const uint8_t* const storage_;
  Shared& shared_;
  Batch* const batches_;
  const int32_t warp_;
  const int32_t lane_;
  int32_t filled_ = 0;   // entries of the batch that is filled
  int32_t filling_ = 0;  // which one that is
  int32_t stage_ = 0;    // where the next batch's values go
  int32_t ahead_ = 0;    // batches on their way
};

}  // namespace rudder::cuda
