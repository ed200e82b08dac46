// Settings of the engine and of the scheduler inside it. Names are vLLM's where they exist.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rudder/base/settings.h"

namespace rudder::engine {

struct EngineSettings {
  int32_t max_num_seqs = 256;             // sequences running at once
  int32_t max_num_batched_tokens = 2048;  // tokens of one step: the chunk budget
  bool enable_prefix_caching = true;
  bool async_scheduling = true;      // run-ahead: launch step t+1 before step t is collected
  int32_t multi_step = 1;            // iterations of a step of decodes at most
  bool speculative_adaptive = true;  // of guessed tokens, verify those that pay
  // Bound on what prompts add to running streams; absent: by what steps take; 0: none.
  std::optional<double> max_itl_ms = {};
  int32_t max_num_queued_reqs = 1024;  // bounded queue: past it 503
  int64_t max_num_queued_tokens = 4 << 20;
  double max_queue_seconds = 0;  // that a request may wait; 0 = for ever
  // Of the keys of prefix blocks: equal in every process that has it. Empty: one of its own.
  std::string prefix_key_secret;
  std::string kv_fetch = "auto";  // from tiers behind the device
  int32_t kv_store_uses = 2;      // of a block, before tiers behind the device get it
  int64_t seed = -1;  // of requests without one; -1 takes the system's entropy. Declared by apps
  int32_t max_wait_steps = 10'000;    // a sequence that waited this long goes first
  int32_t num_cohorts = 1;            // sched::SchedSettings; by the stages, which apps know
  int32_t mask_threads = 0;           // that write the masks of a step; 0 = by the machine's cores
  int64_t stuck_step_us = 5'000'000;  // a step older than this makes health() fail

  void declare(SettingsTable& table);
};

}  // namespace rudder::engine
