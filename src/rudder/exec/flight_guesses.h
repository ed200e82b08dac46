// FlightGuesses: what is guessed behind one step in flight: what its sequences ask for, and where
// guesses stay in the slots, these on their way to the host. A part of DeviceExecutor's record of
// the step: the worker thread lists and enqueues, then the thread that collects the step waits and
// reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/guess_asks.h"
#include "rudder/exec/slot_table.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/ops/ops.h"
#include "rudder/step/draft_caps.h"
#include "rudder/step/plan.h"
#include "rudder/step/result.h"

namespace rudder::exec {

struct FlightGuesses {
  std::vector<GuessAsk> asks;  // tokens that the step samples still to come
  std::vector<size_t> seqs;    // sequences of the step whose slots have guesses behind it
  bool is_followed = false;    // by passes that make these
  // Time of the guesses, whether it is told or not; 0: the worker does not see their end.
  int64_t us = 0;
  bool are_set_up = false;             // that time has something that is paid once
  std::unique_ptr<ops::Event> copied;  // where is_followed: all slots' guesses are on the host

  // Of a step whose plan the slots have; `has_source`: something guesses on this device.
  void list(const step::StepPlan& plan, const SlotTable& slots, const step::DraftCaps& caps,
            bool has_source);
  // Guesses that are a part of the step come with its tokens.
  bool are_in_step() const { return !seqs.empty() && !is_followed; }
  bool are_copied() const { return !is_followed || copied->done(); }
  // Behind a step whose tokens the host does not have; without a wait. An Error is the device's.
  Result<void> enqueue(DraftSource& source, const DeviceStep& step, ops::Ops& ops,
                       StepBuffers& buffers, size_t flight, const Clock& clock,
                       step::StepResult& result);
  // Of the step that `result` is of, which is over.
  void read(const StepBuffers& buffers, size_t flight, step::StepResult& result) const;
};

}  // namespace rudder::exec
