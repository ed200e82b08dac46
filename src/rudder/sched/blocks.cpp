#include "rudder/sched/blocks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::sched {

namespace {

cache::CacheOptions cache_options(const step::Capacity& capacity, const SchedSettings& settings) {
  std::vector<int32_t> windows;
  for (const step::KvGroup& group : capacity.kv_groups) windows.push_back(group.window);
  return {.num_blocks = capacity.num_blocks,
          .block_size = capacity.block_size,
          .windows = std::move(windows),
          .share_prefixes = settings.enable_prefix_caching,
          .model_identity = settings.model_identity,
          .hash_key = settings.hash_key,
          .hash_bits = settings.hash_bits,
          .watcher = settings.block_watcher,
          .num_states = capacity.states.count};
}

}  // namespace

Blocks::Blocks(const step::Capacity& capacity, const SchedSettings& settings)
    : capacity_(capacity), settings_(settings), cache_(cache_options(capacity, settings)) {}

int32_t Blocks::needed(int64_t tokens) const {
  const int64_t size = capacity_.block_size;
  if (RUDDER_MUTANT(kBlockEdgeOffByOne)) return static_cast<int32_t>((tokens + size - 2) / size);
  return static_cast<int32_t>((tokens + size - 1) / size);
}

int64_t Blocks::to_take(int64_t tokens, const cache::BlockTables& tables) const {
  int64_t total = 0;
  for (size_t g = 0; g < tables.size(); ++g) {
    const int64_t len = std::ssize(tables[g].blocks);
    const int64_t most = step::blocks_held(capacity_.kv_groups[g], capacity_.block_size, tokens,
                                           settings_.max_num_batched_tokens);
    const int64_t held = std::ssize(tables[g].held());
    total += std::max<int64_t>(0, std::min(needed(tokens) - len, most - held));
  }
  return total;
}

int32_t Blocks::headroom(int32_t num_running) const {
  return capacity_.num_blocks / 100 + num_running * num_groups() / 2;
}

int32_t Blocks::held_alone(const Sequence& sequence) const {
  return cache_.count_refs(sequence.tables, 1);
}

void Blocks::reserve(Sequence& sequence) const {
  const auto num_blocks = static_cast<size_t>(needed(sequence.max_len));
  sequence.tokens.reserve(static_cast<size_t>(sequence.max_len));
  for (cache::BlockTable& table : sequence.tables) table.blocks.reserve(num_blocks);
  sequence.chain.keys.reserve(num_blocks);
}

bool Blocks::extend(Sequence& sequence) {
  if (cache_.num_available() < num_groups()) return false;
  for (cache::BlockTable& table : sequence.tables) table.blocks.push_back(cache_.take());
  return true;
}

// What it goes on from is no room for another.
bool Blocks::has_state_for(const cache::Match& match) const {
  if (!cache_.has_states()) return true;
  const cache::StateId from = match.checkpoint;
  const bool is_cached = from != cache::kNoState && cache_.states().is_cached(from);
  return cache_.num_available_states() > (is_cached ? 1 : 0);
}

void Blocks::give_state(Sequence& sequence, const cache::Match& match, step::StepPlan& plan) {
  if (!cache_.has_states()) return;
  sequence.object = cache_.take_state();
  RUDDER_CHECK(sequence.object != cache::kNoState, "no state is left");
  if (match.checkpoint == cache::kNoState) return;
  sequence.restored_from = RUDDER_MUTANT(kCheckpointUnheld) ? cache::kNoState : match.checkpoint;
  plan.copies_before.push_back(
      {.from = step::state_ref(match.checkpoint), .to = step::state_ref(sequence.object)});
}

void Blocks::end_restore(Sequence& sequence) {
  if (sequence.restored_from == cache::kNoState) return;
  cache_.release_state(std::exchange(sequence.restored_from, cache::kNoState));
}

void Blocks::take_state_back(Sequence& sequence) {
  end_restore(sequence);
  if (sequence.object == cache::kNoState) return;
  cache_.release_state(std::exchange(sequence.object, cache::kNoState));
}

void Blocks::find_turns(Sequence& sequence) const {
  if (!cache_.has_states()) return;
  const std::vector<int32_t>& known = settings_.turn_ends;
  const std::vector<int32_t>& ends = known.empty() ? sequence.sampling.stop_ids : known;
  for (int32_t i = 0; i < sequence.prompt_len; ++i) {
    if (std::ranges::find(ends, sequence.tokens[static_cast<size_t>(i)]) == ends.end()) continue;
    if (sequence.turn_ends.size() > 1) sequence.turn_ends.pop_back();
    sequence.turn_ends.push_back(i + 1);
  }
}

// One at the end of the prompt's last block that others can go on from, likewise of two turns, and
// one every so many.
bool Blocks::wants_checkpoint(const Sequence& sequence, int32_t len) const {
  if (!cache_.has_states() || !settings_.enable_prefix_caching || len == 0) return false;
  const int32_t size = capacity_.block_size;
  if (len % size != 0) return false;
  const int32_t every = capacity_.states.checkpoint_blocks;
  const bool is_every = every > 0 && len / size % every == 0;
  const auto is_of = [&](int32_t end) { return len == end / size * size; };
  return is_every || is_of(sequence.prompt_len - 1) ||
         std::ranges::any_of(sequence.turn_ends, is_of);
}

int32_t Blocks::to_checkpoint(const Sequence& sequence, int32_t from, int32_t most) const {
  if (!cache_.has_states()) return most;
  const int32_t size = capacity_.block_size;
  for (int32_t len = (from / size + 1) * size; len - from < most; len += size) {
    if (wants_checkpoint(sequence, len)) return len - from;
  }
  return most;
}

int32_t Blocks::max_match(const Sequence& sequence) const {
  return std::min(sequence.max_reused(), sequence.taps.max_reused()) / capacity_.block_size;
}

cache::Match Blocks::find_cached(Sequence& sequence, cache::BlockTables* found) const {
  return cache_.match(sequence.chain, sequence.tokens, max_match(sequence), found);
}

}  // namespace rudder::sched
