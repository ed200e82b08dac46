// Steering and capture in the simulator: a small table, a few programs that many requests share,
// and the taps of each request. All are drawn from the episode's seed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/engine/request.h"
#include "rudder/steer/config.h"
#include "rudder/step/executor.h"
#include "rudder/tap/sequence_taps.h"
#include "rudder/testing/sim_random.h"

namespace rudder::testing {

struct SimTaps {
  bool enabled = false;
  std::vector<steer::KeyedProgram> programs;  // plain ones, then those below
  steer::KeyedProgram scheduled;
  steer::KeyedProgram writes_latch;
  steer::KeyedProgram uses_latch;
  steer::KeyedProgram controls;
  std::vector<std::shared_ptr<const steer::capture::CaptureSpec>> captures;  // numbered from 1
};

// Gives the machine a table and a buffer, now and then so small that requests wait for them.
SimTaps draw_sim_taps(step::Capacity& capacity, SimRandom& random);

// The taps of a request whose prompt is drawn, null for none; sets its fields of capture. Some can
// never fit the table or the buffer: the engine refuses those.
std::shared_ptr<const tap::SequenceTaps> draw_request_taps(const SimTaps& taps, int32_t vocab_size,
                                                           engine::RequestParams& params,
                                                           SimRandom& random);

}  // namespace rudder::testing
