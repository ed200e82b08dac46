// Blocks: the blocks of the paged KV cache that the scheduler's sequences have: how many a sequence
// needs and will take, and which are cached for it; and their states, where the executor has them.
// It owns the BlockCache; Scheduler owns it. Internal to the room; engine thread.
#pragma once

#include <cstdint>

#include "rudder/cache/block_cache.h"
#include "rudder/sched/settings.h"
#include "rudder/sched/state.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"

namespace rudder::sched {

class Blocks {
 public:
  // `capacity` and `settings` outlive this.
  Blocks(const step::Capacity& capacity, const SchedSettings& settings);

  cache::BlockCache& cache() { return cache_; }
  const cache::BlockCache& cache() const { return cache_; }
  int32_t num_groups() const { return capacity_.kv_groups.size(); }
  int32_t num_blocks() const { return capacity_.num_blocks; }
  int32_t block_size() const { return capacity_.block_size; }
  int32_t num_available() const { return cache_.num_available(); }

  // Blocks of one group that so many tokens take.
  int32_t needed(int64_t tokens) const;
  // Blocks that a sequence with these tables will take on top until `tokens` tokens are computed,
  // in steps as large as they may be: a window gives back others on the way.
  int64_t to_take(int64_t tokens, const cache::BlockTables& tables) const;
  // Blocks that an admission leaves to so many sequences that run: half of them take a new block of
  // each group within block_size / 2 steps, and an admission that is preempted right away was work
  // for nothing.
  int32_t headroom(int32_t num_running) const;
  // Blocks that come back when the sequence gives up what it holds.
  int32_t held_alone(const Sequence& sequence) const;

  // Room for all that a sequence may become, so that its lists do not move while it decodes.
  void reserve(Sequence& sequence) const;
  // One block more of each group. False: there are not as many.
  bool extend(Sequence& sequence);

  // Where sequences have states, one for the sequence and one to go on from; true otherwise.
  bool has_state_for(const cache::Match& match) const;
  // The sequence, which goes on from the match, has a state; where it goes on from a checkpoint the
  // plan copies that.
  void give_state(Sequence& sequence, const cache::Match& match, step::StepPlan& plan);
  // The checkpoint that it went on from was copied.
  void end_restore(Sequence& sequence);
  void take_state_back(Sequence& sequence);
  // Tokens from `from` on, at most `most`, to the next end of a block at which a checkpoint is
  // wanted; `most` where none is.
  int32_t to_checkpoint(const Sequence& sequence, int32_t from, int32_t most) const;
  // Where sequences have states, finds the ends of turns in the sequence's prompt: behind its
  // tokens that the model's chat template writes behind messages (SchedSettings::turn_ends).
  void find_turns(Sequence& sequence) const;
  // A checkpoint is wanted behind so many tokens of it.
  bool wants_checkpoint(const Sequence& sequence, int32_t len) const;

  // Blocks of a prefix that the sequence may go on from: at least one token is left to compute,
  // which gives the logits.
  int32_t max_match(const Sequence& sequence) const;
  cache::Match find_cached(Sequence& sequence, cache::BlockTables* found) const;

 private:
  const step::Capacity& capacity_;
  const SchedSettings& settings_;
  cache::BlockCache cache_;
};

}  // namespace rudder::sched
