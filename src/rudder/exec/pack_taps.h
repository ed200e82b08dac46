// Packing of taps: for each token of a step its row of the tap table and its offset in the capture
// ring, as flat arrays on the host. Part of packing a step (pack.h), on the executor's worker
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/exec/slot_table.h"
#include "rudder/exec/tap_state.h"
#include "rudder/step/plan.h"

namespace rudder::exec {

// Of a step where some token has an adapter.
struct PackedAdapters {
  bool is_used = false;
  bool has_one = false;      // all tokens that have one have the same
  std::vector<int32_t> row;  // of the adapter table, by token; empty where none is used
};

struct PackedTaps {
  // Some token has a program or is captured; if none, the arrays are empty and the plain ops run.
  bool is_used = false;
  tap::PassageSet tapped;        // where one has an op or a capture
  bool only_adds = true;         // ops::TapBatch
  std::vector<int32_t> encodes;  // model::ForwardBatch
  // One a token; see ops::TapBatch.
  std::vector<int32_t> row;
  std::vector<int32_t> since_prompt;
  std::vector<int32_t> slot;
  std::vector<int32_t> capture_set;
  std::vector<int32_t> capture_begin;
  std::vector<int32_t> token;
  bool keep_all_rows = false;  // see model::ForwardBatch

  int64_t capture_elements = 0;              // of the step's records
  std::vector<tap::CapturedToken> captured;  // in the order of their records

  std::vector<FilledLatches> filled;

  PackedAdapters adapters;  // used or not by themselves

  void clear();
};

// The taps of a step whose slots have been edited and whose sequences have begun. `flight` is the
// step's among those in flight: it has a part of the ring of its own. Without `state` a plan has no
// taps.
void pack_taps(const step::StepPlan& plan, const SlotTable& slots, size_t flight, TapState* state,
               PackedTaps& packed);

// Likewise the adapters of the step, of which the capacity has `num_rows`.
void pack_adapters(const step::StepPlan& plan, int32_t num_rows, PackedAdapters& packed);

// Another rank hands over what the step captures; this one may write a part of it.
void drop_captures(PackedTaps& packed);

// Appends tokens of padding until there are `num_tokens`: they belong to the slot behind the last.
void pad_taps(int64_t num_tokens, int32_t num_slots, PackedTaps& packed);

}  // namespace rudder::exec
