// Stages that are groups of ranks, of any backend, over a tiny model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"

namespace rudder::metamorphic {

struct StagedRanks {
  testing::TinyArch arch;
  model::ModelSpec whole;  // of all stages and ranks
  int32_t num_stages = 1;
  int32_t num_ranks = 2;  // of a stage
  bool has_taps = false;
  Guesser guesser = Guesser::kNone;
  std::function<void(model::DraftHeadSpec&)> change_head = {};  // as add_guesser's
};

// `devices`: the ranks of the first stage, then those of the next. One stage is a group alone.
std::unique_ptr<step::Executor> staged_ranks(const StagedRanks& ask, const step::Capacity& capacity,
                                             std::vector<std::unique_ptr<ops::Ops>> devices);

// Prompts in pieces, three steps in flight.
sched::SchedSettings staged_settings(int32_t num_cohorts, int32_t multi_step = 1);
std::vector<Ask> arriving(std::vector<Ask> asks);

}  // namespace rudder::metamorphic
