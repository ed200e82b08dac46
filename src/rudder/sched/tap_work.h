// TapWork: the taps of one sequence, cut into steps: which row of the tap table each token of a
// step uses, and which tokens are captured. Depends on positions alone and, where thoughts are
// steered, on the tokens up to the position (tap.T4). Part of a Sequence. Internal to the room;
// engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/cache/block_key.h"
#include "rudder/step/plan.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::sched {

// The rows and the capture set that are held for a sequence's taps and adapter as long as it lives.
struct TapLease {
  // Of the tap table, by segment of tap::SequenceTaps::leased(); 0 where one has no program.
  std::vector<int32_t> rows;
  int32_t capture_set = -1;
  int32_t adapter_row = lora::kNoRow;  // of the adapter table
};

class TapWork {
 public:
  TapWork() = default;
  // `taps` may be null. `record_elements` are those of a token's record, 0 without capture.
  TapWork(std::shared_ptr<const tap::SequenceTaps> taps, TapLease lease, int32_t prompt_len,
          int64_t record_elements);

  // For the keys of its blocks (tap.T5).
  std::vector<cache::ContentRun> content_runs() const;
  // Prefix reuse must stop here (tap.T6, tap.T11).
  int32_t max_reused() const;
  // What a step takes of the capture buffer for one captured token; 0: never captures.
  int64_t record_elements() const { return record_elements_; }

  // Of the `q_len` tokens from `begin` on, how many one step may run that has room for `elements`
  // captured elements. A step that fills latches ends with the prompt (tap.T8), and so does one of
  // a controlled sequence, whose generated tokens run one a step (tap.T11).
  int32_t fit(int32_t begin, int32_t q_len, int64_t elements) const;
  // Of the capture buffer, what `q_len` tokens from `begin` on take.
  int64_t captured_elements(int32_t begin, int32_t q_len) const;
  // Of the `most` tokens from `begin` on, how many come before the first that is captured.
  int32_t uncaptured_len(int32_t begin, int32_t most) const;
  // Of the `most` tokens from `begin` on, how many run one program and are not captured.
  int32_t uniform_len(int32_t begin, int32_t most) const;
  // Fills in the taps of `work`, whose kv_len, q_len and drafts are set; returns its captured
  // elements.
  int64_t write(step::SeqWork& work) const;
  // Takes note of generated tokens among `tokens`, which are all of the sequence's. True when the
  // programs of the last of them, and so content_runs(), are others than was thought.
  bool note_tokens(std::span<const int32_t> tokens);
  // Which program a token runs is known only when the token is: no step runs a token that is still
  // being sampled, or is guessed.
  bool needs_known_tokens() const { return stage_ != Stage::kSettled; }
  // A draft would run before what the token in front of it leaves is known to be right.
  bool takes_drafts() const;
  // Tokens below `len` are computed and their records are at the host: they are not captured again.
  void note_computed(int32_t len);

 private:
  // Where generated tokens are, in respect of thoughts.
  enum class Stage : uint8_t { kFirstToken, kThoughts, kSettled };
  struct Run {  // of positions from `begin` to the next run
    int32_t begin = 0;
    int32_t row = 0;
    const tap::TapSegment* segment = nullptr;
  };

  int32_t row_at(int32_t position) const;
  bool note_token(int32_t position, int32_t token);
  void cut_runs();
  void add_runs(std::span<const tap::TapSegment> segments, size_t first_row, int32_t begin,
                int32_t end);

  std::shared_ptr<const tap::SequenceTaps> taps_;
  TapLease lease_;
  int32_t prompt_len_ = 0;
  int64_t record_elements_ = 0;
  int32_t captured_len_ = 0;
  std::vector<Run> runs_;  // ascending; the first begins at 0; empty: not steered
  Stage stage_ = Stage::kSettled;
  int32_t noted_len_ = 0;                 // tokens that note_tokens() has seen
  int32_t thoughts_begin_ = tap::kNoEnd;  // of those generated
  int32_t thoughts_end_ = tap::kNoEnd;
};

}  // namespace rudder::sched
