// Weights of all experts in E2M1 with a power of two for each 32 inputs (MXFP4), as the products of
// expert_product.h read them: 4.25 bits a number.
//
// An expert's rows lie in chunks of 128 inputs; of a chunk, eight rows are a block: 512 bytes of
// codes and a byte of scale for each row and group. So what a tile has of a chunk is one copy.
// Bytes [(8 group + row) * 16, ...) of a block are 32 inputs of a row; nibble i of a word is its
// input 2i, nibble 4 + i the next one, so that both halves of a word come out of one instruction.
// Behind a row's last input are zeros.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

inline constexpr int32_t kCodeChunk = 128;  // inputs
inline constexpr int32_t kCodeGroup = 32;   // that share a scale
inline constexpr int32_t kCodeRows = 8;     // of a block
inline constexpr int32_t kCodeScalesAt = kCodeRows * kCodeChunk / 2;
inline constexpr int32_t kCodeBlockBytes = kCodeScalesAt + kCodeRows * (kCodeChunk / kCodeGroup);

__host__ __device__ constexpr int64_t code_chunks(int64_t in) {
  return (in + kCodeChunk - 1) / kCodeChunk;
}
// Of an expert's row, in whatever blocks it lies.
constexpr int64_t code_row_bytes(int64_t in) {
  return code_chunks(in) * kCodeBlockBytes / kCodeRows;
}

// Numbers are 2^-64 of what they are when they are multiplied, so that scales up to this one are in
// the range of bf16; those below 2^-62 lose bits.
inline constexpr float kCodeUnit = 0x1p64f;
inline constexpr int kMostCodeScale = 192;  // of E8M0: 2^(192 - 127)

// Some rows of an expert as a file has them, on the device.
struct PackExpertCodesParams {
  const uint8_t* codes = nullptr;   // [rows, in / 2], the first of two in the low bits
  const uint8_t* scales = nullptr;  // [rows, in / 32] E8M0
  int64_t rows = 0;
  int64_t in = 0;
  int64_t first_row = 0;  // of the expert's
  int64_t out = 0;        // rows of the expert, a multiple of kCodeRows
  uint8_t* to = nullptr;  // the expert's
};
cudaError_t launch_pack_expert_codes(const PackExpertCodesParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
