// Trials: steps that a server runs before its first request, to learn how long steps take on its
// device. The cost of a step is fitted to the steps that ran (StepCost), and a first burst of
// requests alone would not do: its steps have both decodes and prompts, and the fit could not tell
// the cost of one from that of the other. The trials are, in this order: decodes of one sequence,
// then of more, each with few keys and with many; then prompts of several lengths. They stop once
// they have taken half a second. Each trial opens slots and names blocks and states from 0 on, as
// no sequence has any yet, and nothing that it writes is read later.
//
// Pace owns the trials and makes them steps; the engine runs them like any other. Internal to the
// room; engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rudder/sched/step_cost.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"

namespace rudder::sched {

class Trials {
 public:
  // The largest trial decodes `max_num_seqs` sequences, and the longest prompt has `max_tokens`
  // tokens, or as many as there are blocks for.
  Trials(const step::Capacity& capacity, int32_t max_num_seqs, int32_t max_tokens);

  bool is_over() const { return next_ == shapes_.size() || spent_us_ >= kMostUs; }
  // Makes the empty `plan` the next trial. `generations` has the generation of each slot; those of
  // the slots that the trial opens go up by one.
  void add_next(step::StepPlan& plan, std::vector<uint32_t>& generations);

  struct Seen {
    StepShape shape = {};
    int64_t us = 0;  // 0: nothing is to be learnt of it
  };
  // The oldest trial whose time is not noted yet took `us` microseconds: its shape, and what is to
  // be learnt of it.
  Seen note(int64_t us);

 private:
  static constexpr int64_t kMostUs = 500'000;

  struct Shape {
    int32_t num_seqs = 1;
    int32_t kv_len = 0;
    int32_t q_len = 1;
  };

  void add(const Shape& shape);
  void add_decodes(int32_t num_seqs, int64_t keys);
  int64_t blocks_each(const Shape& shape) const;  // of all groups

  const int32_t block_size_;
  const int32_t num_groups_;
  const int32_t num_blocks_;
  const int32_t num_states_;  // 0: sequences keep none
  const int32_t max_seq_len_;
  std::vector<Shape> shapes_;  // of the trials, in their order; a shape that runs thrice, thrice
  size_t next_ = 0;            // trial to plan
  size_t noted_ = 0;           // trials whose time is known
  int64_t spent_us_ = 0;
};

}  // namespace rudder::sched
