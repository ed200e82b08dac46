// KvType: what a KV cache is stored as, of the kernels that write and read one. A plain value.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

// What a cache is stored as; kFp8Tokens and kInt8Tokens: codes, with a scale a token and head.
enum class KvType : uint8_t { kBf16, kFp8E4m3, kFp8Tokens, kInt8Tokens };

// Codes of a byte, which become f16 in registers.
__host__ __device__ constexpr bool is_narrow(KvType type) {
  return type != KvType::kBf16;
}
__host__ __device__ constexpr bool scales_tokens(KvType type) {
  return type == KvType::kFp8Tokens || type == KvType::kInt8Tokens;
}
constexpr const char* kv_type_name(KvType type) {
  constexpr const char* kNames[] = {"bf16", "fp8", "fp8_tokens", "int8_tokens"};
  return kNames[static_cast<int>(type)];
}

// What codes are multiplied with; null: there are none.
struct KvScales {
  const float* k = nullptr;  // [num_kv_heads], > 0; of kFp8E4m3 alone
  const float* v = nullptr;  // likewise
  // [num_blocks, token_pitch], where scales_tokens(): of each block first [2, num_kv_heads,
  // block_size]. The copy engine wants 16-byte alignment and a pitch that is a multiple of 4.
  float* tokens = nullptr;
  int64_t token_pitch = 0;
};

}  // namespace rudder::cuda
