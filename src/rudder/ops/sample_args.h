// Parameters of the sample macro-op. The formulas and their order are in step/sampling.h.
#pragma once

#include <cstdint>

#include "rudder/ops/slot_args.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// The parameters of one row of logits to sample, as device memory holds them. Lists are ranges of
// SampleArgs.lists.
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
  int32_t ban_stop_ids = 0;   // above 0: min_tokens is so many tokens away
  int32_t stop_begin = 0;     // stop ids, one word each
  int32_t num_stop_ids = 0;
  int32_t bias_begin = 0;  // pairs of words: token, then the bits of the float added to its logit
  int32_t num_bias = 0;
  int32_t max_len = 0;    // the sequence ends when position + 1 reaches it
  int32_t mask_row = -1;  // row of SampleArgs.masks; -1: no mask
};
static_assert(sizeof(SampleRow) == 80);

enum class SampleEnd : int32_t { kNone, kStopId, kLength, kNumerical, kMasked };

struct SampledToken {
  int32_t token = -1;  // -1 when kNumerical or kMasked
  SampleEnd end = SampleEnd::kNone;
  float logprob = 0;  // both only where num_logprobs >= 0
  int32_t rank = 0;
};

struct TopLogprob {
  int32_t token = -1;  // -1 past the end of a small vocabulary
  float logprob = 0;
};

// Samples each row, then keeps what the next step needs: carry, ended, output_count. A row of a
// slot that has ended is kMasked and changes nothing. kNumerical (NaN or +Inf in the row, or
// nothing above -Inf, also after mask and bans) ends the sequence without a token.
struct SampleArgs {
  tensor::View logits;  // [R, vocab] f32; may be overwritten
  tensor::View rows;    // [R, sizeof(SampleRow)] u8
  tensor::View lists;   // [.] i32
  // [M, ceil(vocab / 32)] i32; optional: bit t % 32 of word t / 32 is 0 where token t gets -Inf.
  tensor::View masks = {};
  SlotState state;
  tensor::View sampled;  // [R, 4] i32 out: SampledToken
  tensor::View top;      // [R, max_logprobs, 2] i32 out: TopLogprob, num_logprobs of each row
  // Facts about the rows, from which a backend chooses its kernels; a captured step keeps those of
  // its capture.
  bool all_greedy = false;   // temperature 0 in every row
  bool any_logprobs = true;  // num_logprobs >= 0 in some row
  bool any_changed = true;   // bias, bans or penalties in some row
  bool any_masked = true;    // mask_row >= 0 in some row
};

}  // namespace rudder::ops
