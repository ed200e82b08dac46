// TapState: the tap table on the device, and the host's record of its rows. The edits of a plan are
// copied after the steps in front of it, so those steps still read the old rows. The executor's
// worker thread uses it. It checks the edits; plans come from our own scheduler, so a wrong one is
// a bug (RUDDER_CHECK). Of the ranks of a group the first captures rows, and each the attention
// patterns of its heads, into the first one's records.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/upload_ring.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"
#include "rudder/tap/passage.h"

namespace rudder::exec {

// A sequence whose prompt ends in a step: its latches have all their samples.
struct FilledLatches {
  int32_t seq = 0;  // index into StepPlan.seqs
  int32_t slot = 0;
  uint8_t scores = 0;  // the latches: a bit each
};

class TapState {
 public:
  // The capacity has taps. `ops` outlives the state.
  static Result<std::unique_ptr<TapState>> make(ops::Ops& ops, const step::Capacity& capacity);
  // Device bytes that make() allocates; 0 where the capacity has no taps.
  static int64_t device_bytes(const step::Capacity& capacity);

  // Enqueues the edits of the table, and empties the latches of the slots that are opened. An Error
  // is the device's.
  Result<void> apply(const step::StepPlan& plan);

  const ops::TapTable& table() const { return table_; }
  // The part of the ring that is the step's at `flight`: its first element, a multiple of
  // kCaptureAlign, and their number.
  int64_t ring_begin(size_t flight) const;
  int64_t ring_elements() const { return capacity_.taps.capture_elements; }
  // The first `elements` of that part.
  ops::View ring_part(size_t flight, int64_t elements) const;

  bool has_row(int32_t row) const;
  bool has_set(int32_t set) const;
  // Scores, or captures, at points after the last layer's attention; a step with such tokens
  // computes all its tokens to that point.
  bool scores_behind_attention(int32_t row) const { return rows_[at(row)].scores_behind; }
  bool captures_behind_attention(int32_t set) const { return sets_[at(set)].captures_behind; }
  // The macro-ops that a table row or a capture set uses.
  const tap::PassageSet& tapped_by_row(int32_t row) const { return rows_[at(row)].tapped; }
  const tap::PassageSet& tapped_by_set(int32_t set) const { return sets_[at(set)].tapped; }
  // Whether a step with such rows alone sets ops::TapBatch::only_adds.
  bool only_adds(int32_t row) const { return rows_[at(row)].only_adds; }
  bool captures_residual_alone(int32_t set) const { return sets_[at(set)].residual_alone; }
  // Points at which a row's program encodes, ascending.
  const std::vector<int32_t>& encodes_of_row(int32_t row) const { return rows_[at(row)].encodes; }
  // Elements of a token's record.
  int64_t record_elements(int32_t set) const { return sets_[at(set)].elements; }
  // Enqueues a copy of the slots' latches to the host, for the step that is at `flight`.
  void fetch_latches(size_t flight, std::span<const FilledLatches> filled);
  // Of entry `i` of that copy, once it is there: samples that those latches clipped.
  int64_t clipped_samples(size_t flight, size_t i, uint8_t scores) const;
  // Latches of the slot that may have samples: a bit each.
  uint8_t scores_of(int32_t slot) const { return latched_[at(slot)].scores; }
  // Called before a token of the slot runs the program of the table row.
  void use(int32_t slot, int32_t row) {
    latched_[at(slot)].scores |= rows_[at(row)].latched.scores;
    latched_[at(slot)].readings |= rows_[at(row)].latched.readings;
  }

 private:
  TapState(ops::Ops& ops, const step::Capacity& capacity);

  // Latches that may have something: a bit each.
  struct Latched {
    uint8_t scores = 0;
    uint8_t readings = 0;
    bool operator==(const Latched&) const = default;
  };
  static_assert(tap::kNumLatches <= 8);
  struct Row {
    tap::PassageSet tapped;
    bool only_adds = true;
    Latched latched;  // by its program
    bool scores_behind = false;
    std::vector<int32_t> encodes;
  };
  struct Set {
    tap::PassageSet tapped;
    int64_t elements = 0;  // 0: no set
    bool residual_alone = true;
    bool captures_behind = false;
  };

  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  Result<void> allocate();
  Result<void> open_slot(int32_t slot);
  Result<void> edit(const step::TapEdit& edit);
  Result<void> edit(const step::CaptureEdit& edit);
  Result<ops::View> allocate_ring(const tensor::Shape& shape);
  void place_points(const step::CaptureEdit& edit, Set& set);
  Result<void> place_patterns(const step::CaptureEdit& edit, Set& set);
  void check_program(const step::TapEdit& edit) const;
  void check_dictionaries(const step::TapEdit& edit);
  void check_encode(const tap::ProgramOp& op, bool is_first, const tap::DictionaryHead* head) const;
  const tap::DictionaryHead& head_at(const step::TapEdit& edit, int32_t dictionary) const;
  Result<void> upload_dictionaries(const step::TapEdit& edit);
  void place_ops(const step::TapEdit& edit, Row& row);
  bool is_behind_attention(const tap::Point& point) const;

  ops::Ops& ops_;
  const ops::Rank rank_;
  const step::Capacity capacity_;
  ops::TapTable table_;
  std::unique_ptr<UploadRing> uploads_;
  ops::View fetched_;  // [max_in_flight, S, kNumLatches, 2] i64, host

  std::vector<Row> rows_;
  std::vector<Set> sets_;
  std::map<int64_t, tap::DictionaryHead> dictionaries_;  // by where they were last put
  std::vector<Latched> latched_;                         // [S] of the slot

  // Of the edit at hand.
  std::vector<ops::TapEntry> entries_;
  std::vector<int32_t> flights_;
  std::vector<ops::PatternEntry> patterns_;  // [num_layers]
  std::vector<tap::TapOp> moved_;
  std::vector<int64_t> offsets_;
};

}  // namespace rudder::exec
