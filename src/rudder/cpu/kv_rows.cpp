#include "rudder/cpu/kv_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "rudder/base/check.h"

namespace rudder::cpu {
namespace {

using tensor::BF16;
using tensor::DType;
using tensor::F8E4M3;

// By what a row's numbers are multiplied to become codes; 0: they are zeros.
float inverse_of(float scale) {
  const bool is_normal = scale >= std::numeric_limits<float>::min() && std::isfinite(scale);
  return is_normal ? 1.0f / scale : 0.0f;
}

// NaN if a number is.
float largest_magnitude(const float* x, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::abs(x[i]);
    if (!(magnitude <= largest)) largest = magnitude;
    if (std::isnan(largest)) break;
  }
  return largest;
}

int8_t to_int8(float x) {
  return static_cast<int8_t>(std::nearbyint(std::clamp(x, -127.0f, 127.0f)));
}

}  // namespace

KvRows::KvRows(const ops::KvLayer& kv) : kv_(kv) {
  const ops::KvFormat format = kv.format();
  RUDDER_CHECK(format.dtype == DType::kF32 || format.dtype == DType::kBF16 || format.has_codes());
  RUDDER_CHECK(format.has_codes() || !format.scales_tokens);
  RUDDER_CHECK(format.dtype != DType::kI8 || format.scales_tokens);
  const bool has_head_scales = !kv.k_scale.empty() || !kv.v_scale.empty();
  RUDDER_CHECK(!has_head_scales || format == ops::KvFormat{DType::kF8E4M3});
}

void KvRows::write(int64_t slot, int part, int64_t head, const float* from) const {
  const int64_t at = index(slot, part, head);
  const int64_t count = kv_.head_dim;
  if (kv_.storage.dtype == DType::kF32) {
    std::copy_n(from, count, kv_.storage.as<float>() + at);
    return;
  }
  if (kv_.storage.dtype == DType::kBF16) {
    for (int64_t i = 0; i < count; ++i) kv_.storage.as<BF16>()[at + i] = tensor::to_bf16(from[i]);
    return;
  }
  if (kv_.token_scales.empty()) {
    const float scale = head_scale(part, head);
    auto* const to = kv_.storage.as<F8E4M3>() + at;
    for (int64_t i = 0; i < count; ++i) to[i] = tensor::to_f8e4m3(from[i] / scale);
    return;
  }
  const DType dtype = kv_.storage.dtype;
  const float scale = largest_magnitude(from, count) / ops::largest_code(dtype);
  *scale_at(slot, part, head) = scale;
  const float inverse = inverse_of(scale);
  for (int64_t i = 0; i < count; ++i) {
    const float code = inverse == 0 ? 0 : from[i] * inverse;
    if (dtype == DType::kI8) {
      kv_.storage.as<int8_t>()[at + i] = to_int8(code);
    } else {
      kv_.storage.as<F8E4M3>()[at + i] = tensor::to_f8e4m3(code);
    }
  }
}

const float* KvRows::row(int64_t slot, int part, int64_t head, float* room) const {
  const int64_t at = index(slot, part, head);
  const auto widen = [&](const auto* from) {
    for (int64_t i = 0; i < kv_.head_dim; ++i) room[i] = tensor::to_float(from[i]);
    return room;
  };
  switch (kv_.storage.dtype) {
    case DType::kF32:
      return kv_.storage.as<float>() + at;
    case DType::kBF16:
      return widen(kv_.storage.as<BF16>() + at);
    case DType::kI8:
      std::copy_n(kv_.storage.as<int8_t>() + at, kv_.head_dim, room);
      return room;
    default:
      return widen(kv_.storage.as<F8E4M3>() + at);
  }
}

void KvRows::read(int64_t slot, int part, int64_t head, float* out) const {
  const float* const stored = row(slot, part, head, out);
  const float scale = head_scale(part, head) * token_scale(slot, part, head);
  for (int64_t i = 0; i < kv_.head_dim; ++i) out[i] = stored[i] * scale;
}

void KvRows::move(int64_t from, int64_t to) const {
  const size_t bytes = tensor::dtype_bytes(kv_.storage.dtype);
  auto* const all = static_cast<std::byte*>(kv_.storage.data);
  for (int part = 0; part < kv_.parts; ++part) {
    for (int64_t head = 0; head < kv_.num_kv_heads; ++head) {
      std::memcpy(all + static_cast<size_t>(index(to, part, head)) * bytes,
                  all + static_cast<size_t>(index(from, part, head)) * bytes,
                  static_cast<size_t>(kv_.head_dim) * bytes);
      if (kv_.token_scales.empty()) continue;
      *scale_at(to, part, head) = *scale_at(from, part, head);
    }
  }
}

float KvRows::head_scale(int part, int64_t head) const {
  const ops::View& scale = part == 0 ? kv_.k_scale : kv_.v_scale;
  return scale.empty() ? 1.0f : scale.as<float>()[head];
}

float KvRows::token_scale(int64_t slot, int part, int64_t head) const {
  return kv_.token_scales.empty() ? 1.0f : *scale_at(slot, part, head);
}

int64_t KvRows::index(int64_t slot, int part, int64_t head) const {
  const int64_t heads =
      (slot / kv_.block_size * kv_.parts + stored(part)) * kv_.num_kv_heads + head;
  return (heads * kv_.block_size + slot % kv_.block_size) * kv_.head_dim;
}

float* KvRows::scale_at(int64_t slot, int part, int64_t head) const {
  const int64_t block = slot / kv_.block_size;
  const int64_t in_block =
      (stored(part) * kv_.num_kv_heads + head) * kv_.block_size + slot % kv_.block_size;
  return kv_.token_scales.as<float>() + block * kv_.token_scales.shape[1] + in_block;
}

}  // namespace rudder::cpu
