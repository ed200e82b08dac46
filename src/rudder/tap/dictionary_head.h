// DictionaryHead: how a dictionary of features lies in the device's memory, for ops that need all
// of its features (OpKind::kEncode). Plain data; this header is C++17, because nvcc reads it too.
#pragma once

#include <cstdint>

#include "rudder/tap/feature.h"

namespace rudder::tap {

// The first words of an image. Offsets are in floats from the head's own begin. Encoder and decoder
// are f32, or bf16 with `is_bf16`, two numbers a float's place; all else is f32.
//
//   y_j = norm(x) . encoder_j,  f_j = y_j > gate_j ? max(scale_j y_j + bias_j, 0) : 0
//   with k > 0 only the k largest f_j are kept, of equal ones those of the lower j
//   decode(f) = c (sum_j f_j decoder_j + output_bias) + mean, and + skip x
//
// norm, c and mean: FeatureNorm. An input bias is in gate and bias.
struct DictionaryHead {
  int32_t d_in = 0;
  int32_t d_out = 0;
  int32_t num_features = 0;  // F
  int32_t k = 0;             // 0: all are kept
  FeatureNorm norm = FeatureNorm::kNone;
  int16_t writes_elsewhere = 0;  // it reads one point and writes another: changes go to relays
  int32_t encoder = 0;           // [F, d_in]
  int32_t decoder = 0;           // [F, d_out]; of several writes the first
  int32_t scale = 0;             // [F]
  int32_t bias = 0;              // [F]
  int32_t gate = 0;              // [F]
  int32_t output_bias = 0;       // [d_out]
  int32_t skip = 0;              // [d_out, d_in]; 0: none
  int32_t encoder_sum = 0;       // [F] of each encoder row, as it lies here
  int32_t is_bf16 = 0;           // encoder and decoder are
  int32_t reserved[2] = {};
};
inline constexpr int64_t kDictionaryHeadFloats = 16;
static_assert(sizeof(DictionaryHead) == kDictionaryHeadFloats * sizeof(float));

// Floats that `count` numbers of encoder or decoder take.
constexpr int64_t dictionary_floats(bool is_bf16, int64_t count) {
  return is_bf16 ? (count + 1) / 2 : count;
}

// Rows that one product of an encode holds: a bound of its scratch memory, and of nothing else.
inline constexpr int64_t kEncodedRows = 64;

// A row of scratch memory for all features of a token: whole quads of tiles of features, and behind
// the last a float for each tile, where a backend may keep what it finds out about the tile.
inline constexpr int32_t kFeatureTile = 16;
constexpr int64_t feature_row_tiles(int64_t num_features) {
  return (num_features + 4 * kFeatureTile - 1) / (4 * kFeatureTile) * 4;
}
constexpr int64_t feature_row_floats(int64_t num_features) {
  return feature_row_tiles(num_features) * (kFeatureTile + 1);
}
// Where the tiles' begin in a row of so many floats.
constexpr int64_t feature_tiles_begin(int64_t row_floats) {
  return row_floats / (kFeatureTile + 1) * kFeatureTile;
}

}  // namespace rudder::tap
