// The kernel of low_product.h. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/products/low_bits.cuh"
#include "rudder/cuda/kernels/products/low_mma.cuh"
#include "rudder/cuda/kernels/products/low_product.h"
#include "rudder/cuda/kernels/products/register_mma.cuh"
#include "rudder/cuda/kernels/products/ring.cuh"
#include "rudder/cuda/kernels/wgmma.cuh"

namespace rudder::cuda {

constexpr int kLowBoxInputs = 64;  // of a box of tokens: 128 bytes a row; a chunk has two
constexpr int kLowQuarter = 32;    // inputs that are converted and multiplied at a time
constexpr int kMostLowSlots = 16;

struct LowWork {
  TensorMap x;  // boxes of 128 bytes of as many tokens as a tile has
  LowProductParams asked;
  int32_t block_bytes = 0;
  int32_t row_blocks = 0;
  int32_t token_tiles = 0;
  int32_t tiles = 0;
  int32_t chunks = 0;  // of a tile
  bool splits = false;
  int32_t slots = 0;         // of chunks
  bool writes_runs = false;  // of 8 rows of W, for a token, as they lie in y
  int32_t ahead_slots = 0;   // of weights on their way while the kernel in front runs
  int32_t steady_slots = 0;  // and behind it
};

// Behind the slots.
struct LowShared {
  uint64_t weights_full[kMostLowSlots];
  uint64_t tokens_full[kMostLowSlots];
  uint64_t sums_full[kMostLowSlots];  // of tokens
  uint64_t read[kMostLowSlots];       // all of the chunk
  uint64_t may_read;                  // the kernel in front has ended
  // Of tokens; and where sums lie before they are written, of each of two groups of warps. Four
  // have as much behind it.
  alignas(16) float sums[kMostLowSlots][kLowChunk / kLowQuarter][kMostCodeTokens];
};

// Chunks [first, end) of a tile.
struct LowRun {
  int32_t tile;
  int32_t first;
  int32_t end;
};

__device__ __forceinline__ int64_t first_unit(const LowWork& p, int32_t block) {
  return int64_t{block} * (int64_t{p.tiles} * p.chunks) / static_cast<int32_t>(gridDim.x);
}

// What a block does, one run after the other.
class LowRuns {
 public:
  __device__ explicit LowRuns(const LowWork& p) : p_(p) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    at_ = p.splits ? first_unit(p, block) : int64_t{block} * p.chunks;
    end_ = p.splits ? first_unit(p, block + 1) : int64_t{p.tiles} * p.chunks;
  }
  __device__ bool next(LowRun& run) {
    if (at_ >= end_) return false;
    run.tile = static_cast<int32_t>(at_ / p_.chunks);
    run.first = static_cast<int32_t>(at_ - int64_t{run.tile} * p_.chunks);
    run.end = static_cast<int32_t>(min(int64_t{p_.chunks}, run.first + end_ - at_));
    at_ += p_.splits ? run.end - run.first : int64_t{static_cast<int32_t>(gridDim.x)} * p_.chunks;
    return true;
  }

 private:
  const LowWork& p_;
  int64_t at_;  // in chunks of all tiles
  int64_t end_;
};

template <int kSums>
__device__ __forceinline__ void multiply_add(float (&sums)[kSums], const uint32_t (&a)[4],
                                             uint64_t operand) {
  RegisterMma<2 * kSums, true>::run(sums, a, operand);
}
template <int kSums>
__device__ __forceinline__ void multiply_add(int32_t (&sums)[kSums], const uint32_t (&a)[4],
                                             uint64_t operand) {
  RegisterMmaS8<2 * kSums>::add(sums, a, operand);
}
// By a warp: it has read what the barrier guards.
__device__ __forceinline__ void give_up(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

__device__ __forceinline__ void hold(int32_t& sum) {
  asm volatile("" : "+r"(sum)::"memory");
}
__device__ __forceinline__ void hold(float& sum) {
  asm volatile("" : "+f"(sum)::"memory");
}

template <typename Sum, int kBlocks, int kSums>
__device__ __forceinline__ void hold_all(Sum (&sums)[kBlocks][kSums]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) hold(sums[b][i]);
  }
}

// A tile is kTokens tokens by kBlocks blocks of rows for each group of warps.
template <int kTokens, int kBlocks, LowCode kCode, LowWay kWay>
class LowKernel {
 public:
  static constexpr bool kIsShifted = kWay == LowWay::kShifted;
  static constexpr bool kIsWhole = kWay == LowWay::kWhole;
  static constexpr int kGroups = (kWay == LowWay::kCodes || kIsShifted) && kTokens <= 64
                                     ? 4
                                     : 2;  // of warps that multiply, with rows of their own
  static constexpr int kMmaWarps = 4 * kGroups;
  enum Warp : int { kWeightWarp = kMmaWarps, kTokenWarp, kSumWarp };  // behind those that multiply
  static constexpr int kTileBlocks = kGroups * kBlocks;
  static constexpr int kSums = kTokens / 2;        // of a thread and a block
  static constexpr int kSteps = kIsWhole ? 1 : 2;  // of a quarter
  static constexpr bool kIsMany = kTokens * kBlocks > 64;
  // Whether the warps that multiply take registers of the others.
  __host__ __device__ static constexpr bool moves_registers() {
    return kIsMany || (kWay == LowWay::kCodes && kTokens == 64);
  }
  static constexpr int kThreads = 32 * (kMmaWarps + (moves_registers() ? 4 : kIsShifted ? 3 : 2));
  static constexpr uint32_t kBoxBytes = kTokens * 128;
  static constexpr uint32_t kTokenBytes = (kIsWhole ? 1 : 2) * kBoxBytes;  // of a chunk

  __device__ LowKernel(const LowWork& p, uint8_t* shared) : p_(p) {
    const auto weight_bytes = static_cast<uint32_t>(kTileBlocks * p.block_bytes);
    uint8_t* const weights = shared + p.slots * kTokenBytes;
    auto& behind = *reinterpret_cast<LowShared*>(weights + p.slots * weight_bytes);
    stored_ = weights;
    sums_ = &behind.sums[0][0][0];
    tokens_ = {shared_address(shared), kTokenBytes, p.slots, shared_address(behind.tokens_full)};
    weights_ = {shared_address(weights), weight_bytes, p.slots,
                shared_address(behind.weights_full)};
    barriers_.sums_full = shared_address(behind.sums_full);
    barriers_.read = shared_address(behind.read);
    barriers_.may_read = shared_address(&behind.may_read);
    const uint32_t lane = threadIdx.x % 32;
    lane_inputs_ = lane % 8 * 128 + ((lane / 8) ^ (lane % 8)) * 16;
  }

  // By a thread of each warp.
  __device__ void init(int warp) const {
#pragma unroll 1
    for (int i = warp; i < kMostLowSlots; i += kThreads / 32) {
      barrier_init(barrier_of(weights_.full, i), 1);
      barrier_init(barrier_of(tokens_.full, i), 1);
      barrier_init(barrier_of(barriers_.sums_full, i), 1);
      barrier_init(barrier_of(barriers_.read, i), kMmaWarps);
    }
    if (warp == 0) barrier_init(barriers_.may_read, 1);
    barrier_init_fence();
  }

  // By a warp each.
  __device__ void fetch_weights() const {
    const uint64_t policy = p_.token_tiles > 1 ? evict_normal() : evict_first();
    const auto* const from = static_cast<const uint8_t*>(p_.asked.weight);
    RingWalk come;  // the oldest slot that may be on its way
    int32_t on_way = 0;
    int32_t most = p_.ahead_slots;
    const auto pace = [&] {
      if (on_way == most && most < p_.steady_slots &&
          !come.wait_unless(weights_.full, barriers_.may_read)) {
        most = p_.steady_slots;
      } else if (on_way == most) {
        come.wait(weights_.full);
        come.next(p_.slots);
        --on_way;
      }
      ++on_way;
    };
    walk(pace, [&](int slot, const LowRun& run, int chunk) {
      const int first_block = run.tile / p_.token_tiles * kTileBlocks;
      const int count = min(kTileBlocks, p_.row_blocks - first_block);
      const uint32_t full = barrier_of(weights_.full, slot);
      const auto bytes = static_cast<uint32_t>(p_.block_bytes);
      barrier_expect(full, static_cast<uint32_t>(count) * bytes);
      for (int b = 0; b < count; ++b) {
        const int64_t block = int64_t{first_block + b} * p_.chunks + chunk;
        fetch_bytes(weights_.slot(slot) + static_cast<uint32_t>(b) * bytes,
                    from + block * p_.block_bytes, bytes, full, policy);
      }
    });
  }
  __device__ void fetch_tokens() const {
    if (threadIdx.x % 32 == 0) barrier_arrive(barriers_.may_read);
    const uint64_t policy = evict_last();
    walk([] {},
         [&](int slot, const LowRun& run, int chunk) {
           const int row = run.tile % p_.token_tiles * kTokens;
           const uint32_t full = barrier_of(tokens_.full, slot);
           const uint32_t to = tokens_.slot(slot);
           barrier_expect(full, kTokenBytes);
           fetch(to, p_.x, chunk * kLowChunk, row, full, policy);
           if constexpr (!kIsWhole)
             fetch(to + kBoxBytes, p_.x, chunk * kLowChunk + kLowBoxInputs, row, full, policy);
         });
  }
  // Sums of each token's inputs, of the quarters of a chunk, by tensor cores: ones times tokens.
  __device__ void sum_tokens() const {
    constexpr uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    const auto lane = static_cast<int>(threadIdx.x) % 32;
    RingWalk at;
    LowRuns runs(p_);
    LowRun run;
#pragma unroll 1
    while (runs.next(run)) {
#pragma unroll 1
      for (int chunk = run.first; chunk < run.end; ++chunk) {
        at.wait(tokens_.full);
#pragma unroll
        for (int tile = 0; tile < kTokens / 8; ++tile) {
          float sum[4] = {};
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            uint32_t b[4];
            load_inputs(b, ((tokens_.slot(at.at) + lane_inputs_) ^ (q % 2 * 64)) +
                               q / 2 * kBoxBytes + tile * 1024);
            multiply_add(sum, kOnes, b[0], b[1]);
            multiply_add(sum, kOnes, b[2], b[3]);
            if (lane < 4) {
              float* const to = sums_of(at.at, q) + 8 * tile + 2 * lane;
              *reinterpret_cast<float2*>(to) = make_float2(sum[0], sum[1]);
            }
            sum[0] = sum[1] = sum[2] = sum[3] = 0;
          }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(barrier_of(barriers_.sums_full, at.at));
        at.next(p_.slots);
      }
    }
  }

  // By the warps that multiply.
  __device__ void multiply_all(int warp) {
    group_ = warp / 4;
    thread_ = static_cast<int>(threadIdx.x) % 128;
    LowRuns runs(p_);
    LowRun run;
#pragma unroll 1
    while (runs.next(run)) {
      float c[kBlocks][kSums];
      multiply(c, run);
      if (run.first > 0) {
        leave_part(c);
      } else {
        if (run.end < p_.chunks) add_parts(c, run.tile);
        write(c, run.tile);
      }
    }
  }

 private:
  // By a warp; fetch_chunk() by one lane.
  template <typename Pace, typename Fetch>
  __device__ __forceinline__ void walk(Pace pace, Fetch fetch_chunk) const {
    RingWalk at;
    RingWalk read;
    int32_t unused = p_.slots;
    LowRuns runs(p_);
    LowRun run;
#pragma unroll 1
    while (runs.next(run)) {
#pragma unroll 1
      for (int chunk = run.first; chunk < run.end; ++chunk) {
        if (unused > 0) {
          --unused;
        } else {
          read.wait(barriers_.read);
          read.next(p_.slots);
        }
        pace();
        if (threadIdx.x % 32 == 0) fetch_chunk(at.at, run, chunk);
        __syncwarp();
        at.next(p_.slots);
      }
    }
  }
  __device__ __forceinline__ float* sums_of(int slot, int part) const {
    return sums_ + (slot * (kLowChunk / kLowQuarter) + part) * kMostCodeTokens;
  }

  // Codes of a lane of a chunk, of 16 k a word, or two.
  struct Stored {
    uint32_t words[kBlocks][8 * LowCodes<kCode>::kWords];
  };

  __device__ __forceinline__ const uint8_t* block_of(int slot, int b) const {
    return stored_ + static_cast<uint32_t>(slot) * weights_.slot_bytes +
           (group_ * kBlocks + b) * p_.block_bytes;
  }
  __device__ __forceinline__ void load(Stored& stored, int slot) const {
    constexpr int kPieces = 2 * LowCodes<kCode>::kWords;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const auto* const from = reinterpret_cast<const uint4*>(block_of(slot, b)) + thread_;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        reinterpret_cast<uint4*>(stored.words[b])[i] = from[128 * i];
      }
    }
  }
  __device__ __forceinline__ int lane_row() const {
    return thread_ / 32 * 16 + thread_ % 32 / 4;
  }
  // Of the thread's two rows of a block.
  __device__ __forceinline__ void load_scales(__half2 (&pairs)[kBlocks][2], int slot,
                                              int group) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const auto* const from =
          reinterpret_cast<const __half2*>(block_of(slot, b) + LowCodes<kCode>::kCodeBytes) +
          group * kLowBlockRows + lane_row();
      pairs[b][0] = from[0];
      pairs[b][1] = from[8];
    }
  }
  // Of a quarter of a chunk, 16 k at a time: numbers, rounded to bf16. Or codes of 8 bits, 32 k at
  // a time, in the order in which low_rows.h writes tokens.
  __device__ __forceinline__ void convert(uint32_t (&a)[kBlocks][kSteps][4], const Stored& stored,
                                          int slot, int q) const {
    if constexpr (kIsWhole) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint32_t* const words = stored.words[b] + 4 * q;
        a[b][0][0] = __byte_perm(words[0], words[1], 0x6420);
        a[b][0][1] = __byte_perm(words[0], words[1], 0x7531);
        a[b][0][2] = __byte_perm(words[2], words[3], 0x6420);
        a[b][0][3] = __byte_perm(words[2], words[3], 0x7531);
      }
    } else {
      convert_numbers(a, stored, slot, q);
    }
  }
  // Less their zeros, which bf16 has too.
  __device__ __forceinline__ static void convert_codes(uint32_t (&a)[kBlocks][kSteps][4],
                                                       const Stored& stored,
                                                       const __nv_bfloat162 (&less)[kBlocks][2],
                                                       int q) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const uint32_t* const words = stored.words[b] + (2 * q + j) * LowCodes<kCode>::kWords;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[b][j][i] = bits_of(__hsub2(LowCodes<kCode>::shifted(words, i), less[b][i % 2]));
        }
      }
    }
  }
  __device__ __forceinline__ void convert_numbers(uint32_t (&a)[kBlocks][kSteps][4],
                                                  const Stored& stored, int slot, int q) const {
    const bool is_zero = p_.asked.form.is_zero;
    const int group = p_.asked.form.group;
    __half2 pairs[kBlocks][2];
    load_scales(pairs, slot, q * kLowQuarter / group);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      // Of 16 inputs, a quarter has two groups.
      if (j == 1 && group < kLowQuarter) load_scales(pairs, slot, 2 * q + 1);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const LowScale by[2] = {low_scale<kCode>(pairs[b][0], is_zero),
                                low_scale<kCode>(pairs[b][1], is_zero)};
        const uint32_t* const words = stored.words[b] + (2 * q + j) * LowCodes<kCode>::kWords;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[b][j][i] = scaled(LowCodes<kCode>::shifted(words, i), by[i % 2]);
        }
      }
    }
  }
  // The quarter's 32 inputs of the tokens.
  __device__ __forceinline__ uint64_t token_operand(int q) const {
    const auto quarter = static_cast<uint32_t>(q);
    return operand_by_rows(tokens_.slot(at_.at) +
                           (kIsWhole ? quarter * 32 : quarter / 2 * kBoxBytes + quarter % 2 * 64));
  }
  __device__ __forceinline__ void multiply(float (&c)[kBlocks][kSums], const LowRun& run) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) c[b][i] = 0;
    }
    if constexpr (kIsWhole) {
      int32_t sums[kBlocks][kSums] = {};
      multiply_quarters(sums, run);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) c[b][i] = static_cast<float>(sums[b][i]);
      }
    } else if constexpr (kIsShifted) {
#pragma unroll 1
      for (int chunk = run.first; chunk < run.end; ++chunk) multiply_codes(c[0]);
    } else if constexpr (kWay == LowWay::kCodes) {
      float sums[kBlocks][kSums] = {};
#pragma unroll 1
      for (int chunk = run.first; chunk < run.end; ++chunk) multiply_chunk(c, sums);
    } else {
      multiply_quarters(c, run);
    }
  }
  // Codes of a chunk, above LowCodes::kShift, and their sums by scales, less what tokens' sums come
  // to. By mma.sync: of so few tokens wgmma takes as long as of eight times as many.
  __device__ __forceinline__ void multiply_codes(float (&c)[kSums]) {
    const bool is_zero = p_.asked.form.is_zero;
    at_.wait(weights_.full);
    Stored stored;
    load(stored, at_.at);
    at_.wait(tokens_.full);
    const uint32_t tokens = tokens_.slot(at_.at) + lane_inputs_;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      __half2 pairs[1][2];
      load_scales(pairs, at_.at, q * kLowQuarter / p_.asked.form.group);
      float sums[kSums] = {};
      const uint32_t* const words = stored.words[0] + 2 * q * LowCodes<kCode>::kWords;
      uint32_t a[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          a[j][k] = bits_of(LowCodes<kCode>::shifted(words + j * LowCodes<kCode>::kWords, k));
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTokens / 8; ++tile) {
        uint32_t b[4];
        load_inputs(b, (tokens ^ (q % 2 * 64)) + q / 2 * kBoxBytes + tile * 1024);
        multiply_add(sums + 4 * tile, a[0], b[0], b[1]);
        multiply_add(sums + 4 * tile, a[1], b[2], b[3]);
      }
      const LowScale by[2] = {low_scale<kCode>(pairs[0][0], is_zero),
                              low_scale<kCode>(pairs[0][1], is_zero)};
      if (q == 0) at_.wait(barriers_.sums_full);
      const float* const of_tokens = sums_of(at_.at, q) + 2 * (thread_ % 4);
#pragma unroll
      for (int tile = 0; tile < kTokens / 8; ++tile) {
        const float2 inputs = *reinterpret_cast<const float2*>(of_tokens + 8 * tile);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const LowScale& row = by[k / 2];
          const float of_token = k % 2 == 0 ? inputs.x : inputs.y;
          float& sum = c[4 * tile + k];
          sum = fmaf(sums[4 * tile + k], row.scale, fmaf(-row.less, of_token, sum));
        }
      }
    }
    give_up(barrier_of(barriers_.read, at_.at));
    at_.next(p_.slots);
  }
  // Codes less their zeros, of a chunk at once: another group of warps converts meanwhile. Its sums
  // are scaled, since its groups are as long.
  __device__ __forceinline__ void multiply_chunk(float (&c)[kBlocks][kSums],
                                                 float (&sums)[kBlocks][kSums]) {
    uint32_t a[4][kBlocks][kSteps][4];
    float scale[kBlocks][2];
    at_.wait(weights_.full);
    {
      Stored stored;
      load(stored, at_.at);
      __half2 pairs[kBlocks][2];
      load_scales(pairs, at_.at, 0);
      __nv_bfloat162 less[kBlocks][2];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          scale[b][i] = __low2float(pairs[b][i]);
          less[b][i] = __float2bfloat162_rn(__high2float(pairs[b][i]) + LowCodes<kCode>::kShift);
        }
      }
#pragma unroll
      for (int q = 0; q < 4; ++q) convert_codes(a[q], stored, less, q);
    }
    at_.wait(tokens_.full);
    wgmma_fence();
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const uint64_t operand = token_operand(q);
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          if (q == 0 && j == 0) {
            RegisterMma<kTokens, false>::run(sums[b], a[0][b][0], operand);
          } else {
            multiply_add(sums[b], a[q][b][j], advanced(operand, 32 * j));
          }
        }
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold_all(sums);
    give_up(barrier_of(barriers_.read, at_.at));
    at_.next(p_.slots);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) c[b][i] = fmaf(sums[b][i], scale[b][i / 2 % 2], c[b][i]);
    }
  }
  // A quarter is made ready while the one in front of it is multiplied, a chunk's first one while
  // the chunk in front ends.
  template <typename Sum>
  __device__ __forceinline__ void multiply_quarters(Sum (&sums)[kBlocks][kSums],
                                                    const LowRun& run) {
    Stored stored;
    uint32_t a[2][kBlocks][kSteps][4];
    at_.wait(weights_.full);
    load(stored, at_.at);
    convert(a[0], stored, at_.at, 0);
#pragma unroll 1
    for (int chunk = run.first; chunk < run.end; ++chunk) {
      at_.wait(tokens_.full);
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        if (q > 0) convert(a[q % 2], stored, at_.at, q);
        const uint64_t operand = token_operand(q);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            multiply_add(sums[b], a[q % 2][b][j], advanced(operand, 32 * j));
          }
        }
        wgmma_commit();
        wgmma_wait<1>();
      }
      RingWalk next = at_;
      next.next(p_.slots);
      // Behind the run's last chunk it is whatever lies there, and not used.
      if (chunk + 1 < run.end) next.wait(weights_.full);
      load(stored, next.at);
      convert(a[0], stored, next.at, 0);
      wgmma_wait<0>();
      hold_all(sums);
      give_up(barrier_of(barriers_.read, at_.at));
      at_ = next;
    }
  }
  __device__ __forceinline__ void sync_group() const {
    asm volatile("bar.sync %0, 128;" ::"r"(group_ + 1) : "memory");
  }
  __device__ __forceinline__ float* part_of(int block) const {
    return p_.asked.parts + (int64_t{block} * kGroups + group_) * (kBlocks * kSums * 128) + thread_;
  }
  // Each thread's sums, for the thread of the block with the tile's first chunks that has the same.
  __device__ __forceinline__ void leave_part(const float (&c)[kBlocks][kSums]) const {
    const auto block = static_cast<int>(blockIdx.x);
    float* const to = part_of(block);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) __stcg(to + (b * kSums + i) * 128, c[b][i]);
    }
    sync_group();
    if (thread_ == 0) {
      __threadfence();
      uint32_t* const flag = p_.asked.flags + block * kGroups + group_;
      asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
    }
  }
  // What the blocks behind this one have of the tile, in the order of the chunks.
  __device__ __forceinline__ void add_parts(float (&c)[kBlocks][kSums], int tile) const {
    // The blocks whose first chunk is in front of the tile's end: block * all / blocks < end.
    const int64_t all = int64_t{p_.tiles} * p_.chunks;
    const auto blocks = static_cast<int>(gridDim.x);
    const int64_t end = (int64_t{tile + 1} * p_.chunks * blocks + all - 1) / all;
    const int first = static_cast<int>(blockIdx.x) + 1;
    const int last = static_cast<int>(min(end, int64_t{blocks}));
    for (int block = first + thread_; block < last; block += 128) {
      uint32_t* const flag = p_.asked.flags + block * kGroups + group_;
      uint32_t is_there = 0;
      while (is_there == 0) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is_there) : "l"(flag) : "memory");
      }
      *flag = 0;  // for the next launch
    }
    sync_group();
    constexpr int kAtOnce = kBlocks * kSums <= 16 ? 4 : 1;
#pragma unroll kAtOnce
    for (int block = first; block < last; ++block) {
      const float* const from = part_of(block);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) c[b][i] += __ldcg(from + (b * kSums + i) * 128);
      }
    }
  }
  __device__ __forceinline__ void write_one(int64_t row, int token, float sum, float2 by) const {
    const LowProductParams& p = p_.asked;
    sum = fmaf(sum, by.x, by.y);
    if (p.softcap != 0.0f) sum = p.softcap * tanhf(sum / p.softcap);
    const int64_t at = token * p.out + row;
    if (p.y_is_f32) {
      static_cast<float*>(p.y)[at] = sum;
    } else {
      static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(sum);
    }
  }

  // Of a row of W: what its sums are multiplied by, and its bias.
  __device__ __forceinline__ float2 row_scale(int64_t row) const {
    const LowProductParams& p = p_.asked;
    if (row >= p.out) return {};
    return make_float2(p.row_factor[row],
                       p.bias != nullptr
                           ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.bias)[row])
                           : 0.0f);
  }
  __device__ __forceinline__ float token_scale(int token) const {
    return kIsWhole && token < p_.asked.tokens ? p_.asked.x_scale[token] : 1.0f;
  }
  // By way of shared memory, where 64 rows of 32 tokens lie as in y: 16 bytes a thread. Whole runs
  // of 8 rows alone.
  __device__ __forceinline__ void write_runs(const float (&c)[kBlocks][kSums], int tile) const {
    constexpr int kRunTokens = 32;
    const LowProductParams& p = p_.asked;
    const int first_token = tile % p_.token_tiles * kTokens;
    const int lane = thread_ % 32;
    const int pair = 2 * (lane % 4);
    uint8_t* const stage = reinterpret_cast<uint8_t*>(sums_) + group_ * (kRunTokens * 128);
    // Of the matrix of 8 tokens and 8 rows that the lane's address is of.
    const int to_token = lane / 16 * 8 + lane % 8;
    const int to_run = thread_ / 32 * 2 + lane / 8 % 2;
    const uint32_t to = shared_address(stage) + static_cast<uint32_t>(to_token) * 128 +
                        (static_cast<uint32_t>(to_run ^ (lane % 8)) << 4);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int64_t first_row =
          (int64_t{tile / p_.token_tiles} * kTileBlocks + group_ * kBlocks + b) * kLowBlockRows;
      const float2 low = row_scale(first_row + lane_row());
      const float2 high = row_scale(first_row + lane_row() + 8);
#pragma unroll
      for (int first = 0; first < kTokens; first += kRunTokens) {
        if (first_token + first >= p.tokens) break;
#pragma unroll
        for (int i = first / 8; i < (first + kRunTokens) / 8; i += 2) {
          uint32_t matrix[4];
#pragma unroll
          for (int m = 0; m < 4; ++m) {
            const float2 row = m % 2 == 0 ? low : high;
            const float* const sums = c[b] + 4 * (i + m / 2) + 2 * (m % 2);
            const int token = first_token + 8 * (i + m / 2) + pair;
            matrix[m] = bits_of(
                __floats2bfloat162_rn(fmaf(sums[0], row.x * token_scale(token), row.y),
                                      fmaf(sums[1], row.x * token_scale(token + 1), row.y)));
          }
          asm volatile(
              "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                  to + static_cast<uint32_t>(i - first / 8) * 8 * 128),
              "r"(matrix[0]), "r"(matrix[1]), "r"(matrix[2]), "r"(matrix[3])
              : "memory");
        }
        sync_group();
#pragma unroll
        for (int k = thread_; k < kRunTokens * 8; k += 128) {
          const int token = first_token + first + k / 8;
          const int64_t row = first_row + k % 8 * 8;
          if (token >= p.tokens || row >= p.out) continue;
          *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.y) + token * p.out + row) =
              *reinterpret_cast<const uint4*>(stage + k / 8 * 128 + (k % 8 ^ k / 8 % 8) * 16);
        }
        sync_group();
      }
    }
  }

  __device__ __forceinline__ void write(const float (&c)[kBlocks][kSums], int tile) const {
    const LowProductParams& p = p_.asked;
    if constexpr (kTokens >= 64) {
      if (p_.writes_runs) return write_runs(c, tile);
    }
    const int first_token = tile % p_.token_tiles * kTokens + 2 * (thread_ % 4);
    const int64_t first_row =
        (int64_t{tile / p_.token_tiles} * kTileBlocks + group_ * kBlocks) * kLowBlockRows +
        lane_row();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = first_row + kLowBlockRows * b + 8 * half;
        if (row >= p.out) continue;
        const float2 by = row_scale(row);
#pragma unroll
        for (int i = 0; i < kTokens / 8; ++i) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const int token = first_token + 8 * i + k;
            if (token >= p.tokens) continue;
            write_one(row, token, c[b][4 * i + 2 * half + k] * token_scale(token), by);
          }
        }
      }
    }
  }

  const LowWork& p_;
  const uint8_t* stored_;
  float* sums_;
  FetchRing tokens_;
  FetchRing weights_;
  struct {
    uint32_t sums_full;
    uint32_t read;
    uint32_t may_read;
  } barriers_;
  uint32_t lane_inputs_;  // of load_inputs(), in a box
  RingWalk at_;
  int group_ = 0;
  int thread_ = 0;  // of the group
};

template <int kTokens, int kBlocks, LowCode kCode, LowWay kWay>
__global__ void __launch_bounds__(LowKernel<kTokens, kBlocks, kCode, kWay>::kThreads, 1)
    low_product_kernel(const __grid_constant__ LowWork p) {
  using Kernel = LowKernel<kTokens, kBlocks, kCode, kWay>;
  extern __shared__ __align__(1024) uint8_t shared[];
  Kernel kernel(p, shared);
  // Told to be the same for all lanes: as in ring_product.cu.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const bool is_first = threadIdx.x % 32 == 0;
  if (is_first && warp == Kernel::kTokenWarp) prefetch_map(p.x);
  if (is_first) kernel.init(warp);
  __syncthreads();
  if (warp >= Kernel::kMmaWarps) {
    if constexpr (Kernel::moves_registers()) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Kernel::kIsMany ? 40 : 32));
    }
    // No kernel writes weights: they are on their way before the last kernel
    // ends.
    if (warp == Kernel::kWeightWarp) kernel.fetch_weights();
    if (warp == Kernel::kTokenWarp) {
      dependency_wait();
      dependency_trigger();
      kernel.fetch_tokens();
    }
    if constexpr (Kernel::kIsShifted) {
      if (warp == Kernel::kSumWarp) kernel.sum_tokens();
    }
  } else {
    if constexpr (Kernel::moves_registers()) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Kernel::kIsMany ? 232 : 112));
    }
    dependency_wait();
    dependency_trigger();
    kernel.multiply_all(warp);
  }
}

}  // namespace rudder::cuda
