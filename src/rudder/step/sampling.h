// SamplingParams: how one sequence's next token is chosen. Plain data: the server and the engine
// validate it, the executor applies it. Order: the mask of a constrained sequence, bans
// (min_tokens) and logit bias, penalties, temperature, then top-k, top-p, min-p on the scaled
// logits, then one draw keyed by (seed, position).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace rudder::step {

// The most that one sequence has of each: the engine refuses requests that ask for more, executors
// size the buffers of a step by it.
inline constexpr int32_t kMaxStopIds = 256;  // the request's and the model's end-of-sequence ids
inline constexpr int32_t kMaxLogitBias = 1024;
inline constexpr int32_t kMaxLogprobs = 20;

struct SamplingParams {
  float temperature = 1.0f;         // 0 = greedy
  int32_t top_k = 0;                // 0 = off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float repetition_penalty = 1.0f;  // over prompt and output; 1 = off
  float presence_penalty = 0.0f;    // over output
  float frequency_penalty = 0.0f;   // over output
  uint64_t seed = 0;                // with the position it is the whole RNG state
  int32_t min_tokens = 0;           // stop_ids are banned before this many output tokens
  std::vector<int32_t> stop_ids;    // end-of-sequence and stop token ids; each ends the sequence
  std::vector<std::pair<int32_t, float>> logit_bias;  // (token id, added to its logit)
  int32_t num_logprobs = -1;         // -1 = none; k >= 0: the sampled token's and the top k's
  int32_t num_prompt_logprobs = -1;  // likewise, of each token of the prompt but the first

  bool needs_history() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

}  // namespace rudder::step
