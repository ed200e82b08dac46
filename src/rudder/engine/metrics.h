// EngineMetrics: counts what the engine does. The engine thread notes events as they happen and
// publishes a snapshot at the end of each turn; any thread may read the last snapshot. What each
// number means: docs/contracts/engine.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "rudder/engine/event.h"
#include "rudder/engine/open_request.h"
#include "rudder/engine/stats.h"
#include "rudder/sched/stats.h"
#include "rudder/steer/row_table.h"
#include "rudder/step/result.h"

namespace rudder::engine {

class EngineMetrics {
 public:
  // Histograms of lengths end at `max_seq_len` tokens; `block_size` in tokens.
  EngineMetrics(int32_t max_seq_len, int32_t block_size);

  // Any thread.
  void note_rejected() { num_rejected_.fetch_add(1, std::memory_order_relaxed); }
  EngineStats snapshot() const;  // queued_tokens is the caller's to set

  // The engine thread's from here on. Times are the engine clock's, in microseconds.
  void note_admitted(const OpenRequest& request);
  void note_launched(int32_t num_tokens, int32_t repeat);
  // `decodes`: every sequence of the step had one token.
  void note_collected(const step::StepResult& result, bool decodes);
  void note_first_planned(const OpenRequest& request, int64_t now_us);
  void note_tokens(const OpenRequest& request, OpenChoice& choice, size_t count, int64_t now_us);
  void note_finish(const OpenRequest& request, const OpenChoice& choice, FinishReason reason,
                   int64_t now_us);
  void note_displaced() { live_.displaced += 1; }
  void note_expired() { live_.expired += 1; }
  // The masks of a step's constrained sequences were written in so much time.
  void note_masks(size_t num_sequences, int64_t spent_us);
  // Samples of a prompt's scores, by its latches.
  void note_clipped(int64_t samples) { live_.clipped_samples += static_cast<uint64_t>(samples); }
  void publish(const sched::SchedStats& sched, size_t num_waiting_for_taps,
               const steer::RowTable::Stats& tap_rows);

 private:
  void count_prompt(const OpenRequest& request, const OpenChoice& choice);

  EngineStats live_;  // the engine thread's

  std::atomic<uint64_t> num_rejected_{0};
  mutable std::mutex mutex_;
  EngineStats published_;
};

}  // namespace rudder::engine
