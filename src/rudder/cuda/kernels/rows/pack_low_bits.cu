#include "rudder/cuda/kernels/rows/pack_low_bits.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/products/low_bits.cuh"

// All but the gather of rows run once a model: an element at a time.

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 16;

unsigned grid_of(int64_t work) {
  const int64_t blocks = (work + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}
__device__ int64_t first_index() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}
__device__ int64_t index_step() {
  return int64_t{gridDim.x} * kThreads;
}

__device__ float load_number(const void* from, Element element, int64_t i) {
  switch (element) {
    case Element::kF16:
      return __half2float(static_cast<const __half*>(from)[i]);
    case Element::kBf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]);
    default:
      return static_cast<const float*>(from)[i];
  }
}

// By code; those of E2M1 twice as large.
__constant__ int8_t kE2M1Twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
__constant__ int8_t kIq4Nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

__global__ void __launch_bounds__(kThreads) read_codes_kernel(const ReadLowPartParams p) {
  const int64_t count = p.to.rows * p.to.in;
  const auto* const bytes = static_cast<const uint8_t*>(p.codes);
  for (int64_t i = first_index(); i < count; i += index_step()) {
    if (!p.is_u4) {
      p.to.codes[i] = static_cast<int8_t>(bytes[i]);
      continue;
    }
    const int code = bytes[i / 2] >> (i % 2 * 4) & 15;
    p.to.codes[i] = p.table == ops::CodeTable::kE2M1    ? kE2M1Twice[code]
                    : p.table == ops::CodeTable::kIq4Nl ? kIq4Nl[code]
                                                        : static_cast<int8_t>(code);
  }
}

__global__ void __launch_bounds__(kThreads) read_scales_kernel(const ReadLowPartParams p) {
  const int64_t groups = (p.to.in + p.to.group - 1) / p.to.group;
  const int64_t file_groups = (p.to.in + p.file_group - 1) / p.file_group;
  const float by = p.table == ops::CodeTable::kE2M1 ? 0.5f : 1.0f;
  for (int64_t i = first_index(); i < p.to.rows * groups; i += index_step()) {
    const int64_t row = i / groups;
    const int64_t group = i % groups * p.to.group / p.file_group;
    const int64_t at = row / p.block_rows * file_groups + group;
    const float scale =
        p.scales_are_e8m0
            ? exp2f(static_cast<float>(static_cast<const uint8_t*>(p.scales)[at]) - 127.0f)
            : load_number(p.scales, p.scale_element, at);
    float zero = 0;
    if (p.offset == LowOffset::kZero) zero = static_cast<const uint8_t*>(p.offsets)[at];
    if (p.offset == LowOffset::kMiddle) zero = 8;
    p.to.scales[i] = scale * by;
    if (p.takes_zeros) {
      p.to.offsets[i] = zero;
    } else if (p.offset != LowOffset::kMinimum) {
      p.to.offsets[i] = zero * scale;
    } else if (p.scales_are_e8m0) {
      p.to.offsets[i] =
          exp2f(static_cast<float>(static_cast<const uint8_t*>(p.offsets)[at]) - 127.0f);
    } else {
      p.to.offsets[i] = load_number(p.offsets, p.scale_element, at);
    }
  }
}

__global__ void __launch_bounds__(kThreads) round_rows_kernel(const RoundLowRowsParams p) {
  const int64_t groups = (p.to.in + p.to.group - 1) / p.to.group;
  const float half_range = p.bits == 4 ? 7.5f : 127.5f;
  const float middle = p.bits == 4 ? 8 : 0;
  const float lowest = p.bits == 4 ? -8 : -128;
  for (int64_t i = first_index(); i < p.to.rows * groups; i += index_step()) {
    const int64_t row = i / groups;
    const int64_t begin = row * p.to.in + i % groups * p.to.group;
    const int64_t end = min(begin + p.to.group, (row + 1) * p.to.in);
    float highest = 0;
    for (int64_t k = begin; k < end; ++k) {
      highest = fmaxf(highest, fabsf(load_number(p.from, p.element, k)));
    }
    const float scale = highest / half_range;
    for (int64_t k = begin; k < end; ++k) {
      const float over = scale > 0 ? load_number(p.from, p.element, k) / scale : 0.0f;
      const float code = fminf(fmaxf(rintf(over), lowest), -lowest - 1);
      p.to.codes[k] = static_cast<int8_t>(static_cast<int>(code + middle));
    }
    p.to.scales[i] = scale;
    p.to.offsets[i] = middle;
  }
}

// By a thread for each row.
// Of `from`, what becomes this row.
__device__ int64_t source_row(const PackLowBitsParams& p, int64_t row) {
  if (!p.interleaves) return row;
  return row / 16 * 8 + row % 8 + (row % 16 < 8 ? 0 : p.from.rows / 2);
}

__global__ void __launch_bounds__(kThreads) row_factor_kernel(const PackLowBitsParams p) {
  const int64_t groups = (p.from.in + p.from.group - 1) / p.from.group;
  for (int64_t to = first_index(); to < p.from.rows; to += index_step()) {
    const int64_t row = source_row(p, to);
    float highest = 0;
    for (int64_t i = 0; i < groups; ++i) {
      highest = fmaxf(highest, fabsf(p.from.scales[row * groups + i]));
      // A minimum beside scales of zero.
      if (!p.form.is_zero) {
        highest = fmaxf(highest, fabsf(p.from.offsets[row * groups + i]) / 256);
      }
    }
    int exponent = 0;
    if (highest > 0 && isfinite(highest)) {
      frexpf(highest, &exponent);
      --exponent;
    }
    p.row_factor[to] = p.form.is_by_row ? p.from.scales[row * groups] : ldexpf(1.0f, exponent);
  }
}

// A block of the grid for each block of the weight, by 128 threads: those of a
// warpgroup.
template <LowCode kCode>
__global__ void __launch_bounds__(128) pack_kernel(const PackLowBitsParams p) {
  const PlainLowRows& from = p.from;
  const int64_t chunks = chunks_of(from.in);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) / chunks * kLowBlockRows;
  const int64_t first_input = static_cast<int64_t>(blockIdx.x) % chunks * kLowChunk;
  constexpr int kCodeBytes = LowCodes<kCode>::kCodeBytes;
  const int groups_of_block = kLowChunk / p.form.group;
  auto* const block =
      static_cast<uint8_t*>(p.to) +
      int64_t{blockIdx.x} * (kCodeBytes + kLowBlockRows * groups_of_block * kLowPairBytes);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane_row = thread / 32 * 16 + thread % 32 / 4;
  const auto code_at = [&](int row, int input) {
    const bool is_there = first_row + row < from.rows && first_input + input < from.in;
    const int64_t source = is_there ? source_row(p, first_row + row) : 0;
    const int code = is_there ? from.codes[source * from.in + first_input + input] : 0;
    return static_cast<uint32_t>(code) & (kCode == LowCode::kU4 ? 0xfu : 0xffu);
  };
  constexpr int kWords = LowCodes<kCode>::kWords;  // of 16 inputs
  uint32_t words[8 * kWords];
  for (int k = 0; k < 8; ++k) {
    for (int w = 0; w < kWords; ++w) words[k * kWords + w] = 0;
    for (int i = 0; i < 4; ++i) {
      for (int second = 0; second < 2; ++second) {
        const uint32_t code =
            code_at(lane_row + i % 2 * 8, 16 * k + i / 2 * 8 + 2 * (thread % 4) + second);
        // As LowCodes<kCode>::shifted() takes them apart.
        if (kCode == LowCode::kU4) words[k] |= code << (4 * i + 16 * second);
        if (kCode != LowCode::kU4) words[2 * k + i / 2] |= code << (8 * (i % 2) + 16 * second);
      }
    }
  }
  auto* const pieces = reinterpret_cast<uint4*>(block);
  for (int i = 0; i < 2 * kWords; ++i) {
    pieces[128 * i + thread] =
        make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
  }
  auto* const pairs = reinterpret_cast<__half2*>(block + kCodeBytes);
  const int64_t groups = (from.in + from.group - 1) / from.group;
  for (int i = thread; i < groups_of_block * kLowBlockRows; i += 128) {
    const int64_t row = first_row + i % kLowBlockRows;
    const int64_t group = first_input / from.group + i / kLowBlockRows;
    float scale = 0;
    float offset = 0;
    if (row < from.rows && group < groups) {
      const float factor = p.row_factor[row];
      const int64_t source = source_row(p, row) * groups + group;
      scale = p.form.is_by_row ? 1.0f : from.scales[source] / factor;
      offset = from.offsets[source];
      if (!p.form.is_zero) offset /= factor;
    }
    pairs[i] = __floats2half2_rn(scale, offset);
  }
}

template <LowCode kCode>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const __grid_constant__ EmbedLowBitsParams p) {
  dependency_wait();
  dependency_trigger();
  constexpr int kCodeBytes = LowCodes<kCode>::kCodeBytes;
  const int block_bytes = kCodeBytes + kLowBlockRows * (kLowChunk / p.form.group) * kLowPairBytes;
  const int64_t chunks = chunks_of(p.hidden);
  for (int64_t t = blockIdx.x; t < p.rows; t += gridDim.x) {
    const int64_t id = p.ids[t];
    const int row = static_cast<int>(id % kLowBlockRows);
    const float factor = p.row_factor[id];
    auto* const to = static_cast<__nv_bfloat16*>(p.out) + t * p.hidden;
    for (int64_t input = threadIdx.x; input < p.hidden; input += kThreads) {
      const auto* const block = static_cast<const uint8_t*>(p.table) +
                                (id / kLowBlockRows * chunks + input / kLowChunk) * block_bytes;
      const int k = static_cast<int>(input % kLowChunk);
      // The lane that multiplies it, and where it has it.
      const int lane = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
      const int i = row % 16 / 8 + k % 16 / 8 * 2;
      constexpr int kWords = LowCodes<kCode>::kWords;
      const int word = k / 16 * kWords;
      const auto* const words = reinterpret_cast<const uint32_t*>(block);
      uint32_t pair[kWords];
      for (int w = 0; w < kWords; ++w) {
        pair[w] = words[((word + w) / 4 * 128 + lane) * 4 + (word + w) % 4];
      }
      const __half2 with = reinterpret_cast<const __half2*>(
          block + kCodeBytes)[k / p.form.group * kLowBlockRows + row];
      const LowScale by = low_scale<kCode>(with, p.form.is_zero);
      const __nv_bfloat162 shifted = LowCodes<kCode>::shifted(pair, i);
      const float code = k % 2 == 0 ? __low2float(shifted) : __high2float(shifted);
      const float number = fmaf(code, by.scale, -by.less) * factor;
      to[input] = __float2bfloat16_rn(__bfloat162float(__float2bfloat16_rn(number)) * p.scale);
    }
  }
}

}  // namespace

cudaError_t launch_read_low_part(const ReadLowPartParams& params, cudaStream_t stream) {
  if (params.to.rows <= 0) return cudaSuccess;
  read_codes_kernel<<<grid_of(params.to.rows * params.to.in), kThreads, 0, stream>>>(params);
  read_scales_kernel<<<grid_of(params.to.rows), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch_round_low_rows(const RoundLowRowsParams& params, cudaStream_t stream) {
  if (params.to.rows <= 0) return cudaSuccess;
  round_rows_kernel<<<grid_of(params.to.rows * 8), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch_pack_low_bits(const PackLowBitsParams& params, cudaStream_t stream) {
  if (params.from.rows <= 0) return cudaSuccess;
  row_factor_kernel<<<grid_of(params.from.rows), kThreads, 0, stream>>>(params);
  const auto blocks =
      static_cast<unsigned>(low_row_blocks(params.from.rows) * low_chunks(params.from.in));
  if (params.form.code == LowCode::kU4) {
    pack_kernel<LowCode::kU4><<<blocks, 128, 0, stream>>>(params);
  } else {
    pack_kernel<LowCode::kI8><<<blocks, 128, 0, stream>>>(params);  // bytes are bytes
  }
  return cudaGetLastError();
}

cudaError_t launch_embed_low_bits(const EmbedLowBitsParams& params, cudaStream_t stream) {
  if (params.rows <= 0 || params.hidden <= 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>(params.rows < kMaxBlocks ? params.rows : kMaxBlocks));
  auto* const kernel = params.form.code == LowCode::kU4   ? embed_kernel<LowCode::kU4>
                       : params.form.code == LowCode::kI8 ? embed_kernel<LowCode::kI8>
                                                          : embed_kernel<LowCode::kE4M3>;
  return launch_pdl(kernel, blocks, dim3(kThreads), 0, stream, params);
}

}  // namespace rudder::cuda
