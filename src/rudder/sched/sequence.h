// The scheduler's input and output: a sequence to run, and what a commit gave for it. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/ids.h"
#include "rudder/sched/tap_work.h"
#include "rudder/step/plan.h"
#include "rudder/step/result.h"
#include "rudder/step/sampling.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::sched {

using SequenceId = StrongId<struct SequenceTag, uint64_t>;  // made by the engine, never reused

// One choice of one request. Arrival order is the order of Scheduler::add.
struct NewSequence {
  SequenceId id;
  std::vector<int32_t> prompt;  // at least one token
  step::SamplingParams sampling;
  int32_t max_len = 0;       // prompt and output together, > prompt.size()
  int32_t tenant = 0;        // prompts of different tenants share a step fairly
  int32_t priority = 0;      // lower runs first, within a tenant
  std::string cache_salt;    // sequences of different salts share no KV block
  bool constrained = false;  // each of its tokens is sampled under a mask
  bool is_drafted = true;    // where the scheduler has a proposer
  // Null: neither steered nor captured. The lease is the caller's until the sequence has ended.
  std::shared_ptr<const tap::SequenceTaps> taps = {};
  TapLease tap_lease = {};
};

// A constrained sequence of a plan and its drafts: it needs a mask for its next token, then one for
// the token behind each draft, which follows from the drafts on the way to it. A draft below 0 is
// none: the masks behind it may be any.
struct ConstrainedSequence {
  SequenceId id;
  std::vector<int32_t> draft;
  step::DraftTree tree = {};  // empty: a chain
  bool takes_guess = false;   // of the slot; Scheduler::learn_drafts() fills it in
};

// Edits of the executor's tables, for the next step to carry.
struct TableEdits {
  std::vector<step::TapEdit> taps;
  std::vector<step::CaptureEdit> captures;
  std::vector<step::AdapterEdit> adapters = {};

  bool empty() const { return taps.empty() && captures.empty() && adapters.empty(); }
};

// A sequence of a committed step that captured something.
struct CapturedSequence {
  int32_t seq = 0;  // index into StepPlan.seqs
  SequenceId id;
};

// What one committed step gave one sequence. A step that gave it neither token nor score nor end
// has no output for it. The lists are those of the step's result and plan: Scheduler::commit says
// how long they last.
struct SequenceOutput {
  SequenceId id;
  std::span<const int32_t> tokens;  // sampled in this step, in order
  std::span<const step::TokenLogprobs> logprobs;
  // Tokens of the prompt and how likely they were, as sampling.num_prompt_logprobs asks: each but
  // the first is in one output, in order, none behind the first sampled token.
  std::span<const int32_t> scored;
  std::span<const step::TokenLogprobs> scores;
  step::SeqEnd end = step::SeqEnd::kNone;  // else this is the sequence's last output
  int32_t cached_tokens = 0;               // of the prompt, found in the prefix cache
  int32_t cached_host_tokens = 0;          // of these, in host memory
  int32_t cached_disk_tokens = 0;          // and in files
  int64_t clipped_samples = 0;             // of the prompt's scores, with its first token
  int32_t num_draft = 0;                   // tokens that were guessed for this step
  int32_t num_accepted = 0;                // of them, those that were right
};

}  // namespace rudder::sched
