// Executor: the interface between the serving side and the code that computes. Implemented by exec
// (for CPU and CUDA) and by testing::FakeExecutor. Only the engine thread calls it.
//
// Steps run in launch order. Several may be in flight (run-ahead): a step that uses
// TokenSource::kCarry is launched before the step that samples the token is collected. A step with
// constrained sequences is launched as early as any other; it waits for their masks before it
// samples.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/step/cache_objects.h"
#include "rudder/step/draft_caps.h"
#include "rudder/step/kv_groups.h"
#include "rudder/step/plan.h"
#include "rudder/step/records.h"
#include "rudder/step/result.h"

namespace rudder::step {

struct Capacity {
  int32_t num_slots = 0;            // sequences that can have state at once
  int32_t num_blocks = 0;           // KV blocks of all groups, ids 0 .. num_blocks - 1
  int32_t block_size = 16;          // tokens a block
  int32_t max_tokens_per_step = 0;  // sum of q_len
  int32_t max_seq_len = 0;          // prompt and output of one sequence
  int32_t vocab_size = 0;
  int32_t max_in_flight = 2;  // launched and not yet collected
  int32_t max_repeat = 1;     // of a plan
  // A step with prompts is cheaper to launch where the number of its tokens is a multiple of this.
  int32_t prompt_step_multiple = 1;
  DraftCaps drafts = {};        // that it verifies, and guesses
  KvGroups kv_groups = {};      // how layers keep KV
  StatePool states = {};        // what they keep of a sequence besides
  TierCaps tiers = {};          // where cached prefixes lie behind the device
  tap::Geometry geometry = {};  // empty: the executor has no taps
  tap::Limits taps = {};
  lora::TableSize adapters = {};  // empty: it has no adapters
};

struct Ticket {
  StepId id = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual Capacity capacity() const = 0;

  // Enqueues the step and returns; never waits for the device. An Error means that nothing of the
  // plan ran and that the executor is dead (device fault): no further launch will succeed. The plan
  // is let go of before its last result is given: the caller then uses its memory again.
  virtual Result<Ticket> launch(std::shared_ptr<const StepPlan> plan) = 0;

  // The masks of a step's constrained sequences, in the order of StepPlan.seqs and of a sequence's
  // rows: StepPlan.num_masks() of them (token_mask.h), each of mask_words(vocab_size) words.
  // That of a row behind drafts holds where these are right. Called once for each step
  // that has such sequences, and for no other: after its launch, before its collect and before the
  // next launch. `masks` is free when this returns; an Error is one of launch().
  virtual Result<void> supply(Ticket ticket, std::span<const uint32_t> masks) = 0;

  // Waits for the next iteration of the step: a plan of repeat m is collected m times. Steps are
  // collected in launch order. An Error means the step's results are lost and the executor is dead.
  virtual Result<StepResult> collect(Ticket ticket) = 0;

  // True when collect(ticket) would not wait.
  virtual bool ready(Ticket ticket) = 0;

  // True: before its next launch the caller collects what is in flight, gives back every slot and
  // block, forgets cached prefixes and calls start_afresh(). Plans from then on read no KV and no
  // slot that earlier ones wrote. Recordings ask for it (flight_recorder.h).
  virtual bool wants_fresh_start() const { return false; }
  virtual bool has_fresh_starts() const { return false; }  // it may come to want one
  virtual void start_afresh() {}

  // Of the records that lay in files when it was made, oldest use first. Called once.
  virtual std::vector<StoredRecord> take_stored() { return {}; }

  // Nothing of it runs any more when this returns: of executors that read each other's memory all
  // stop before the first is destroyed. Only the destructor is called after it.
  virtual void stop() {}
};

}  // namespace rudder::step
