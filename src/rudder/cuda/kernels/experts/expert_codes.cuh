// Codes of expert_codes.h on their way to the tensor cores: a ring of them that the copy engine
// fills, of which warpgroups make rows of bf16 in the slots of a product. A chunk of codes is one
// warpgroup's, so that what one waits for is behind what others do. Included by .cu files
// only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "rudder/cuda/kernels/experts/expert_codes.h"
#include "rudder/cuda/kernels/products/low_mma.cuh"
#include "rudder/cuda/kernels/products/ring.cuh"

namespace rudder::cuda {

// By what E2M1 is multiplied as the bits of a bf16, for numbers in kCodeUnit: as such bits it is
// 2^-126 of itself, those below the least normal one too.
__device__ __forceinline__ uint32_t code_factor(uint32_t scale) {
  const uint32_t one = (scale - 127 + 126 - 64 + 127) << 7;
  return one << 16 | one;
}

// Eight numbers of a row, in their order, in bf16.
__device__ __forceinline__ uint4 code_numbers(uint32_t word, uint32_t factor) {
  constexpr uint32_t kMagnitude = 0x01c001c0u;
  constexpr uint32_t kSign = 0x80008000u;
  const uint32_t pairs[4] = {(word << 6 & kMagnitude) | (word << 12 & kSign),
                             (word << 2 & kMagnitude) | (word << 8 & kSign),
                             (word >> 2 & kMagnitude) | (word << 4 & kSign),
                             (word >> 6 & kMagnitude) | (word & kSign)};
  uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 number = __hmul2(reinterpret_cast<const __nv_bfloat162&>(pairs[i]),
                                          reinterpret_cast<const __nv_bfloat162&>(factor));
    out[i] = reinterpret_cast<const uint32_t&>(number);
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

constexpr int kCodeRingBytes = 40 << 10;
constexpr int kMostCodeSlots = 12;
constexpr int kCodeThreads = 128;  // that make numbers of a chunk of codes
constexpr int kCodeWarps = kCodeThreads / 32;

struct CodeBarriers {
  uint64_t full[kMostCodeSlots];
  uint64_t read[kMostCodeSlots];
};

// Rows [first, first + count) of an expert, whole blocks; none if count is not above 0.
struct CodeRows {
  int32_t first;
  int32_t count;

  __device__ uint32_t bytes() const {
    return static_cast<uint32_t>(max(count, 0) / kCodeRows * kCodeBlockBytes);
  }
};

// kRows rows of a tile, in two halves; a slot has 128 inputs of them. kGroups warpgroups take
// chunks in turns.
template <int kRows, int kGroups>
class CodeRing {
 public:
  static constexpr int kThreads = kGroups * kCodeThreads;
  static constexpr int kHalf = kRows / 2;
  static constexpr uint32_t kHalfBytes = kHalf / kCodeRows * kCodeBlockBytes;
  static constexpr int kSlots = kCodeRingBytes / (2 * kHalfBytes) < kMostCodeSlots
                                    ? kCodeRingBytes / (2 * kHalfBytes)
                                    : kMostCodeSlots;
  static_assert(kHalf % kCodeRows == 0 && kSlots >= 3);

  CodeRing() = default;
  __device__ CodeRing(const uint8_t* shared, const CodeBarriers& barriers)
      : ring_{shared_address(shared), 2 * kHalfBytes, kSlots, shared_address(barriers.full)},
        read_(shared_address(barriers.read)) {}

  __device__ void init() const {
    for (int32_t i = 0; i < kSlots; ++i) {
      barrier_init(barrier_of(ring_.full, i), 1);
      barrier_init(barrier_of(read_, i), kCodeWarps);
    }
  }

  // Of a tile, chunk after chunk, by one lane.
  __device__ void fetch(const void* weight, int64_t in, int64_t out, int32_t expert,
                        const CodeRows& first, const CodeRows& second) {
    const uint64_t policy = evict_first();
    const int64_t chunks = code_chunks(in);
    const int64_t chunk_bytes = out / kCodeRows * kCodeBlockBytes;
    const auto* from = static_cast<const uint8_t*>(weight) + expert * chunks * chunk_bytes;
#pragma unroll 1
    for (int64_t i = 0; i < chunks; ++i, from += chunk_bytes) {
      barrier_wait(barrier_of(read_, at_.at), at_.parity ^ 1);
      const uint32_t full = barrier_of(ring_.full, at_.at);
      const uint32_t to = ring_.slot(at_.at);
      barrier_expect(full, first.bytes() + second.bytes());
      fetch_bytes(to, from + first.first / kCodeRows * kCodeBlockBytes, first.bytes(), full,
                  policy);
      if (second.count > 0) {
        fetch_bytes(to + kHalfBytes, from + second.first / kCodeRows * kCodeBlockBytes,
                    second.bytes(), full, policy);
      }
      at_.next(kSlots);
    }
  }

  // Makes the rows of W in the next `chunks` of `slots`, of 64 inputs each, `offset` bytes behind
  // their begin: 128 bytes a row, in the order in which the copy engine swizzles them. `read`:
  // barriers that tell that a slot may be written to. By kThreads.
  __device__ void expand(const FetchRing& slots, uint32_t offset, uint32_t read, int32_t chunks,
                         int thread) {
    const int group = thread / kCodeThreads;
    const int own = thread % kCodeThreads;
#pragma unroll 1
    for (int32_t i = 0; i < chunks; i += 2) {
      const int count = min(2, chunks - i);
      RingWalk to[2] = {to_, to_};
      to[1].next(slots.count);
      to_ = to[1];
      if (count == 2) to_.next(slots.count);
      if (turn_ == group) {
        at_.wait(ring_.full);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (half == count) break;
          barrier_wait(barrier_of(read, to[half].at), to[half].parity ^ 1);
          expand_half(ring_.slot(at_.at), half, slots.slot(to[half].at) + offset, own);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        // One lane for all: arrivals of a barrier are taken one by one.
        __syncwarp();
        if (own % 32 == 0) {
          barrier_arrive(barrier_of(slots.full, to[0].at));
          if (count == 2) barrier_arrive(barrier_of(slots.full, to[1].at));
          barrier_arrive(barrier_of(read_, at_.at));
        }
      }
      at_.next(kSlots);
      if (++turn_ == kGroups) turn_ = 0;
    }
  }

 private:
  // Two groups of every row, a group of a row a thread.
  __device__ static void expand_half(uint32_t codes, int half, uint32_t to, int thread) {
    constexpr int kPieces = 2 * kRows;
#pragma unroll
    for (int first = 0; first < kPieces; first += kCodeThreads) {
      const int i = first + thread;
      if (i >= kPieces) break;
      const int in_block = i % (2 * kCodeRows);
      const int row = i / (2 * kCodeRows) * kCodeRows + in_block % kCodeRows;
      const uint32_t block = codes + static_cast<uint32_t>(i / (2 * kCodeRows) * kCodeBlockBytes);
      const auto piece = static_cast<uint32_t>(2 * kCodeRows * half + in_block);
      uint32_t words[4];
      load_shared_16(words, block + piece * 16);
      const uint32_t factor = code_factor(load_shared_byte(block + kCodeScalesAt + piece));
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int column = in_block / kCodeRows * 4 + w;  // of 16 bytes
        const uint4 numbers = code_numbers(words[w], factor);
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(
                         to + static_cast<uint32_t>(row * 128 + (column ^ row % 8) * 16)),
                     "r"(numbers.x), "r"(numbers.y), "r"(numbers.z), "r"(numbers.w)
                     : "memory");
      }
    }
  }
  __device__ static uint32_t load_shared_byte(uint32_t address) {
    uint32_t byte;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(address) : "memory");
    return byte;
  }

  FetchRing ring_ = {};
  uint32_t read_ = 0;  // barriers, one a slot
  RingWalk at_;        // of codes: what is fetched, or made numbers of, next
  RingWalk to_;        // of the product's slots
  int turn_ = 0;       // of the warpgroups
};

}  // namespace rudder::cuda
