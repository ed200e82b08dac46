#include "rudder/steer/capture/sha256.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace rudder::steer::capture {
namespace {

alignas(16) constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::array<uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t big_endian(const std::byte* at) {
  return static_cast<uint32_t>(at[0]) << 24 | static_cast<uint32_t>(at[1]) << 16 |
         static_cast<uint32_t>(at[2]) << 8 | static_cast<uint32_t>(at[3]);
}

}  // namespace

void sha256_blocks_portable(std::array<uint32_t, 8>& state, const std::byte* blocks, size_t count) {
  for (; count > 0; --count, blocks += 64) {
    std::array<uint32_t, 64> w;
    for (size_t i = 0; i < 16; ++i) w[i] = big_endian(blocks + 4 * i);
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + t1;
      d = c;
      c = b;
      b = a;
      a = t1 + t2;
    }
    const std::array<uint32_t, 8> sums = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += sums[i];
  }
}

bool sha256_has_instructions() {
  static const bool has = [] {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && ((b >> 29) & 1u) != 0 &&
           __builtin_cpu_supports("sse4.1") != 0;
  }();
  return has;
}

// The state is held as the instructions want it, {ABEF, CDGH}; each does two rounds. w[i % 4] holds
// four words of the schedule: words 4i to 4i + 3.
__attribute__((target("sha,sse4.1,ssse3"))) void sha256_blocks_instructions(
    std::array<uint32_t, 8>& state, const std::byte* blocks, size_t count) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const auto* in = reinterpret_cast<const __m128i*>(state.data());
  const __m128i dcba = _mm_loadu_si128(in);
  const __m128i hgfe = _mm_loadu_si128(in + 1);
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(hgfe, 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; count > 0; --count, blocks += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& word = w[i % 4];
      if (i < 4) {
        word =
            _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks) + i), swap);
      } else {
        const __m128i& last = w[(i + 3) % 4];
        const __m128i between = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
        word = _mm_sha256msg2_epu32(
            _mm_add_epi32(_mm_sha256msg1_epu32(word, w[(i + 1) % 4]), between), last);
      }
      const __m128i sum =
          _mm_add_epi32(word, _mm_load_si128(reinterpret_cast<const __m128i*>(kRound.data()) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  auto* out = reinterpret_cast<__m128i*>(state.data());
  _mm_storeu_si128(out, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(out + 1, _mm_alignr_epi8(dchg, feba, 8));
}

Sha256::Sha256() : state_(kInitial) {}

void Sha256::compress(const std::byte* blocks, size_t count) {
  if (count == 0) return;
  if (sha256_has_instructions()) {
    sha256_blocks_instructions(state_, blocks, count);
  } else {
    sha256_blocks_portable(state_, blocks, count);
  }
}

void Sha256::update(std::span<const std::byte> bytes) {
  const size_t held = length_ % 64;
  length_ += bytes.size();
  if (held > 0) {
    const size_t taken = std::min(bytes.size(), 64 - held);
    std::copy_n(bytes.begin(), taken, pending_.begin() + static_cast<ptrdiff_t>(held));
    bytes = bytes.subspan(taken);
    if (held + taken < 64) return;
    compress(pending_.data(), 1);
  }
  compress(bytes.data(), bytes.size() / 64);
  const auto rest = bytes.last(bytes.size() % 64);
  std::copy(rest.begin(), rest.end(), pending_.begin());
}

std::string Sha256::finish_hex() {
  const uint64_t bits = length_ * 8;
  std::array<std::byte, 72> padding = {std::byte{0x80}};
  const size_t zeros = (119 - length_ % 64) % 64;
  for (size_t i = 0; i < 8; ++i)
    padding[1 + zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(std::span(padding).first(1 + zeros + 8));
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) {
      hex += kDigits[(word >> static_cast<unsigned>(shift)) & 15u];
    }
  }
  return hex;
}

}  // namespace rudder::steer::capture
