// Overtaking: blocks that large prompts leave to small ones, so that a small prompt does not wait
// for the blocks that a large one in front of it waits for. Small ones that go past a large one run
// in these blocks alone, so they take nothing that the large one waits for, and it is not overtaken
// for ever. Prompts owns it and tells it of each step. Normative text: docs/contracts/step.md,
// "Whose prompts run". Internal to the room; engine thread.
#pragma once

#include <cstdint>

#include "rudder/sched/answer_length.h"
#include "rudder/sched/blocks.h"
#include "rudder/sched/state.h"

namespace rudder::sched {

// Plans in which a sequence finds no room before it gets what others do without.
inline constexpr int32_t kMaxPassedOver = 16;

// Blocks that a small sequence takes at most.
int32_t most_of_a_small_one(const Blocks& blocks);

class Overtaking {
 public:
  // Both outlive this.
  Overtaking(const Blocks& blocks, const AnswerLength& answers);

  // A step is planned; of each sequence that runs it is told.
  void begin_step();
  void note_running(const Sequence& sequence);

  // It takes few blocks, cached ones among them, with as much of its answer as is expected. Of a
  // sequence that waits.
  bool is_small(const Sequence& sequence) const;
  // Blocks that its admission leaves to small ones that come later. None of a small one, nor of one
  // that could not leave them if it were alone.
  int64_t left_by(const Sequence& sequence) const;

  // From now on, in this step, small ones may go past this one, which waits for blocks, unless it
  // is small itself.
  void wait_for_blocks(const Sequence& sequence);
  // Nobody goes past another any more.
  void stop() { waiting_ = nullptr; }
  // The sequence goes past it, if it is begun now.
  bool goes_past(const Sequence& sequence) const;
  // Blocks that a small one with these tables will take, of its answer as much as is expected.
  int64_t wants(const Sequence& sequence, const cache::BlockTables& tables) const;
  // The next one may go past it and take so many.
  bool has_room_for(int64_t blocks) const;
  // It is small, has waited for long, and such a one may take so many.
  bool may_squeeze_in(const Sequence& sequence, int64_t blocks) const;
  // It was begun.
  void note_begun(int64_t blocks);

 private:
  bool leaves(const Sequence& sequence) const;

  const Blocks& blocks_;
  const AnswerLength& answers_;
  const int32_t kept_;  // blocks, in all
  // Of the step that is planned.
  int64_t taken_ = 0;       // by those that went past a large one
  int32_t num_others_ = 0;  // sequences that run and did not
  const Sequence* waiting_ = nullptr;
};

}  // namespace rudder::sched
