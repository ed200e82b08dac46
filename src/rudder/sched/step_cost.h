// StepCost: estimates how long a step takes on the device, from the steps that ran. The scheduler
// uses it to bound the prompt tokens of a step in which sequences stream (PromptBound). Internal
// to the room; engine thread.
//
// The model is linear, with no coefficient below 0:
//   us = c0 + c1 [has prompt tokens] + c2 tokens + c3 keys of decodes + c4 pairs of prompts
// c1 is the cost of not replaying a graph, c3 that of reading KV, c4 that of the products of
// attention. The coefficients are fitted by least squares of the relative error, with exponential
// forgetting; steps with and without prompt tokens forget separately, so that an hour of decodes
// does not erase the cost of prompts. Where the true cost is not linear (flat, then linear), the
// fit overestimates between the points that it has seen. Two corrections follow what is not linear:
// of steps without prompts by their number of sequences, of steps with prompts by their tokens in
// all, which products take in tiles (on an H100 a step of 1,600 tokens took longer than one of
// 1,728). The fit is never extrapolated to more than twice the prompt tokens, or four times the
// pairs, that it has seen in a step.
#pragma once

#include <array>
#include <cstdint>

#include "rudder/step/plan.h"

namespace rudder::sched {

// What a step's time depends on.
struct StepShape {
  int64_t decode_tokens = 0;  // single tokens that want logits, and drafts
  int64_t decode_keys = 0;    // that they attend to
  int64_t prompt_tokens = 0;  // of all other sequences
  int64_t prompt_pairs = 0;   // of their queries and keys

  void add(const step::SeqWork& work);
  void add_prompt(int64_t kv_len, int64_t q_len);
};

class StepCost {
 public:
  StepCost();

  // An iteration of this shape took so long. A time of 0 is unknown, and nothing is learnt of it.
  void observe(const StepShape& shape, int64_t us);

  // Enough was seen to predict from.
  bool is_warm() const;
  // What a step takes in the mean.
  double mean_us(const StepShape& shape) const;
  // The same of a step without prompts, corrected by how far steps of about as many sequences were
  // off: so it follows a cost that is not linear, where steps of several sizes were seen.
  double decode_us(const StepShape& shape) const;
  // Tokens of a step without prompts up to which decode_us() may be believed: a few
  // more than were seen.
  int64_t trusted_tokens() const;
  // What a step takes at most: the mean, corrected by how far steps with prompts of about as many
  // tokens were off, and twice the usual excess over that.
  double predict_us(const StepShape& shape) const;

  // The most prompt tokens, at most `most`, that a step of `shape` can take of a sequence with
  // `kv_len` in KV and still end within `limit_us`. 0 when it takes longer without them.
  int32_t tokens_within(const StepShape& shape, int32_t kv_len, int32_t most,
                        double limit_us) const;

 private:
  static constexpr size_t kTerms = 5;
  using Terms = std::array<double, kTerms>;
  // Normal equations, decayed.
  struct Sums {
    std::array<Terms, kTerms> products = {};
    Terms targets = {};

    void add(const Terms& x, double y);
  };

  // By quarters of a power of two.
  static constexpr size_t kSizes = 80;
  static size_t size_of(int64_t num_seqs);
  // By 64 tokens of a step. What has more pieces than that is not corrected.
  static constexpr int64_t kPieceTokens = 64;
  static constexpr size_t kPieces = 512;
  static size_t piece_of(const StepShape& shape);

  static Terms terms(const StepShape& shape);
  double mean_us(const Terms& x) const;
  double off_with_prompts(const StepShape& shape) const;
  void solve();

  std::array<Sums, 2> sums_;  // of steps without prompt tokens, and with
  Terms coefficients_ = {};
  int64_t num_observed_ = 0;
  double excess_ = 0.1;  // of a step with prompt tokens over its mean, as a share of it: usual
  int64_t most_prompt_tokens_ = 0;  // seen in one step
  int64_t most_prompt_pairs_ = 0;
  int64_t most_decode_tokens_ = 0;
  std::array<double, kSizes> off_ = {};  // seen over mean, of steps without prompts; 0: not seen
  std::array<double, kPieces> off_by_piece_;  // the same of steps with prompts; 1 before
};

}  // namespace rudder::sched
