// TapWork: the taps of one sequence, cut into steps: which row of the tap table each token of a
// step uses, and which tokens are captured. Depends on positions alone (tap.T4). Internal to the
// room.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/kv/block_key.h"
#include "rudder/step/plan.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::sched {

// The rows and the capture set that are held for a sequence's taps as long as it lives.
struct TapLease {
  std::vector<int32_t> rows;  // of the tap table, by segment; 0 where a segment has no program
  int32_t capture_set = -1;
};

class TapWork {
 public:
  TapWork() = default;
  // `taps` may be null. `record_elements` are those of a token's record, 0 without capture.
  TapWork(std::shared_ptr<const tap::SequenceTaps> taps, TapLease lease, int32_t prompt_len,
          int64_t record_elements);

  // For the keys of its blocks (tap.T5).
  std::vector<kv::ContentRun> content_runs() const;
  // Prefix reuse must stop here (tap.T6).
  int32_t max_reused() const;
  // What a step takes of the capture buffer for one captured token; 0: never captures.
  int64_t record_elements() const { return record_elements_; }

  // Of the `q_len` tokens from `begin` on, how many one step may run that has room for `elements`
  // captured elements. A step that fills latches ends with the prompt (tap.T8).
  int32_t fit(int32_t begin, int32_t q_len, int64_t elements) const;
  // Of the `most` tokens from `begin` on, how many come before the first that is captured.
  int32_t uncaptured_len(int32_t begin, int32_t most) const;
  // Of the `most` tokens from `begin` on, how many run one program and are not captured.
  int32_t uniform_len(int32_t begin, int32_t most) const;
  // Fills in the taps of `work`, whose kv_len and q_len are set; returns its captured elements.
  int64_t write(step::SeqWork& work) const;
  // Tokens below `len` are computed and their records are at the host: they are not captured again.
  void note_computed(int32_t len);

 private:
  int32_t row_at(int32_t position) const;

  std::shared_ptr<const tap::SequenceTaps> taps_;
  TapLease lease_;
  int32_t prompt_len_ = 0;
  int64_t record_elements_ = 0;
  int32_t captured_len_ = 0;
};

}  // namespace rudder::sched
