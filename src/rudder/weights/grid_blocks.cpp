#include "rudder/weights/grid_blocks.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "rudder/tensor/dtype.h"
#include "rudder/weights/block_grids.h"

namespace rudder::weights {
namespace {

constexpr float kOfIq2[] = {8, 25, 43};
constexpr float kOfIq3Xxs[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr float kOfIq3S[] = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr float kOfIq1[] = {-1, 0, 1};

uint32_t byte_of(const std::byte* at, int i) {
  return std::to_integer<uint32_t>(at[i]);
}
uint32_t word_of(const std::byte* at, int i) {  // of 16 bits
  uint16_t word;
  std::memcpy(&word, at + i * 2, sizeof(word));
  return word;
}
uint32_t long_of(const std::byte* at, int i) {
  uint32_t word;
  std::memcpy(&word, at + i * 4, sizeof(word));
  return word;
}
float f16_of(uint32_t bits) {
  return tensor::to_float(tensor::F16{static_cast<uint16_t>(bits)});
}
uint32_t nibble_of(const std::byte* at, int i) {
  return byte_of(at, i / 2) >> 4 * (i % 2) & 15;
}

// Eight signs of seven bits: their parity is the eighth.
uint32_t signs_of(uint32_t seven) {
  seven &= 127;
  return seven | (static_cast<uint32_t>(std::popcount(seven)) & 1) << 7;
}

// `count` numbers of a point, each of `bits` bits; bit i of `signs`: the i-th is negative.
void put_point(const float* numbers, uint32_t point, int bits, int count, float scale,
               uint32_t signs, float* out) {
  for (int i = 0; i < count; ++i) {
    const float value = scale * numbers[point >> bits * i & ((1u << bits) - 1)];
    out[i] = (signs >> i & 1) != 0 ? -value : value;
  }
}
void put_shifted(uint32_t point, float scale, float shift, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = scale * (kOfIq1[point >> 2 * i & 3] + shift);
}

constexpr float kShift = 0.125f;  // of IQ1

}  // namespace

void expand_iq2_xxs(const std::byte* block, float* out) {
  const float scale = f16_of(word_of(block, 0));
  for (int group = 0; group < 8; ++group) {
    const std::byte* const points = block + 2 + group * 8;
    const uint32_t signs = long_of(points, 1);
    const float own = scale * (0.5f + static_cast<float>(signs >> 28)) * 0.25f;
    for (int i = 0; i < 4; ++i, out += 8) {
      put_point(kOfIq2, kIq2XxsGrid[byte_of(points, i)], 2, 8, own, signs_of(signs >> 7 * i), out);
    }
  }
}

void expand_iq2_xs(const std::byte* block, float* out) {
  const float scale = f16_of(word_of(block, 0));
  const std::byte* const scales = block + 66;
  for (int i = 0; i < 32; ++i, out += 8) {
    const uint32_t code = word_of(block + 2, i);
    const float own = scale * (0.5f + static_cast<float>(nibble_of(scales, i / 2))) * 0.25f;
    put_point(kOfIq2, kIq2XsGrid[code & 511], 2, 8, own, signs_of(code >> 9), out);
  }
}

void expand_iq2_s(const std::byte* block, float* out) {
  const float scale = f16_of(word_of(block, 0));
  const std::byte* const low = block + 2;
  const std::byte* const signs = low + 32;
  const std::byte* const high = signs + 32;
  const std::byte* const scales = high + 8;
  for (int i = 0; i < 32; ++i, out += 8) {
    const uint32_t code = byte_of(low, i) | (byte_of(high, i / 4) >> 2 * (i % 4) & 3) << 8;
    const float own = scale * (0.5f + static_cast<float>(nibble_of(scales, i / 2))) * 0.25f;
    put_point(kOfIq2, kIq2SGrid[code], 2, 8, own, byte_of(signs, i), out);
  }
}

void expand_iq3_xxs(const std::byte* block, float* out) {
  const float scale = f16_of(word_of(block, 0));
  const std::byte* const points = block + 2;
  for (int i = 0; i < 64; ++i, out += 4) {
    const uint32_t signs = long_of(points + 64, i / 8);
    const float own = scale * (0.5f + static_cast<float>(signs >> 28)) * 0.5f;
    const uint32_t eight = signs_of(signs >> 7 * (i % 8 / 2));
    put_point(kOfIq3Xxs, kIq3XxsGrid[byte_of(points, i)], 3, 4, own, eight >> 4 * (i % 2), out);
  }
}

void expand_iq3_s(const std::byte* block, float* out) {
  const float scale = f16_of(word_of(block, 0));
  const std::byte* const low = block + 2;
  const std::byte* const high = low + 64;
  const std::byte* const signs = high + 8;
  const std::byte* const scales = signs + 32;
  for (int i = 0; i < 64; ++i, out += 4) {
    const uint32_t code = byte_of(low, i) | (byte_of(high, i / 8) >> i % 8 & 1) << 8;
    const float own = scale * static_cast<float>(1 + 2 * nibble_of(scales, i / 8));
    put_point(kOfIq3S, kIq3SGrid[code], 3, 4, own, nibble_of(signs, i), out);
  }
}

void expand_iq1_s(const std::byte* block, float* out) {
  const float scale = f16_of(word_of(block, 0));
  const std::byte* const low = block + 2;
  for (int i = 0; i < 32; ++i, out += 8) {
    const uint32_t high = word_of(low + 32, i / 4);
    const uint32_t code = byte_of(low, i) | (high >> 3 * (i % 4) & 7) << 8;
    const float own = scale * static_cast<float>(2 * (high >> 12 & 7) + 1);
    put_shifted(kIq1SGrid[code], own, (high & 0x8000) != 0 ? -kShift : kShift, out);
  }
}

// Its scale lies in the high nibbles of the words of scales.
void expand_iq1_m(const std::byte* block, float* out) {
  const std::byte* const high = block + 32;
  const std::byte* const scales = high + 16;
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= word_of(scales, i) >> 12 << 4 * i;
  const float scale = f16_of(bits);
  for (int i = 0; i < 32; ++i, out += 8) {
    const uint32_t more = nibble_of(high, i);
    const uint32_t code = byte_of(block, i) | (more & 7) << 8;
    const float own =
        scale * static_cast<float>(2 * (word_of(scales, i / 8) >> 3 * (i / 2 % 4) & 7) + 1);
    put_shifted(kIq1SGrid[code], own, (more & 8) != 0 ? -kShift : kShift, out);
  }
}

// Four scales in E4M3 without a sign, each of 16 codes of E2M1.
void expand_nvfp4(const std::byte* block, float* out) {
  constexpr float kOfE2M1[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice
  for (int part = 0; part < 4; ++part) {
    const uint32_t code = byte_of(block, part);
    const auto exponent = static_cast<int>(code >> 3 & 15);
    const auto mantissa = static_cast<float>(code & 7);
    const float whole =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
    const float scale = code == 0 || code == 127 ? 0.0f : whole * 0.5f;
    const std::byte* const codes = block + 4 + part * 8;
    for (int i = 0; i < 16; ++i) {
      const uint32_t pair = byte_of(codes, i % 8);
      out[part * 16 + i] = scale * kOfE2M1[i < 8 ? pair & 15 : pair >> 4];
    }
  }
}

}  // namespace rudder::weights
