#include "rudder/base/checksum.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rudder {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kStripe = kLanes * sizeof(uint64_t);
constexpr uint64_t kPrime = 0x9e3779b97f4a7c15ULL;  // 2^64 over the golden ratio, odd

using Words = std::array<uint64_t, kLanes>;

struct Sums {
  Words lanes = {1, 2, 3, 4, 5, 6, 7, 8};
  // Of the next stripe's words; each stripe adds kPrime.
  Words keys = {0xa0761d6478bd642fULL, 0xe7037ed1a0b428dbULL, 0x8ebc6af09c88c6e3ULL,
                0x589965cc75374cc3ULL, 0x1d8e4e27c47d124fULL, 0xeb44accab455d165ULL,
                0x9fb21c651e98df25ULL, 0xc3a5c85c97cb3127ULL};
};

void add_stripes(Sums& sums, const std::byte* data, size_t stripes) {
  for (size_t s = 0; s < stripes; ++s, data += kStripe) {
    Words words;
    std::memcpy(words.data(), data, sizeof(words));
    for (size_t i = 0; i < kLanes; ++i) {
      const uint64_t keyed = words[i] ^ sums.keys[i];
      sums.lanes[i] += (keyed & 0xffffffffU) * (keyed >> 32U);
      sums.lanes[i ^ 1U] += words[i];
      sums.keys[i] += kPrime;
    }
  }
}

#if defined(__x86_64__)
#define RUDDER_AVX2 __attribute__((target("avx2")))

RUDDER_AVX2 inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

RUDDER_AVX2 inline __m256i add_words(__m256i lanes, __m256i words, __m256i keys) {
  const __m256i keyed = _mm256_xor_si256(words, keys);
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  return _mm256_add_epi64(_mm256_add_epi64(lanes, product),
                          _mm256_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2)));
}

RUDDER_AVX2 void add_stripes_avx2(Sums& sums, const std::byte* data, size_t stripes) {
  __m256i low = load(sums.lanes.data());
  __m256i high = load(sums.lanes.data() + 4);
  __m256i low_key = load(sums.keys.data());
  __m256i high_key = load(sums.keys.data() + 4);
  const __m256i step = _mm256_set1_epi64x(static_cast<int64_t>(kPrime));
  for (size_t s = 0; s < stripes; ++s, data += kStripe) {
    low = add_words(low, load(data), low_key);
    high = add_words(high, load(data + kStripe / 2), high_key);
    low_key = _mm256_add_epi64(low_key, step);
    high_key = _mm256_add_epi64(high_key, step);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums.lanes.data()), low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums.lanes.data() + 4), high);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums.keys.data()), low_key);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums.keys.data() + 4), high_key);
}
#endif

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes) {
  Sums sums;
  const size_t stripes = bytes.size() / kStripe;
  auto* add = add_stripes;
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) add = add_stripes_avx2;
#endif
  add(sums, bytes.data(), stripes);
  std::array<std::byte, kStripe> rest = {};
  const std::span<const std::byte> left = bytes.subspan(stripes * kStripe);
  if (!left.empty()) std::memcpy(rest.data(), left.data(), left.size());
  add_stripes(sums, rest.data(), 1);
  uint64_t sum = bytes.size();
  for (const uint64_t lane : sums.lanes) sum = std::rotl((sum ^ lane) * kPrime, 31);
  return (sum ^ (sum >> 29U)) * kPrime;
}

}  // namespace rudder
