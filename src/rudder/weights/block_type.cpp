#include "rudder/weights/block_type.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "rudder/tensor/dtype.h"
#include "rudder/weights/grid_blocks.h"

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
void split_nibbles(const std::byte* qs, int8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<int8_t>(nibble(qs, i));
}

void split_q4_0(const std::byte* block, int8_t* codes, float* scales, float* /*minima*/) {
  *scales = half_at(block);
  split_nibbles(block + 2, codes);
}
void split_q4_1(const std::byte* block, int8_t* codes, float* scales, float* minima) {
  *scales = half_at(block);
  *minima = -half_at(block + 2);
  split_nibbles(block + 4, codes);
}
int five_bits(uint32_t high, const std::byte* qs, int i) {
  return nibble(qs, i) | static_cast<int>((high >> i) & 1) << 4;
}
void split_q5_0(const std::byte* block, int8_t* codes, float* scales, float* /*minima*/) {
  *scales = half_at(block);
  const auto high = load<uint32_t>(block + 2);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<int8_t>(five_bits(high, block + 6, i) - 16);
}
void split_q5_1(const std::byte* block, int8_t* codes, float* scales, float* minima) {
  *scales = half_at(block);
  *minima = -half_at(block + 2);
  const auto high = load<uint32_t>(block + 4);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<int8_t>(five_bits(high, block + 8, i));
}
void split_q8_0(const std::byte* block, int8_t* codes, float* scales, float* /*minima*/) {
  *scales = half_at(block);
  for (int i = 0; i < 32; ++i) codes[i] = signed_at(block + 2, i);
}

// Two bits of value i: in each half of the block, four times 32 values share 32 bytes.
int two_bits(const std::byte* qs, int i) {
  return byte_at(qs, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
}

void split_q2_k(const std::byte* block, int8_t* codes, float* scales, float* minima) {
  const float d = half_at(block + 80);
  const float dmin = half_at(block + 82);
  for (int j = 0; j < 16; ++j) {
    const uint8_t scale = byte_at(block, j);
    scales[j] = d * static_cast<float>(scale & 15);
    minima[j] = dmin * static_cast<float>(scale >> 4);
  }
  for (int i = 0; i < kSuper; ++i) codes[i] = static_cast<int8_t>(two_bits(block + 16, i));
}

void split_q3_k(const std::byte* block, int8_t* codes, float* scales, float* /*minima*/) {
  const std::byte* const stored = block + 96;
  const float d = half_at(block + 108);
  for (int j = 0; j < 16; ++j) {
    const int low = j < 8 ? byte_at(stored, j) & 15 : byte_at(stored, j - 8) >> 4;
    const int high = byte_at(stored, 8 + j % 4) >> (j / 4 * 2) & 3;
    scales[j] = d * static_cast<float>((low | high << 4) - 32);
  }
  for (int i = 0; i < kSuper; ++i) {
    const bool has_high = (byte_at(block, i % 32) >> (i / 32) & 1) != 0;
    codes[i] = static_cast<int8_t>(two_bits(block + 32, i) + (has_high ? 8 : 4));
  }
}

// Eight groups with six bits of scale and of minimum each, in twelve bytes.
void split_six_bits(const std::byte* block, float* scales, float* minima) {
  const std::byte* const s = block + 4;
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  for (int j = 0; j < 8; ++j) {
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
    scales[j] = d * static_cast<float>(scale);
    minima[j] = dmin * static_cast<float>(min);
  }
}

// Of group i / 32: pairs of groups share 32 bytes.
int paired_nibble(const std::byte* qs, int i) {
  return byte_at(qs, i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4) & 15;
}

void split_q4_k(const std::byte* block, int8_t* codes, float* scales, float* minima) {
  split_six_bits(block, scales, minima);
  for (int i = 0; i < kSuper; ++i) codes[i] = static_cast<int8_t>(paired_nibble(block + 16, i));
}
void split_q5_k(const std::byte* block, int8_t* codes, float* scales, float* minima) {
  split_six_bits(block, scales, minima);
  for (int i = 0; i < kSuper; ++i) {
    const int high = byte_at(block + 16, i % 32) >> (i / 32) & 1;
    codes[i] = static_cast<int8_t>(paired_nibble(block + 48, i) | high << 4);
  }
}
void split_q6_k(const std::byte* block, int8_t* codes, float* scales, float* /*minima*/) {
  const float d = half_at(block + 208);
  for (int j = 0; j < 16; ++j) scales[j] = d * static_cast<float>(signed_at(block + 192, j));
  for (int i = 0; i < kSuper; ++i) {
    const int low = byte_at(block, i / 128 * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
    const int high = byte_at(block + 128, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    codes[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
}

void split_iq4_xs(const std::byte* block, int8_t* codes, float* scales, float* /*minima*/) {
  const float d = half_at(block);
  const auto high = load<uint16_t>(block + 2);
  for (int j = 0; j < 8; ++j) {
    const int low = byte_at(block + 4, j / 2) >> (j % 2 * 4) & 15;
    scales[j] = d * static_cast<float>((low | (high >> (2 * j) & 3) << 4) - 32);
    split_nibbles(block + 8 + 16 * j, codes + 32 * j);
  }
}

void split_mxfp4(const std::byte* block, int8_t* codes, float* scales, float* /*minima*/) {
  const uint8_t e = byte_at(block, 0);
  const uint32_t bits = e < 2 ? uint32_t{0x00200000} << e : uint32_t{e - uint32_t{1}} << 23;
  *scales = std::bit_cast<float>(bits);
  split_nibbles(block + 1, codes);
}

void split_tq1_0(const std::byte* block, int8_t* codes, float* scales, float* /*minima*/) {
  constexpr std::array<uint8_t, 5> kPowers = {1, 3, 9, 27, 81};
  *scales = half_at(block + 52);
  const auto digit = [&](int at, size_t power) {
    const auto q = static_cast<uint8_t>(byte_at(block, at) * kPowers[power]);
    return static_cast<int8_t>((q * 3 >> 8) + 7);
  };
  for (int i = 0; i < 160; ++i) codes[i] = digit(i % 32, static_cast<size_t>(i / 32));
  for (int i = 0; i < 80; ++i) codes[160 + i] = digit(32 + i % 16, static_cast<size_t>(i / 16));
  for (int i = 0; i < 16; ++i) codes[240 + i] = digit(48 + i % 4, static_cast<size_t>(i / 4));
}
void split_tq2_0(const std::byte* block, int8_t* codes, float* scales, float* /*minima*/) {
  *scales = half_at(block + 64);
  for (int i = 0; i < kSuper; ++i) codes[i] = static_cast<int8_t>(two_bits(block, i) + 7);
}

using Numbers = std::array<int8_t, 16>;
constexpr Numbers kNonLinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};
constexpr Numbers kE2M1Doubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

template <BlockCodes kind>
float number_of(int8_t code) {
  const auto index = static_cast<size_t>(static_cast<uint8_t>(code));
  if constexpr (kind == BlockCodes::kMiddle) return static_cast<float>(code - 8);
  if constexpr (kind == BlockCodes::kIq4Nl) return static_cast<float>(kNonLinear[index]);
  if constexpr (kind == BlockCodes::kE2M1) return static_cast<float>(kE2M1Doubled[index]);
  return static_cast<float>(code);
}

template <int values, int bytes, int group, BlockCodes kind, BlockType::Split split>
void expand_groups(const std::byte* blocks, int64_t count, float* out) {
  std::array<int8_t, values> codes = {};
  std::array<float, values / group> scales = {};
  std::array<float, values / group> minima = {};
  for (int64_t i = 0; i < count; ++i) {
    split(blocks + i * bytes, codes.data(), scales.data(), minima.data());
    for (size_t j = 0; j < codes.size(); ++j) {
      *out++ = scales[j / group] * number_of<kind>(codes[j]) - minima[j / group];
    }
  }
}

template <int bytes, void (*one)(const std::byte*, float*)>
constexpr BlockType wide(uint32_t number, std::string_view name) {
  return {number, name, 1, bytes, each_block<1, bytes, one>};
}

// A block of f16 scales of its own, or a block of blocks whose scales are products.
template <int values, int bytes, int group, BlockType::Split split,
          BlockCodes kind = BlockCodes::kInteger>
constexpr BlockType of(uint32_t number, std::string_view name, bool is_four_bits, bool has_minima) {
  BlockType type{number, name, values, bytes, expand_groups<values, bytes, group, kind, split>};
  type.split = split;
  type.codes = kind;
  type.group = group;
  type.has_minima = has_minima;
  type.is_four_bits = is_four_bits;
  type.has_half_scales = values == group && kind != BlockCodes::kE2M1;
  return type;
}
// Of codes that are no numbers by themselves.
template <int values, int bytes, void (*one)(const std::byte*, float*)>
constexpr BlockType grid(uint32_t number, std::string_view name) {
  return {number, name, values, bytes, each_block<values, bytes, one>};
}
constexpr bool kFour = true;
constexpr bool kMore = false;
constexpr bool kMinima = true;
constexpr bool kNone = false;

constexpr std::array kTypes = {
    wide<4, expand_f32>(kGgufF32, "F32"),
    wide<2, expand_f16>(kGgufF16, "F16"),
    of<32, 18, 32, split_q4_0, BlockCodes::kMiddle>(2, "Q4_0", kFour, kNone),
    of<32, 20, 32, split_q4_1>(3, "Q4_1", kFour, kMinima),
    of<32, 22, 32, split_q5_0>(6, "Q5_0", kMore, kNone),
    of<32, 24, 32, split_q5_1>(7, "Q5_1", kMore, kMinima),
    of<32, 34, 32, split_q8_0>(8, "Q8_0", kMore, kNone),
    BlockType{9, "Q8_1", 32, 40},
    of<kSuper, 84, 16, split_q2_k>(10, "Q2_K", kFour, kMinima),
    of<kSuper, 110, 16, split_q3_k, BlockCodes::kMiddle>(11, "Q3_K", kFour, kNone),
    of<kSuper, 144, 32, split_q4_k>(12, "Q4_K", kFour, kMinima),
    of<kSuper, 176, 32, split_q5_k>(13, "Q5_K", kMore, kMinima),
    of<kSuper, 210, 16, split_q6_k>(14, "Q6_K", kMore, kNone),
    BlockType{15, "Q8_K", kSuper, 292},
    grid<kSuper, 66, expand_iq2_xxs>(16, "IQ2_XXS"),
    grid<kSuper, 74, expand_iq2_xs>(17, "IQ2_XS"),
    grid<kSuper, 98, expand_iq3_xxs>(18, "IQ3_XXS"),
    grid<kSuper, 50, expand_iq1_s>(19, "IQ1_S"),
    of<32, 18, 32, split_q4_0, BlockCodes::kIq4Nl>(20, "IQ4_NL", kFour, kNone),
    grid<kSuper, 110, expand_iq3_s>(21, "IQ3_S"),
    grid<kSuper, 82, expand_iq2_s>(22, "IQ2_S"),
    of<kSuper, 136, 32, split_iq4_xs, BlockCodes::kIq4Nl>(23, "IQ4_XS", kFour, kNone),
    BlockType{24, "I8", 1, 1},
    BlockType{25, "I16", 1, 2},
    BlockType{26, "I32", 1, 4},
    BlockType{27, "I64", 1, 8},
    BlockType{kGgufF64, "F64", 1, 8},
    grid<kSuper, 56, expand_iq1_m>(29, "IQ1_M"),
    wide<2, expand_bf16>(kGgufBF16, "BF16"),
    of<kSuper, 54, kSuper, split_tq1_0, BlockCodes::kMiddle>(34, "TQ1_0", kFour, kNone),
    of<kSuper, 66, kSuper, split_tq2_0, BlockCodes::kMiddle>(35, "TQ2_0", kFour, kNone),
    of<32, 17, 32, split_mxfp4, BlockCodes::kE2M1>(39, "MXFP4", kFour, kNone),
    grid<64, 36, expand_nvfp4>(40, "NVFP4"),
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
