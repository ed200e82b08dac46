// StepResult: what one iteration of a step gave, one entry for each of StepPlan.seqs, in their
// order. Plain values. Most steps have one iteration.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "rudder/step/ids.h"
#include "rudder/step/records.h"
#include "rudder/tap/capture.h"

namespace rudder::step {

enum class SeqEnd : uint8_t {
  kNone,       // goes on
  kStopId,     // the sampled token is one of stop_ids
  kLength,     // max_len is reached
  kNumerical,  // NaN or Inf in this sequence's logits; no token
};

struct TokenLogprobs {
  float logprob = 0;                           // of the token, natural logarithm
  int32_t rank = 0;                            // 1 = most likely
  std::vector<std::pair<int32_t, float>> top;  // the most likely, best first; as many as asked for
};

struct SeqResult {
  SlotId slot;
  uint32_t generation = 0;
  SeqEnd end = SeqEnd::kNone;
  // True when the sequence had ended in an earlier step or iteration, before this one ran: it wrote
  // no KV, and `tokens` is empty. The host launched it before it knew.
  bool masked = false;
  // None for LogitsWanted::kNone, one for kLast, 1 to 1 + num_draft for kAll. With kNumerical one
  // less: those before the sequence's end.
  std::vector<int32_t> tokens = {};
  std::vector<TokenLogprobs> logprobs = {};  // as tokens, when num_logprobs >= 0
  std::vector<TokenLogprobs> scores = {};    // as SeqWork.score_tokens, in the first iteration
  // What is guessed to follow the tokens, SeqWork.guess.num_guess at most; none where it ended. A
  // chain, or the first drafts of DraftCaps::guess_tree.
  std::vector<int32_t> guess = {};
  // Samples that the latches clipped, of the whole prompt; told by the step that ends the prompt.
  int64_t clipped_samples = 0;
};

struct StepResult {
  StepId id = 0;
  int32_t iteration = 0;  // of StepPlan.repeat, from 0
  std::vector<SeqResult> seqs;
  // Where StatePool::slow_copies: so many of StepPlan.copies_before, of all plans in their order,
  // are done.
  int64_t copies_done = 0;
  // Of StepPlan.record_copies of this and earlier plans, those that no result has told of. Behind a
  // plan of nothing, while any is on its way, at least one.
  std::vector<RecordDone> records_done = {};
  int64_t device_us = 0;        // time the device spent on it; 0 where it is not known well
  int64_t guess_us = 0;         // time behind it that guesses took; 0 likewise
  bool from_graph = false;      // replayed from a captured graph, not run op by op
  bool captured_graph = false;  // one was, for it or its guesses, behind the start
  std::shared_ptr<const tap::CapturedRows> captured = {};  // null: nothing was asked for
};

}  // namespace rudder::step
