// A row to sample and what comes of it, as they lie in device memory. Plain data that kernels read
// and write as it is: this header is C++17, because nvcc reads it too.
#pragma once

#include <cstdint>
#include <limits>

namespace rudder::ops {

// Rows that are chained to one another, at most.
inline constexpr int32_t kMaxChain = 256;
// SampleRow.draft where the token is still to come from the slot's guess, and where that has none:
// no row samples it.
inline constexpr int32_t kNoDraft = std::numeric_limits<int32_t>::max();
// Tokens of an n-gram that is looked up, at most.
inline constexpr int32_t kMaxNgram = 32;

// One row to sample, as it lies in device memory. Lists are ranges of SampleArgs.lists.
struct SampleRow {
  uint64_t seed = 0;
  int32_t position = 0;  // of the token to be sampled: with `seed`, the RNG's counter
  int32_t slot = 0;      // S: a row of padding, nothing is written for it
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t has_penalties = 0;  // 1: SlotState's counts are read and kept
  int32_t num_logprobs = -1;  // -1 = none
  int32_t stop_from = 0;      // stop ids are banned where `position` is below it (min_tokens)
  int32_t stop_begin = 0;     // stop ids, one word each
  int32_t num_stop_ids = 0;
  int32_t bias_begin = 0;  // pairs of words: token, then the bits of the float added to its logit
  int32_t num_bias = 0;
  int32_t max_len = 0;    // the sequence ends when position + 1 reaches it
  int32_t mask_row = -1;  // of SampleArgs.masks; -1: any token may come
  // The token of the step that follows this row's: the next row samples behind it, for the same
  // slot, and counts only where this one samples it. -1: no row does.
  int32_t draft = -1;
  int32_t num_behind = 0;  // rows that it is chained to, those before it: draft n's is n rows up
  // Of a row of a tree but its first: the row that it follows is so many rows up, and it counts
  // only where that one counts and samples `own_draft`. Rows of a tree are chained by nothing else.
  int32_t parent_up = 0;  // 0: it follows none
  int32_t own_draft = -1;
  int32_t num_guess = 0;  // of a sequence's first row: tokens that look_up() guesses at most
};
static_assert(sizeof(SampleRow) == 104);

enum class SampleEnd : int32_t {
  kNone,
  kStopId,
  kLength,
  kNumerical,
  kMasked,
  kRejected,  // behind a draft that was not sampled, or behind the row's end
};

struct SampledToken {
  int32_t token = -1;  // -1 when kNumerical, kMasked or kRejected
  SampleEnd end = SampleEnd::kNone;
  float logprob = 0;  // both only where num_logprobs >= 0
  int32_t rank = 0;
};

struct TopLogprob {
  int32_t token = -1;  // -1 past the end of a small vocabulary
  float logprob = 0;
};

}  // namespace rudder::ops
