// KvFormat: how a KV cache stores keys and values. The backend says which (Ops::kv_format); model,
// exec and the memory budget read it.
#pragma once

#include <cstdint>
#include <string>

#include "rudder/tensor/dtype.h"

namespace rudder::ops {

struct KvFormat {
  tensor::DType dtype = tensor::DType::kF32;  // of a number: F32, BF16, F8E4M3 or I8
  // Each head's key, and its value, of each token has an f32 scale: its largest magnitude over
  // largest_code(dtype). Of F8E4M3 and I8; I8 has always scales of its tokens.
  bool scales_tokens = false;

  bool operator==(const KvFormat&) const = default;
  // Are numbers stored as codes, which a scale is to be multiplied with?
  bool has_codes() const { return dtype == tensor::DType::kF8E4M3 || dtype == tensor::DType::kI8; }
  // Of a head's key of one token.
  int64_t row_bytes(int64_t head_dim) const {
    return head_dim * static_cast<int64_t>(tensor::dtype_bytes(dtype)) +
           (scales_tokens ? int64_t{sizeof(float)} : 0);
  }
};

inline constexpr KvFormat kFp8TokenKv = {tensor::DType::kF8E4M3, true};
inline constexpr KvFormat kInt8TokenKv = {tensor::DType::kI8, true};

// The code that the largest magnitude of a row becomes, where tokens have scales.
constexpr float largest_code(tensor::DType dtype) {
  return dtype == tensor::DType::kI8 ? 127.0f : tensor::kMaxF8E4M3;
}

// For people: "BF16", "I8 with a scale a token and head".
inline std::string kv_format_name(const KvFormat& format) {
  std::string name(tensor::dtype_name(format.dtype));
  return format.scales_tokens ? name + " with a scale a token and head" : name;
}

}  // namespace rudder::ops
