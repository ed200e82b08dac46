// Trials: steps that nobody asked for, of shapes chosen here. They run before the first sequence is
// added, so that what steps take is known when the first burst comes: in a burst what decodes take
// is not to be told from what prompts take. First decodes of one sequence, then of more, each with
// few keys and with many; then prompts. They end early where steps take long. They read and write
// blocks that nobody has yet. Internal to the room; engine thread.
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
  // Up to so many sequences that decode, and so many tokens of a prompt, where there are blocks.
  Trials(const step::Capacity& capacity, int32_t max_num_seqs, int32_t max_tokens);

  bool is_over() const { return next_ == shapes_.size() || spent_us_ >= kMostUs; }
  // Makes an empty plan the next trial. `generations`, of the slots, count those that it opens.
  void add_next(step::StepPlan& plan, std::vector<uint32_t>& generations);

  struct Seen {
    StepShape shape = {};
    int64_t us = 0;  // 0: nothing is to be learnt of it
  };
  // The oldest that was planned and not noted took so long.
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
  const int32_t max_seq_len_;
  std::vector<Shape> shapes_;  // as often as they run
  size_t next_ = 0;
  size_t noted_ = 0;
  int64_t spent_us_ = 0;
};

}  // namespace rudder::sched
