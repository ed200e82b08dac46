#include "rudder/cpu/sample_kernels.h"

#include <cfloat>
#include <cstring>
#include <vector>

// Vectors are passed only between functions that are always inlined, so no ABI applies.
#pragma GCC diagnostic ignored "-Wpsabi"

#define RUDDER_INLINE inline __attribute__((always_inline))

namespace rudder::cpu {
namespace {

// 16 lanes on every instruction set: narrower ones use several registers.
constexpr int64_t kLanes = 16;
using F32x16 = float __attribute__((vector_size(64)));
using I32x16 = int32_t __attribute__((vector_size(64)));
using U32x16 = uint32_t __attribute__((vector_size(64)));
using U8x16 = uint8_t __attribute__((vector_size(16)));

RUDDER_INLINE F32x16 splat(float x) {
  return F32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

// min(left, 16) elements; the other lanes are `fill`.
template <typename V, typename T>
RUDDER_INLINE V load(const T* from, int64_t left, const V& fill) {
  V v;
  if (left >= kLanes) {
    std::memcpy(&v, from, sizeof(V));
  } else {
    v = fill;
    std::memcpy(&v, from, static_cast<size_t>(left) * sizeof(T));
  }
  return v;
}

RUDDER_INLINE void store(float* to, int64_t left, const F32x16& v) {
  if (left >= kLanes) {
    std::memcpy(to, &v, sizeof(v));
  } else {
    std::memcpy(to, &v, static_cast<size_t>(left) * sizeof(float));
  }
}

// Lanes combined in one fixed order: halves, quarters, eighths, the rest.
template <typename V, typename Op>
RUDDER_INLINE auto reduce(const V& v, Op op) {
  const auto v8 = op(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  const auto v4 =
      op(__builtin_shufflevector(v8, v8, 0, 1, 2, 3), __builtin_shufflevector(v8, v8, 4, 5, 6, 7));
  return op(op(v4[0], v4[2]), op(v4[1], v4[3]));
}

struct Add {
  RUDDER_INLINE auto operator()(const auto& a, const auto& b) const { return a + b; }
};
struct Max {
  RUDDER_INLINE auto operator()(const auto& a, const auto& b) const { return a > b ? a : b; }
};
struct Or {
  RUDDER_INLINE auto operator()(const auto& a, const auto& b) const { return a | b; }
};

RUDDER_INLINE RowScan scan_body(const float* x, int64_t n, float* block_max) {
  const F32x16 lowest = splat(-kInfinity);
  I32x16 bad = {};
  RowScan result{-kInfinity, false};
  for (int64_t begin = 0; begin < n; begin += kSampleBlock) {
    const int64_t end = begin + kSampleBlock < n ? begin + kSampleBlock : n;
    F32x16 highest = lowest;
    for (int64_t i = begin; i < end; i += kLanes) {
      const F32x16 v = load(x + i, end - i, lowest);
      highest = Max{}(v, highest);
      bad |= ~(v <= FLT_MAX);
    }
    const float block = reduce(highest, Max{});
    *block_max++ = block;
    if (block > result.max) result.max = block;
  }
  result.has_bad = reduce(bad, Or{}) != 0;
  return result;
}

// e^x for x <= 0, about 1 ulp: x = n ln 2 + r, then a polynomial in r. Coefficients: S. Moshier,
// Cephes, expf. Multiplications and additions only, so every instruction set rounds alike.
RUDDER_INLINE F32x16 exp_of(const F32x16& x) {
  constexpr float kLowest = -87.0f;      // e^-87 is still a normal number
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const F32x16 clamped = x > kLowest ? x : splat(kLowest);
  const F32x16 shifted = clamped * 1.44269504f + kRound;
  const F32x16 n = shifted - kRound;
  const F32x16 r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  F32x16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // The low bits of `shifted` are n: moved into the exponent field they make 2^n.
  const U32x16 exponent = ((U32x16)shifted << 23) + (127u << 23);
  p *= (F32x16)exponent;
  return x > kLowest ? p : splat(0);
}

RUDDER_INLINE double exp_row_body(const float* x, int64_t n, float max, float scale, float* w,
                                  double* block_sum) {
  const F32x16 lowest = splat(-kInfinity);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSampleBlock) {
    const int64_t end = begin + kSampleBlock < n ? begin + kSampleBlock : n;
    F32x16 sums = {};
    for (int64_t i = begin; i < end; i += kLanes) {
      const F32x16 v = exp_of((load(x + i, end - i, lowest) - max) * scale);
      sums += v;
      if (w != nullptr) store(w + i, end - i, v);
    }
    const double block = reduce(sums, Add{});
    if (block_sum != nullptr) *block_sum++ = block;
    total += block;
  }
  return total;
}

RUDDER_INLINE void mask_body(float* x, int64_t n, const uint32_t* words) {
  constexpr U32x16 kBit = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                           1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  for (int64_t i = 0; i < n; i += kLanes) {
    const uint32_t bits = words[i / 32] >> (i % 32) & 0xffff;
    if (bits == 0xffff) continue;
    const F32x16 v = load(x + i, n - i, F32x16{});
    store(x + i, n - i, (kBit & bits) != 0 ? v : splat(-kInfinity));
  }
}

RUDDER_INLINE void penalize_body(float* x, int64_t n, const int32_t* output_count,
                                 const uint8_t* prompt_seen, const Penalties& penalties) {
  const float repetition = penalties.repetition;
  const float presence = penalties.presence;
  const float frequency = penalties.frequency;
  for (int64_t i = 0; i < n; i += kLanes) {
    const I32x16 count = load(output_count + i, n - i, I32x16{});
    const U8x16 prompt_bytes = load(prompt_seen + i, n - i, U8x16{});
    uint64_t prompt_words[2];
    std::memcpy(prompt_words, &prompt_bytes, sizeof(prompt_words));
    // Most tokens of a vocabulary are not in the text.
    if ((prompt_words[0] | prompt_words[1]) == 0 && reduce(count, Or{}) == 0) continue;
    F32x16 v = load(x + i, n - i, F32x16{});
    const I32x16 prompt = __builtin_convertvector(prompt_bytes, I32x16);
    const I32x16 in_output = count > 0;
    const I32x16 seen = in_output | (prompt != 0);
    const F32x16 repeated = v > 0.0f ? v / repetition : v * repetition;
    v = seen ? repeated : v;
    v -= frequency * __builtin_convertvector(count, F32x16);
    v -= in_output ? splat(presence) : F32x16{};
    v = v > FLT_MAX ? splat(FLT_MAX) : v;
    store(x + i, n - i, v);
  }
}

RUDDER_INLINE int64_t count_before_body(const float* x, int64_t n, int64_t token) {
  const float value = x[token];
  const F32x16 lowest = splat(-kInfinity);
  I32x16 before = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32x16 v = load(x + i, n - i, lowest);
    before -= v > value;
    if (i + kLanes <= token) {
      before -= v == value;
    } else if (i < token) {
      for (int64_t j = i; j < token; ++j) before[j - i] += x[j] == value ? 1 : 0;
    }
  }
  return reduce(before, Add{});
}

// One set of functions an instruction set; the bodies are inlined into each.
#define RUDDER_SAMPLE_KERNELS(isa, attribute)                                                 \
  attribute RowScan scan_##isa(const float* x, int64_t n, float* block_max) {                 \
    return scan_body(x, n, block_max);                                                        \
  }                                                                                           \
  attribute double exp_row_##isa(const float* x, int64_t n, float max, float scale, float* w, \
                                 double* block_sum) {                                         \
    return exp_row_body(x, n, max, scale, w, block_sum);                                      \
  }                                                                                           \
  attribute void mask_##isa(float* x, int64_t n, const uint32_t* words) {                     \
    mask_body(x, n, words);                                                                   \
  }                                                                                           \
  attribute void penalize_##isa(float* x, int64_t n, const int32_t* output_count,             \
                                const uint8_t* prompt_seen, const Penalties& penalties) {     \
    penalize_body(x, n, output_count, prompt_seen, penalties);                                \
  }                                                                                           \
  attribute int64_t count_before_##isa(const float* x, int64_t n, int64_t token) {            \
    return count_before_body(x, n, token);                                                    \
  }                                                                                           \
  constexpr SampleKernels k_##isa = {#isa,       scan_##isa,     exp_row_##isa,               \
                                     mask_##isa, penalize_##isa, count_before_##isa}

RUDDER_SAMPLE_KERNELS(portable, );
RUDDER_SAMPLE_KERNELS(avx2, __attribute__((target("avx2"))));
RUDDER_SAMPLE_KERNELS(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))));

const std::vector<const SampleKernels*>& available_kernels() {
  static const std::vector<const SampleKernels*> kernels = [] {
    std::vector<const SampleKernels*> found = {&k_portable};
    if (__builtin_cpu_supports("avx2")) found.push_back(&k_avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      found.push_back(&k_avx512);
    }
    return found;
  }();
  return kernels;
}

}  // namespace

const SampleKernels& sample_kernels() {
  return *available_kernels().back();
}

std::span<const SampleKernels* const> all_sample_kernels() {
  return available_kernels();
}

}  // namespace rudder::cpu
