// The scheduler's settings. The engine fills them at start from its own settings table.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "rudder/cache/block_watcher.h"

namespace rudder::sched {

constexpr int64_t kNoItlBound = 0;     // as many prompt tokens as fit max_num_batched_tokens
constexpr int64_t kAutoItlBound = -1;  // by what steps take without prompts

struct SchedSettings {
  int32_t max_num_seqs = 256;             // sequences running at once
  int32_t max_num_batched_tokens = 2048;  // tokens of one step
  // No step is planned while so many iterations are planned and not committed; 1 = no run-ahead.
  int32_t max_in_flight = 2;
  int32_t multi_step = 1;  // iterations of a step at most
  // Sequences that decode are divided among so many steps in a row: a step runs its share of those
  // that are in none of the steps in flight just in front of it. 1: a step runs all, also behind a
  // step that still samples for them.
  int32_t num_cohorts = 1;
  // Prompt tokens are added to a step in which sequences stream only while it is expected to take
  // at most this long; or kNoItlBound or kAutoItlBound (sched/prompt_bound.h).
  int64_t max_itl_us = kNoItlBound;
  // Where the scheduler has a proposer: true plans the drafts that pay (sched/draft_pacer.h); false
  // every draft that is proposed, behind every token of a sequence that waits.
  bool pace_drafts = false;
  bool enable_prefix_caching = true;
  // Tokens behind which a turn of a prompt ends; none: those that end the sequence's answer.
  std::vector<int32_t> turn_ends = {};
  std::string model_identity;             // part of every prefix-block key
  std::array<uint64_t, 2> hash_key = {};  // of the prefix-block keys: random for each process
  int32_t hash_bits = 128;                // kept of each key; tests force collisions with 1
  // Where there are tiers: a block is stored there once so many sequences have had it.
  int32_t store_uses = 2;
  // What lies there is fetched only where that was seen to take less time than computing it.
  bool weighs_fetches = true;
  cache::BlockWatcher* block_watcher = nullptr;  // of the prefix cache; null: none
  // Bounds starvation: a sequence that has waited this many steps goes before all that have not, of
  // any priority.
  int32_t max_wait_steps = 10'000;
};

}  // namespace rudder::sched
