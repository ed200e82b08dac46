// Scorer: computes how likely the tokens of prompts were (prompt_logprobs). A step that scores
// computes all its tokens to the output head. The decoder makes their logits in pieces of at most
// max_logits_rows() in its one buffer, and each piece is scored before the next one overwrites it.
// So the memory depends neither on the prompt nor on the step.
//
// The executor's worker calls run(); the thread that collects a finished step calls read(). The
// scores of a step return to the staging memory of its entry among the steps in flight, which is
// reused when the step is collected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/decoder.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

// The scored tokens of a step, side by side.
struct PackedScores {
  std::vector<int32_t> rows;    // token of the step whose logits score it
  std::vector<int32_t> tokens;  // that is scored
  std::vector<int32_t> seq;     // index into StepPlan.seqs
  std::vector<int32_t> tops;    // likeliest tokens that its request wants beside it

  bool empty() const { return rows.empty(); }
  void clear();
};

// Rows of logits that a decoder makes at once: those that are sampled, and enough for scored tokens
// that the head's weights are not read again for every few of them.
int32_t max_logits_rows(const step::Capacity& capacity);
// What steps of the capacity are at most, for the model's decoder.
model::DecoderLimits decoder_limits(const step::Capacity& capacity);

class Scorer {
 public:
  // `ops` and `decoder` outlive the scorer.
  static Result<std::unique_ptr<Scorer>> make(ops::Ops& ops, model::Decoder& decoder,
                                              const step::Capacity& capacity);
  // Device bytes that make() allocates.
  static int64_t device_bytes(const step::Capacity& capacity);

  // Enqueues it behind a forward pass that kept all rows, whose logits have been sampled.
  void run(const PackedScores& scores, size_t flight);
  // Adds what the step at `flight`, which is done, has told to its rows. A row with NaN or Inf in
  // its logits ends numerically.
  void read(size_t flight, step::StepResult& result) const;

 private:
  Scorer(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity)
      : ops_(ops), decoder_(decoder), capacity_(capacity) {}

  Result<void> allocate();

  struct Staging {
    ops::View input;           // [bytes of input_] u8
    ops::View scored;          // [bytes of scored_] u8
    ops::View top;             // [bytes of top_] u8
    std::vector<int32_t> seq;  // of the scored tokens, as in PackedScores
    std::vector<int32_t> tops;
  };

  ops::Ops& ops_;
  model::Decoder& decoder_;
  const step::Capacity capacity_;
  ops::View input_;               // [2 * max_tokens_per_step] i32: rows, then tokens
  ops::View scored_;              // [max_tokens_per_step, 4] i32
  ops::View top_;                 // [max_tokens_per_step, kMaxLogprobs, 2] i32
  std::vector<Staging> staging_;  // one for each flight
};

}  // namespace rudder::exec
