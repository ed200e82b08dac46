#include <algorithm>

#include "rudder/cuda/kernels/experts/expert_codes.h"

// Runs once a model: a group of a row a thread.

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16;

__global__ void __launch_bounds__(kThreads) pack_kernel(const PackExpertCodesParams p) {
  constexpr int kWords = kCodeGroup / 8;
  constexpr int kChunkGroups = kCodeChunk / kCodeGroup;
  const int64_t groups = code_chunks(p.in) * kChunkGroups;
  const int64_t file_groups = p.in / kCodeGroup;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.rows * groups;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / groups;
    const int64_t group = i % groups;
    uint32_t words[kWords] = {};
    uint8_t scale = 0;
    if (group < file_groups) {
      const uint8_t* const from = p.codes + (row * p.in + group * kCodeGroup) / 2;
      for (int b = 0; b < kCodeGroup / 2; ++b) {
        const uint32_t low = from[b] & 15u;
        const uint32_t high = from[b] >> 4;
        words[b / 4] |= low << (b % 4 * 4) | high << (b % 4 * 4 + 16);
      }
      scale = p.scales[row * file_groups + group];
    }
    const int64_t at = p.first_row + row;
    uint8_t* const block = p.to + (group / kChunkGroups * (p.out / kCodeRows) + at / kCodeRows) *
                                      int64_t{kCodeBlockBytes};
    const auto in_block = static_cast<int>(group % kChunkGroups * kCodeRows + at % kCodeRows);
    *reinterpret_cast<uint4*>(block + in_block * 16) =
        make_uint4(words[0], words[1], words[2], words[3]);
    block[kCodeScalesAt + in_block] = scale;
  }
}

}  // namespace

cudaError_t launch_pack_expert_codes(const PackExpertCodesParams& params, cudaStream_t stream) {
  if (params.rows <= 0) return cudaSuccess;
  const int64_t work = params.rows * code_chunks(params.in) * (kCodeChunk / kCodeGroup);
  const int64_t blocks = std::min((work + kThreads - 1) / kThreads, kMostBlocks);
  pack_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace rudder::cuda
