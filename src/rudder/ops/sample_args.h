// Parameters of the sample macro-op. The formulas and their order are in step/sampling.h.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "rudder/tensor/view.h"

namespace rudder::ops {

// One row to sample; spans and pointers stay valid until sample() returns.
struct SampleRow {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  int32_t position = 0;  // of the token to be sampled: with `seed`, the RNG's counter
  int32_t num_logprobs = -1;
  bool ban_stop_ids = false;  // min_tokens is not reached
  std::span<const int32_t> stop_ids;
  std::span<const std::pair<int32_t, float>> logit_bias;
  // Occurrences of each token, [vocab], when a penalty is on, else null. `output_count` counts the
  // output; `prompt_seen` is 1 where the prompt has the token.
  const int32_t* output_count = nullptr;
  const uint8_t* prompt_seen = nullptr;
};

struct SampleLogprobs {
  float logprob = 0;
  int32_t rank = 0;
  // In: room for num_logprobs. Out: filled, best first; shorter when the vocabulary is.
  std::span<std::pair<int32_t, float>> top;
};

struct SampleArgs {
  tensor::View logits;  // [R, vocab] f32; may be overwritten
  std::span<const SampleRow> rows;
  // [R] out; -1 where the row holds NaN or +Inf, or nothing above -Inf (also after the bans).
  std::span<int32_t> tokens;
  std::span<SampleLogprobs> logprobs;  // [R] out, read where num_logprobs >= 0
};

}  // namespace rudder::ops
