#include "rudder/weights/block_type.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "rudder/tensor/dtype.h"

namespace rudder::weights {
namespace {

constexpr int kSuper = 256;  // values of a block of blocks

uint8_t byte_at(const std::byte* at, int64_t i) {
  return std::to_integer<uint8_t>(at[i]);
}
int8_t signed_at(const std::byte* at, int64_t i) {
  return static_cast<int8_t>(byte_at(at, i));
}
template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
float half_at(const std::byte* at) {
  return tensor::to_float(tensor::F16{load<uint16_t>(at)});
}

// `one` expands one block of `values` numbers in `bytes` bytes.
template <int values, int bytes, void (*one)(const std::byte*, float*)>
void each_block(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) one(blocks + i * bytes, out + i * values);
}

void expand_f32(const std::byte* block, float* out) {
  *out = load<float>(block);
}
void expand_f16(const std::byte* block, float* out) {
  *out = half_at(block);
}
void expand_bf16(const std::byte* block, float* out) {
  *out = tensor::to_float(tensor::BF16{load<uint16_t>(block)});
}

// Sixteen bytes of nibbles: the low ones are values 0 to 15, the high ones 16 to 31.
int nibble(const std::byte* qs, int i) {
  return i < 16 ? byte_at(qs, i) & 15 : byte_at(qs, i - 16) >> 4;
}

void expand_q4_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block + 2, i) - 8);
}
void expand_q4_1(const std::byte* block, float* out) {
  const float d = half_at(block);
  const float m = half_at(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block + 4, i)) + m;
}
int five_bits(uint32_t high, const std::byte* qs, int i) {
  return nibble(qs, i) | static_cast<int>((high >> i) & 1) << 4;
}
void expand_q5_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  const auto high = load<uint32_t>(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(five_bits(high, block + 6, i) - 16);
}
void expand_q5_1(const std::byte* block, float* out) {
  const float d = half_at(block);
  const float m = half_at(block + 2);
  const auto high = load<uint32_t>(block + 4);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(five_bits(high, block + 8, i)) + m;
}
void expand_q8_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(signed_at(block + 2, i));
}

// Two bits of value i: in each half of the block, four times 32 values share 32 bytes.
int two_bits(const std::byte* qs, int i) {
  return byte_at(qs, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
}

void expand_q2_k(const std::byte* block, float* out) {
  const std::byte* const qs = block + 16;
  const float d = half_at(block + 80);
  const float dmin = half_at(block + 82);
  for (int i = 0; i < kSuper; ++i) {
    const uint8_t scale = byte_at(block, i / 16);
    const float dl = d * static_cast<float>(scale & 15);
    const float ml = dmin * static_cast<float>(scale >> 4);
    out[i] = dl * static_cast<float>(two_bits(qs, i)) - ml;
  }
}

void expand_q3_k(const std::byte* block, float* out) {
  const std::byte* const qs = block + 32;
  const std::byte* const scales = block + 96;
  const float d = half_at(block + 108);
  for (int i = 0; i < kSuper; ++i) {
    const int group = i / 16;
    const int low = group < 8 ? byte_at(scales, group) & 15 : byte_at(scales, group - 8) >> 4;
    const int high = byte_at(scales, 8 + group % 4) >> (group / 4 * 2) & 3;
    const float dl = d * static_cast<float>((low | high << 4) - 32);
    const bool has_high = (byte_at(block, i % 32) >> (i / 32) & 1) != 0;
    out[i] = dl * static_cast<float>(two_bits(qs, i) - (has_high ? 0 : 4));
  }
}

struct ScaleAndMin {
  float scale;
  float min;
};
// Of group j of eight: six bits each, in twelve bytes.
ScaleAndMin scale_and_min(const std::byte* block, int j) {
  const std::byte* const s = block + 4;
  int scale = byte_at(s, j % 4);
  int min = byte_at(s, j % 4 + 4);
  if (j < 4) {
    scale &= 63;
    min &= 63;
  } else {
    const int low = byte_at(s, j + 4);
    scale = (low & 15) | (scale >> 6) << 4;
    min = (low >> 4) | (min >> 6) << 4;
  }
  return {half_at(block) * static_cast<float>(scale), half_at(block + 2) * static_cast<float>(min)};
}

void expand_q4_k(const std::byte* block, float* out) {
  for (int j = 0; j < 8; ++j) {
    const auto [scale, min] = scale_and_min(block, j);
    const std::byte* const qs = block + 16 + j / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int q = byte_at(qs, i) >> (j % 2 * 4) & 15;
      out[32 * j + i] = scale * static_cast<float>(q) - min;
    }
  }
}
void expand_q5_k(const std::byte* block, float* out) {
  for (int j = 0; j < 8; ++j) {
    const auto [scale, min] = scale_and_min(block, j);
    const std::byte* const qs = block + 48 + j / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int high = byte_at(block + 16, i) >> j & 1;
      const int q = (byte_at(qs, i) >> (j % 2 * 4) & 15) | high << 4;
      out[32 * j + i] = scale * static_cast<float>(q) - min;
    }
  }
}
void expand_q6_k(const std::byte* block, float* out) {
  const std::byte* const qh = block + 128;
  const std::byte* const scales = block + 192;
  const float d = half_at(block + 208);
  for (int i = 0; i < kSuper; ++i) {
    const float dl = d * static_cast<float>(signed_at(scales, i / 16));
    const int low = byte_at(block, i / 128 * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
    const int high = byte_at(qh, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    out[i] = dl * static_cast<float>((low | high << 4) - 32);
  }
}

constexpr std::array<int8_t, 16> kNonLinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

void expand_iq4_nl(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(kNonLinear[static_cast<size_t>(nibble(block + 2, i))]);
  }
}
void expand_iq4_xs(const std::byte* block, float* out) {
  const float d = half_at(block);
  const auto high = load<uint16_t>(block + 2);
  for (int j = 0; j < 8; ++j) {
    const int low = byte_at(block + 4, j / 2) >> (j % 2 * 4) & 15;
    const int scale = (low | (high >> (2 * j) & 3) << 4) - 32;
    const float dl = d * static_cast<float>(scale);
    const std::byte* const qs = block + 8 + 16 * j;
    for (int i = 0; i < 32; ++i) {
      out[32 * j + i] = dl * static_cast<float>(kNonLinear[static_cast<size_t>(nibble(qs, i))]);
    }
  }
}

// E2M1, doubled: the scale is halved for it, which loses no bit above the smallest number.
constexpr std::array<int8_t, 16> kE2M1Doubled = {0, 1,  2,  3,  4,  6,  8,  12,
                                                 0, -1, -2, -3, -4, -6, -8, -12};
// 2^(e - 128).
float half_of_e8m0(uint8_t e) {
  const uint32_t bits = e < 2 ? uint32_t{0x00200000} << e : uint32_t{e - uint32_t{1}} << 23;
  return std::bit_cast<float>(bits);
}
void expand_mxfp4(const std::byte* block, float* out) {
  const float d = half_of_e8m0(byte_at(block, 0));
  for (int i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(kE2M1Doubled[static_cast<size_t>(nibble(block + 1, i))]);
  }
}

void expand_tq1_0(const std::byte* block, float* out) {
  constexpr std::array<uint8_t, 5> kPowers = {1, 3, 9, 27, 81};
  const float d = half_at(block + 52);
  const auto digit = [&](int at, size_t power) {
    const auto q = static_cast<uint8_t>(byte_at(block, at) * kPowers[power]);
    return d * static_cast<float>((q * 3 >> 8) - 1);
  };
  for (int i = 0; i < 160; ++i) out[i] = digit(i % 32, static_cast<size_t>(i / 32));
  for (int i = 0; i < 80; ++i) out[160 + i] = digit(32 + i % 16, static_cast<size_t>(i / 16));
  for (int i = 0; i < 16; ++i) out[240 + i] = digit(48 + i % 4, static_cast<size_t>(i / 4));
}
void expand_tq2_0(const std::byte* block, float* out) {
  const float d = half_at(block + 64);
  for (int i = 0; i < kSuper; ++i) out[i] = d * static_cast<float>(two_bits(block, i) - 1);
}

template <int values, int bytes, void (*one)(const std::byte*, float*)>
constexpr BlockType of(uint32_t number, std::string_view name) {
  return {number, name, values, bytes, each_block<values, bytes, one>};
}

constexpr std::array kTypes = {
    of<1, 4, expand_f32>(kGgufF32, "F32"),
    of<1, 2, expand_f16>(kGgufF16, "F16"),
    of<32, 18, expand_q4_0>(2, "Q4_0"),
    of<32, 20, expand_q4_1>(3, "Q4_1"),
    of<32, 22, expand_q5_0>(6, "Q5_0"),
    of<32, 24, expand_q5_1>(7, "Q5_1"),
    of<32, 34, expand_q8_0>(8, "Q8_0"),
    BlockType{9, "Q8_1", 32, 40},
    of<kSuper, 84, expand_q2_k>(10, "Q2_K"),
    of<kSuper, 110, expand_q3_k>(11, "Q3_K"),
    of<kSuper, 144, expand_q4_k>(12, "Q4_K"),
    of<kSuper, 176, expand_q5_k>(13, "Q5_K"),
    of<kSuper, 210, expand_q6_k>(14, "Q6_K"),
    BlockType{15, "Q8_K", kSuper, 292},
    BlockType{16, "IQ2_XXS", kSuper, 66},
    BlockType{17, "IQ2_XS", kSuper, 74},
    BlockType{18, "IQ3_XXS", kSuper, 98},
    BlockType{19, "IQ1_S", kSuper, 50},
    of<32, 18, expand_iq4_nl>(20, "IQ4_NL"),
    BlockType{21, "IQ3_S", kSuper, 110},
    BlockType{22, "IQ2_S", kSuper, 82},
    of<kSuper, 136, expand_iq4_xs>(23, "IQ4_XS"),
    BlockType{24, "I8", 1, 1},
    BlockType{25, "I16", 1, 2},
    BlockType{26, "I32", 1, 4},
    BlockType{27, "I64", 1, 8},
    BlockType{kGgufF64, "F64", 1, 8},
    BlockType{29, "IQ1_M", kSuper, 56},
    of<1, 2, expand_bf16>(kGgufBF16, "BF16"),
    of<kSuper, 54, expand_tq1_0>(34, "TQ1_0"),
    of<kSuper, 66, expand_tq2_0>(35, "TQ2_0"),
    of<32, 17, expand_mxfp4>(39, "MXFP4"),
    BlockType{40, "NVFP4", 64, 36},
};

}  // namespace

std::span<const BlockType> block_types() {
  return kTypes;
}

const BlockType* find_block_type(uint32_t number) {
  const auto at = std::ranges::find(kTypes, number, &BlockType::number);
  return at != kTypes.end() ? &*at : nullptr;
}

const BlockType* find_block_type(std::string_view name) {
  const auto at = std::ranges::find(kTypes, name, &BlockType::name);
  return at != kTypes.end() ? &*at : nullptr;
}

}  // namespace rudder::weights
