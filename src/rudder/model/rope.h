// Rope tables: cos and sin of every position, computed once at start in fp64 and stored as f32.
// Called by the decoder at construction. Formulas: Hugging Face transformers 5.x,
// modeling_rope_utils.py, function by function (named at each formula in rope.cpp).
//
// Two scalings depend on the length of a sequence there (dynamic, longrope), and change the
// rotation of keys that are already cached. A paged cache shared between sequences needs one
// rotation a position, so the choice is made here, once, from the longest sequence served.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/model/spec.h"

namespace rudder::model {

// Rotations per position of each pair of dimensions: [rotary_dim / 2].
std::vector<double> rope_frequencies(const RopeSpec& rope, int32_t max_seq_len);

// Multiplies cos and sin (yarn and longrope; 1 elsewhere).
double rope_attention_factor(const RopeSpec& rope);

// [max_seq_len, 2, rotary_dim / 2]: cos then sin of position * frequency, scaled.
std::vector<float> rope_table(const RopeSpec& rope, int32_t max_seq_len);

}  // namespace rudder::model
