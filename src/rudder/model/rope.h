// Rope tables: cos and sin of every position, computed once at start in fp64 and stored as f32. The
// decoder calls it at construction. Formulas: Hugging Face transformers 5.x,
// modeling_rope_utils.py; rope.cpp names the function at each formula.
//
// Two scalings there (dynamic, longrope) depend on the length of a sequence and so change the
// rotation of keys that are already cached. A paged cache that sequences share needs one rotation
// for each position. So the choice is made here, once, from the longest sequence served.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rudder/model/spec.h"

namespace rudder::model {

// Rotations per position of each pair of dimensions: [rotary_dim / 2].
std::vector<double> rope_frequencies(const RopeSpec& rope, int32_t max_seq_len);

// Multiplies cos and sin (yarn and longrope; 1 elsewhere).
double rope_attention_factor(const RopeSpec& rope);

// How many positions a model is for whose config declares `declared`: what its ropes stretch their
// original length to, where they tell it. `usual` holds without a word, up to `longest` on request.
struct Reach {
  int32_t usual = 0;
  int32_t longest = 0;
};
Reach reach_of(std::span<const RopeSpec> ropes, int32_t declared);

// [max_seq_len]: by which queries at a position are multiplied.
std::vector<float> query_scales(const QueryGrowth& growth, int32_t max_seq_len);

// [max_seq_len, 2, rotary_dim / 2]: cos then sin of position * frequency, scaled.
std::vector<float> rope_table(const RopeSpec& rope, int32_t max_seq_len);

}  // namespace rudder::model
