// Sixty-four codes at once, their dot products with a row in I8, and the numbers beside them, in
// the instruction set that the including file is compiled for. Included by kernels_<isa>.cpp
// through code_product.h.
#pragma once

#include <cstddef>

#include "rudder/cpu/simd.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

// Bytes: 64 codes, four of each of 16 columns. Dot: 16 sums of products of such codes with four
// codes of a row, which lie in one word.
#if defined(__AVX512F__)

struct Bytes {
  __m512i v;
};
inline Bytes load_bytes(const std::byte* from) {
  return {_mm512_loadu_si512(from)};
}
inline Bytes low_nibbles(Bytes x) {
  return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))};
}
inline Bytes high_nibbles(Bytes x) {
  return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))};
}
inline Bytes look_up(const uint8_t* table, Bytes x) {
  const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), x.v)};
}
inline Vec to_floats(__m512i x) {
  return {_mm512_cvtepi32_ps(x)};
}
inline Vec load_halfs(const std::byte* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline __m512i load_words16(const std::byte* from) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline __m512i load_words8(const std::byte* from) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Vec load_bf16s(const std::byte* from) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(load_words16(from), 16))};
}
inline Vec load_u8s(const std::byte* from) {
  return to_floats(load_words8(from));
}
// 2^(code - 127), NaN for 255.
inline Vec load_e8m0s(const std::byte* from) {
  const __m512i code = load_words8(from);
  const __mmask16 least = _mm512_testn_epi32_mask(code, code);
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255));
  __m512i bits = _mm512_slli_epi32(code, 23);
  bits = _mm512_mask_mov_epi32(bits, least, _mm512_set1_epi32(0x00400000));
  return {_mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000)))};
}
// Rounded to nearest even.
inline void store_codes(int8_t* to, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

#if !defined(__AVX512VNNI__)
using Words = __m512i;
inline Words zero_words() {
  return _mm512_setzero_si512();
}
inline Words add16(Words a, Words b) {
  return _mm512_add_epi16(a, b);
}
inline Words multiply_pairs(Bytes codes, uint32_t row) {
  return _mm512_maddubs_epi16(codes.v, _mm512_set1_epi32(static_cast<int>(row)));
}
inline Words add_pairs(Words x) {
  return _mm512_madd_epi16(x, _mm512_set1_epi16(1));
}
inline Words add_sixteenfold(Words low, Words high, int32_t start) {
  const Words both = _mm512_add_epi32(low, _mm512_slli_epi32(high, 4));
  return _mm512_add_epi32(both, _mm512_set1_epi32(start));
}
#endif

#elif defined(__AVX2__)

struct Bytes {
  __m256i lo, hi;
};
inline const __m256i* halves_of(const std::byte* from) {
  return reinterpret_cast<const __m256i*>(from);
}
inline Bytes load_bytes(const std::byte* from) {
  return {_mm256_loadu_si256(halves_of(from)), _mm256_loadu_si256(halves_of(from) + 1)};
}
inline Bytes low_nibbles(Bytes x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.lo, mask), _mm256_and_si256(x.hi, mask)};
}
inline Bytes high_nibbles(Bytes x) {
  return low_nibbles({_mm256_srli_epi16(x.lo, 4), _mm256_srli_epi16(x.hi, 4)});
}
inline Bytes look_up(const uint8_t* table, Bytes x) {
  const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m256i entries = _mm256_broadcastsi128_si256(sixteen);
  return {_mm256_shuffle_epi8(entries, x.lo), _mm256_shuffle_epi8(entries, x.hi)};
}
using Words = Bytes;
inline Vec to_floats(Words x) {
  return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)};
}
inline __m128i eight_words(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
inline Vec load_halfs(const std::byte* from) {
  return {_mm256_cvtph_ps(eight_words(from)), _mm256_cvtph_ps(eight_words(from + 16))};
}
inline Vec load_bf16s(const std::byte* from) {
  const auto widened = [](__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  };
  return {widened(eight_words(from)), widened(eight_words(from + 16))};
}
inline Words load_words8(const std::byte* from) {
  const __m128i codes = eight_words(from);
  return {_mm256_cvtepu8_epi32(codes), _mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8))};
}
inline Vec load_u8s(const std::byte* from) {
  return to_floats(load_words8(from));
}
inline Vec load_e8m0s(const std::byte* from) {
  const auto power = [](__m256i code) {
    const __m256i least = _mm256_cmpeq_epi32(code, _mm256_setzero_si256());
    const __m256i nan = _mm256_cmpeq_epi32(code, _mm256_set1_epi32(255));
    __m256i bits = _mm256_slli_epi32(code, 23);
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x00400000), least);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc00000), nan));
  };
  const Words codes = load_words8(from);
  return {power(codes.lo), power(codes.hi)};
}
inline void store_codes(int8_t* to, Vec x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  const __m256i in_order = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_packs_epi16(_mm256_castsi256_si128(in_order), _mm256_extracti128_si256(in_order, 1)));
}
inline Words zero_words() {
  return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
inline Words add16(Words a, Words b) {
  return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
inline Words multiply_pairs(Bytes codes, uint32_t row) {
  const __m256i word = _mm256_set1_epi32(static_cast<int>(row));
  return {_mm256_maddubs_epi16(codes.lo, word), _mm256_maddubs_epi16(codes.hi, word)};
}
inline Words add_pairs(Words x) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(x.lo, ones), _mm256_madd_epi16(x.hi, ones)};
}
inline Words add_sixteenfold(Words low, Words high, int32_t start) {
  const auto sum = [start](__m256i a, __m256i b) {
    return _mm256_add_epi32(_mm256_add_epi32(a, _mm256_slli_epi32(b, 4)), _mm256_set1_epi32(start));
  };
  return {sum(low.lo, high.lo), sum(low.hi, high.hi)};
}

#else

struct Bytes {
  uint8_t v[64];
};
inline Bytes load_bytes(const std::byte* from) {
  Bytes out;
  std::memcpy(out.v, from, sizeof(out.v));
  return out;
}
inline Bytes low_nibbles(Bytes x) {
  for (uint8_t& code : x.v) code &= 15;
  return x;
}
inline Bytes high_nibbles(Bytes x) {
  for (uint8_t& code : x.v) code >>= 4;
  return x;
}
inline Bytes look_up(const uint8_t* table, Bytes x) {
  for (uint8_t& code : x.v) code = table[code];
  return x;
}
inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
template <typename Stored, typename F>
Vec load_as(const std::byte* from, F number) {
  Vec out;
  for (int i = 0; i < kLanes; ++i) {
    Stored stored;
    std::memcpy(&stored, from + static_cast<size_t>(i) * sizeof(stored), sizeof(stored));
    out.v[i] = number(stored);
  }
  return out;
}
inline Vec load_halfs(const std::byte* from) {
  return load_as<uint16_t>(from, [](uint16_t half) {
    const uint32_t sign = uint32_t{half & 0x8000u} << 16;
    const uint32_t rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    const float size = float_of_bits(rest << 13) * 0x1p112f;
    return sign != 0 ? -size : size;
  });
}
inline Vec load_bf16s(const std::byte* from) {
  return load_as<uint16_t>(from, [](uint16_t bits) { return float_of_bits(uint32_t{bits} << 16); });
}
inline Vec load_u8s(const std::byte* from) {
  return load_as<uint8_t>(from, [](uint8_t code) { return static_cast<float>(code); });
}
inline Vec load_e8m0s(const std::byte* from) {
  return load_as<uint8_t>(from, [](uint8_t code) {
    const uint32_t bits = code == 0 ? 0x00400000u : uint32_t{code} << 23;
    return float_of_bits(code == 255 ? 0x7fc00000u : bits);
  });
}
// The sum with 1.5 * 2^23 rounds to nearest even, and has the code in its low bits.
inline void store_codes(int8_t* to, const Vec& x) {
  for (int i = 0; i < kLanes; ++i) {
    const float shifted = x.v[i] + 0x1.8p23f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    to[i] = static_cast<int8_t>(static_cast<uint8_t>(bits));
  }
}

#endif

inline uint32_t code_word(const int8_t* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

#if defined(__AVX512VNNI__)

// Operand: codes as a Dot takes them.
template <bool kSmall>
struct Dot {
  using Operand = Bytes;
  __m512i sums;

  static Operand operand(Bytes codes) { return codes; }
  void begin(int32_t start) { sums = _mm512_set1_epi32(start); }
  void add(const Operand& codes, const int8_t* row) {
    sums = _mm512_dpbusd_epi32(sums, codes.v, _mm512_set1_epi32(static_cast<int>(code_word(row))));
  }
  Vec value(int32_t /*start*/) const { return to_floats(sums); }
};

#elif defined(__AVX2__)

// kSmall: codes below 16, so that the products of a block (8 times 2 * 15 * 127) fit in 16 bits.
// Larger codes are multiplied by their halves of four bits.
template <bool kSmall>
struct Dot {
  using Operand = Bytes;
  Words sums;

  static Operand operand(const Bytes& codes) { return codes; }
  void begin(int32_t /*start*/) { sums = zero_words(); }
  void add(const Operand& codes, const int8_t* row) {
    sums = add16(sums, multiply_pairs(codes, code_word(row)));
  }
  Vec value(int32_t start) const {
    return to_floats(add_sixteenfold(add_pairs(sums), zero_words(), start));
  }
};
template <>
struct Dot<false> {
  struct Operand {
    Bytes low, high;
  };
  Dot<true> low, high;

  static Operand operand(const Bytes& codes) { return {low_nibbles(codes), high_nibbles(codes)}; }
  void begin(int32_t start) {
    low.begin(start);
    high.begin(start);
  }
  void add(const Operand& codes, const int8_t* row) {
    low.add(codes.low, row);
    high.add(codes.high, row);
  }
  Vec value(int32_t start) const {
    return to_floats(add_sixteenfold(add_pairs(low.sums), add_pairs(high.sums), start));
  }
};

#else

template <bool kSmall>
struct Dot {
  using Operand = Bytes;
  int32_t sums[kLanes];

  static Operand operand(const Bytes& codes) { return codes; }
  void begin(int32_t start) {
    for (int32_t& sum : sums) sum = start;
  }
  void add(const Operand& codes, const int8_t* row) {
    for (int c = 0; c < kLanes; ++c) {
      for (int i = 0; i < 4; ++i) sums[c] += codes.v[4 * c + i] * row[i];
    }
  }
  Vec value(int32_t /*start*/) const {
    Vec out;
    for (int c = 0; c < kLanes; ++c) out.v[c] = static_cast<float>(sums[c]);
    return out;
  }
};

#endif

}  // namespace rudder::cpu::RUDDER_CPU_ISA
