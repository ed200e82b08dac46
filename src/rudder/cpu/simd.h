// Sixteen fp32 lanes in the instruction set that the including file is compiled for. Each operation
// is one IEEE operation in each lane, so a lane's result does not depend on its neighbours. Only
// kernels_<isa>.cpp include this file, and each names its own namespace in RUDDER_CPU_ISA: a
// function that is compiled for two instruction sets must be two functions, or the linker may keep
// the one that traps. For the same reason code below this header uses no standard container or
// algorithm.
//
// It is written by hand instead of with Highway: the kernels need only what is on this page, and
// its sums have one order on every machine, which scalable vectors would not give.
#pragma once

#ifndef RUDDER_CPU_ISA
#ifdef __AVX2__
#error "name a namespace in RUDDER_CPU_ISA: portable's functions must stay portable"
#endif
#define RUDDER_CPU_ISA portable
#endif

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace rudder::cpu::RUDDER_CPU_ISA {

inline constexpr int kLanes = 16;

#if defined(__AVX512F__)

struct Vec {
  __m512 v;
};
inline Vec set(float x) {
  return {_mm512_set1_ps(x)};
}
inline Vec load(const float* from) {
  return {_mm512_loadu_ps(from)};
}
inline void store(float* to, Vec x) {
  _mm512_storeu_ps(to, x.v);
}
inline Vec operator+(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
// a * b + c, rounded once where the machine can.
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// b where either is NaN.
inline Vec max(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}
// a < b ? x : y
inline Vec where_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// x * 2^n for whole n in [-252, 254].
inline Vec times_power_of_two(Vec x, Vec n) {
  return {_mm512_scalef_ps(x.v, n.v)};
}
// The low and the high bf16 of each of sixteen 4-byte words.
inline Vec load_low_bf16(const void* from) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(from), 16))};
}
inline Vec load_high_bf16(const void* from) {
  return {
      _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi32(-0x10000)))};
}
// Rounded to nearest even, NaN stays NaN. The bf16 instructions take subnormals for 0, as their
// products do.
inline void store_bf16(uint16_t* to, Vec x) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v)));
#else
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i high = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(high));
#endif
}

#elif defined(__AVX2__)

struct Vec {
  __m256 lo, hi;
};
inline Vec set(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline Vec load(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
inline void store(float* to, Vec x) {
  _mm256_storeu_ps(to, x.lo);
  _mm256_storeu_ps(to + 8, x.hi);
}
inline Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline __m256 where_less(__m256 a, __m256 b, __m256 x, __m256 y) {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
inline Vec where_less(Vec a, Vec b, Vec x, Vec y) {
  return {where_less(a.lo, b.lo, x.lo, y.lo), where_less(a.hi, b.hi, x.hi, y.hi)};
}
// In two factors, so that subnormal and overflowing results are correct.
inline __m256 times_power_of_two(__m256 x, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const auto power = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(x, power(half)), power(_mm256_sub_epi32(whole, half)));
}
inline Vec times_power_of_two(Vec x, Vec n) {
  return {times_power_of_two(x.lo, n.lo), times_power_of_two(x.hi, n.hi)};
}
inline Vec load_low_bf16(const void* from) {
  const __m256i* words = static_cast<const __m256i*>(from);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(words), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(words + 1), 16))};
}
inline Vec load_high_bf16(const void* from) {
  const __m256i* words = static_cast<const __m256i*>(from);
  const __m256i mask = _mm256_set1_epi32(-0x10000);
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(words), mask)),
          _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(words + 1), mask))};
}
inline __m256i bf16_bits(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
inline void store_bf16(uint16_t* to, Vec x) {
  const __m256i packed = _mm256_packus_epi32(bf16_bits(x.lo), bf16_bits(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
}

#else

// The compiler's own vectors, lowered to whatever the baseline has (SSE2 on x86-64).
struct Vec {
  typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
  Lanes v;
};
inline Vec set(float x) {
  return {x - Vec::Lanes{}};
}
inline Vec load(const float* from) {
  Vec out;
  std::memcpy(&out.v, from, sizeof(out.v));
  return out;
}
inline void store(float* to, const Vec& x) {
  std::memcpy(to, &x.v, sizeof(x.v));
}
inline Vec operator+(const Vec& a, const Vec& b) {
  return {a.v + b.v};
}
inline Vec operator-(const Vec& a, const Vec& b) {
  return {a.v - b.v};
}
inline Vec operator*(const Vec& a, const Vec& b) {
  return {a.v * b.v};
}
inline Vec operator/(const Vec& a, const Vec& b) {
  return {a.v / b.v};
}
inline Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  return {a.v * b.v + c.v};
}
inline Vec max(const Vec& a, const Vec& b) {
  return {a.v > b.v ? a.v : b.v};
}
inline Vec min(const Vec& a, const Vec& b) {
  return {a.v < b.v ? a.v : b.v};
}
inline Vec where_less(const Vec& a, const Vec& b, const Vec& x, const Vec& y) {
  return {a.v < b.v ? x.v : y.v};
}
inline float power_of_two(int exponent) {
  const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}
inline Vec times_power_of_two(const Vec& x, const Vec& n) {
  Vec out;
  for (int i = 0; i < kLanes; ++i) {
    const int whole = n.v[i] == n.v[i] ? static_cast<int>(n.v[i]) : 0;
    const int half = whole >> 1;
    out.v[i] = x.v[i] * power_of_two(half) * power_of_two(whole - half);
  }
  return out;
}
inline Vec from_words(const void* from, int shift) {
  uint32_t words[kLanes];
  std::memcpy(words, from, sizeof(words));
  for (uint32_t& word : words) word = word << shift & 0xffff0000u;
  Vec out;
  std::memcpy(&out.v, words, sizeof(words));
  return out;
}
inline Vec load_low_bf16(const void* from) {
  return from_words(from, 16);
}
inline Vec load_high_bf16(const void* from) {
  return from_words(from, 0);
}
inline void store_bf16(uint16_t* to, const Vec& x) {
  for (int i = 0; i < kLanes; ++i) {
    const float value = x.v[i];
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    to[i] =
        static_cast<uint16_t>((nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
  }
}

#endif

// The first `count` lanes; the others are 0 and are not read or written.
inline Vec load_first(const float* from, int64_t count) {
  float lanes[kLanes] = {};
  std::memcpy(lanes, from, static_cast<size_t>(count) * sizeof(float));
  return load(lanes);
}
inline void store_first(float* to, Vec x, int64_t count) {
  float lanes[kLanes];
  store(lanes, x);
  std::memcpy(to, lanes, static_cast<size_t>(count) * sizeof(float));
}

// Over the lanes, in one order: halves, quarters, ...
#if defined(__AVX2__)
inline __m256 half_of(Vec x, bool high) {
#if defined(__AVX512F__)
  return high ? _mm512_extractf32x8_ps(x.v, 1) : _mm512_castps512_ps256(x.v);
#else
  return high ? x.hi : x.lo;
#endif
}
template <typename F128, typename F256>
inline float fold(Vec x, F128 f128, F256 f256) {
  const __m256 eight = f256(half_of(x, false), half_of(x, true));
  const __m128 four = f128(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = f128(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(f128(two, _mm_movehdup_ps(two)));
}
inline float sum(Vec x) {
  return fold(
      x, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); },
      [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); });
}
inline float highest(Vec x) {
  return fold(
      x, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); },
      [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); });
}
#else
inline float sum(const Vec& x) {
  Vec lanes = x;
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes.v[i] += lanes.v[i + half];
  }
  return lanes.v[0];
}
inline float highest(const Vec& x) {
  Vec lanes = x;
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lanes.v[i] = lanes.v[i] > lanes.v[i + half] ? lanes.v[i] : lanes.v[i + half];
    }
  }
  return lanes.v[0];
}
#endif

}  // namespace rudder::cpu::RUDDER_CPU_ISA
