// The passes of sampling over a whole row of logits, vectorised, one variant for each instruction
// set. Called by sample.cpp on any thread; no state. Every variant gives the same bits: no fused
// multiply-add, sums in a fixed order of 16 lanes.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace rudder::cpu {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A row is scanned in blocks; the last may be shorter.
inline constexpr int64_t kSampleBlock = 256;
inline constexpr int64_t num_sample_blocks(int64_t n) {
  return (n + kSampleBlock - 1) / kSampleBlock;
}

struct RowScan {
  float max = 0;
  bool has_bad = false;  // a NaN or +Inf
};

struct Penalties {
  float repetition = 1;  // divides positive logits of seen tokens, multiplies negative ones
  float presence = 0;    // subtracted where the output has the token
  float frequency = 0;   // subtracted once per occurrence in the output
};

struct SampleKernels {
  const char* name;
  // Maximum of the row and of each block. `block_max` [num_sample_blocks(n)].
  RowScan (*scan)(const float* x, int64_t n, float* block_max);
  // w = exp((x - max) * scale), for x <= max and scale > 0; exactly 1 at max, 0 below e^-87.
  // Returns the sum. `block_sum` [num_sample_blocks(n)] or null; w or null.
  double (*exp_row)(const float* x, int64_t n, float max, float scale, float* w, double* block_sum);
  // In place: -Inf where bit i % 32 of words[i / 32] is 0. [(n + 31) / 32]
  void (*mask)(float* x, int64_t n, const uint32_t* words);
  // In place, in this order: repetition, frequency, presence. Results stay finite.
  void (*penalize)(float* x, int64_t n, const int32_t* output_count, const uint8_t* prompt_seen,
                   const Penalties& penalties);
  // Tokens that come before `token` when sorted by (value descending, index ascending).
  int64_t (*count_before)(const float* x, int64_t n, int64_t token);
};

// The widest this CPU has.
const SampleKernels& sample_kernels();
// All that this CPU can run, for tests.
std::span<const SampleKernels* const> all_sample_kernels();

}  // namespace rudder::cpu
