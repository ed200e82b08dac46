#include "rudder/sched/overtaking.h"

#include <algorithm>
#include <cmath>

#include "rudder/base/mutants.h"

namespace rudder::sched {

namespace {

// Of the pool, what is kept for small prompts; each of these takes at most half of that.
constexpr int32_t kSmallShare = 16;

int32_t blocks_kept(const Blocks& blocks) {
  const int32_t kept = blocks.num_blocks() / kSmallShare;
  return kept / 2 >= blocks.num_groups() ? kept : 0;
}

}  // namespace

int32_t most_of_a_small_one(const Blocks& blocks) {
  return blocks_kept(blocks) / 2;
}

Overtaking::Overtaking(const Blocks& blocks, const AnswerLength& answers)
    : blocks_(blocks), answers_(answers), kept_(blocks_kept(blocks)) {}

void Overtaking::begin_step() {
  taken_ = 0;
  num_others_ = 0;
  waiting_ = nullptr;
}

void Overtaking::note_running(const Sequence& sequence) {
  if (sequence.wait.overtook) {
    taken_ += blocks_.held_alone(sequence) + wants(sequence, sequence.tables);
  } else {
    ++num_others_;
  }
}

bool Overtaking::is_small(const Sequence& sequence) const {
  return sequence.wait.blocks_wanted <= kept_ / 2 && wants(sequence, sequence.tables) <= kept_ / 2;
}

bool Overtaking::leaves(const Sequence& sequence) const {
  return sequence.wait.blocks_wanted + blocks_.headroom(1) + kept_ <= blocks_.num_blocks();
}

int64_t Overtaking::left_by(const Sequence& sequence) const {
  if (is_small(sequence) || !leaves(sequence) || RUDDER_MUTANT(kNothingLeftToSmall)) return 0;
  return std::max<int64_t>(0, kept_ - taken_);
}

void Overtaking::wait_for_blocks(const Sequence& sequence) {
  waiting_ = is_small(sequence) ? nullptr : &sequence;
}

bool Overtaking::goes_past(const Sequence& sequence) const {
  return waiting_ != nullptr && is_small(sequence);
}

int64_t Overtaking::wants(const Sequence& sequence, const cache::BlockTables& tables) const {
  const int32_t prompt_len = sequence.prompt_len;
  const double answer = answers_.expected(sequence.max_len - prompt_len);
  const int64_t expected = prompt_len + static_cast<int64_t>(std::ceil(answer));
  return blocks_.to_take(std::max<int64_t>(expected, std::ssize(sequence.tokens)), tables);
}

// One that cannot leave them waits until no other runs: no more may begin beside those that went
// past it, once they alone run.
bool Overtaking::has_room_for(int64_t blocks) const {
  const bool is_bounded = leaves(*waiting_) || num_others_ > 0;
  const bool fits = is_bounded && taken_ + blocks <= kept_;
  return fits || RUDDER_MUTANT(kOvertakenForEver);
}

bool Overtaking::may_squeeze_in(const Sequence& sequence, int64_t blocks) const {
  return sequence.wait.passed_over > kMaxPassedOver && is_small(sequence) &&
         taken_ + blocks <= kept_;
}

void Overtaking::note_begun(int64_t blocks) {
  taken_ += blocks;
}

}  // namespace rudder::sched
