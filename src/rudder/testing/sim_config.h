// The parameters of one episode of the simulator: a small machine, an engine on it, and the kind of
// requests that come. All are drawn from the episode's seed.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/engine/engine_core.h"
#include "rudder/engine/request.h"
#include "rudder/engine/settings.h"
#include "rudder/testing/fake_executor.h"
#include "rudder/testing/sim_random.h"
#include "rudder/testing/sim_taps.h"

namespace rudder::testing {

enum class SimEnding : uint8_t {
  kDrain,         // refuse, let all finish
  kStop,          // end every request at once
  kExecutorDies,  // at a launch or a collect
};

struct SimConfig {
  FakeOptions fake;  // no clock yet
  // Ranks of a group, each a fake of its own; its failures are those of one of them.
  int32_t num_ranks = 1;
  int32_t failing_rank = 0;
  engine::EngineSettings settings;
  engine::Entropy entropy;
  SimEnding ending = SimEnding::kDrain;
  uint64_t num_steps = 0;  // until the ending begins
  int32_t max_open = 1;    // requests that clients hold open
  int32_t num_tenants = 1;
  int32_t arrival_one_in = 2;
  int32_t cancel_one_in = 100;
  int32_t max_output = 32;
  SimTaps taps;
  bool has_constraints = false;                // some requests
  std::vector<std::vector<int32_t>> families;  // prompts begin with a part of one of them
};

SimConfig draw_config(SimRandom& random);

struct SimRequest {
  engine::RequestParams params;
  // What the request's specs shall name; null: neither steered nor captured.
  std::shared_ptr<const tap::SequenceTaps> taps = {};
  bool fresh_salt = false;                      // never used before: nothing of it can be cached
  std::vector<uint64_t> constraint_seeds = {};  // of params.constraints, which are sim_constraints
};

// `serial` makes a fresh salt unlike all others.
SimRequest draw_request(const SimConfig& config, int32_t max_seq_len, uint64_t serial,
                        SimRandom& random);

}  // namespace rudder::testing
