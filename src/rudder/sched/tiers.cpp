#include "rudder/sched/tiers.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::sched {

namespace {

// Blocks that stores hold are nobody else's: no more at once than this, nor than a quarter of those
// that are available.
constexpr int32_t kMostStores = 64;
constexpr size_t kMostWanted = 4096;

cache::TierKey tier_key(const step::RecordKey& key) {
  return {key.low, key.high};
}

step::RecordKey record_key(const cache::TierKey& key) {
  return {.low = key.first, .high = key.second};
}

}  // namespace

Tiers::Tiers(const step::Capacity& capacity, const SchedSettings& settings, Blocks& blocks)
    : capacity_(capacity),
      settings_(settings),
      blocks_(blocks),
      nodes_(blocks.cache()),
      index_({.plain_placements = capacity.tiers.plain_records,
              .stated_placements = capacity.tiers.stated_records,
              .disk_bytes = capacity.tiers.disk_bytes},
             step::kStatePart),
      watch_(settings.block_watcher, blocks.num_groups()),
      has_files_(capacity.tiers.has_disk()) {
  RUDDER_CHECK(empty() || (settings.enable_prefix_caching && settings.hash_bits == 128),
               "tiers without prefixes or with keys of {} bits", settings.hash_bits);
  RUDDER_CHECK(empty() || capacity.states.empty() || capacity.tiers.stated_records > 0,
               "no record has room for a state");
}

void Tiers::add_stored(std::span<const step::StoredRecord> stored) {
  for (const step::StoredRecord& one : stored) {
    index_.add_file(tier_key(one.key), one.parts, capacity_.tiers.bytes_of(one.parts));
  }
  take_lost();
}

// A collision of keys would be a wrong text: they have all their bits.
cache::TierKey Tiers::key_of(Sequence& sequence, int32_t block) const {
  const cache::BlockKey key = blocks_.cache().key(sequence.chain, sequence.tokens, block);
  if (RUDDER_MUTANT(kRecordUnsalted)) {
    cache::Chain unsalted = blocks_.cache().make_chain("", sequence.chain.runs);
    const cache::BlockKey other = blocks_.cache().key(unsalted, sequence.tokens, block);
    return {other.low, other.high};
  }
  return {key.low, key.high};
}

step::RecordParts Tiers::parts_of(const cache::NodeObjects& objects) const {
  step::RecordParts parts = 0;
  for (int32_t g = 0; g < static_cast<int32_t>(objects.blocks.size()); ++g) {
    if (objects.blocks[static_cast<size_t>(g)] != cache::kNoBlock) parts |= step::group_part(g);
  }
  if (objects.checkpoint != cache::kNoState) parts |= step::kStatePart;
  return parts;
}

// Whether a sequence may go on behind the pieces so far: every block that its next token sees is
// there, and where sequences have states a checkpoint behind the last.
bool Tiers::goes_on(const Reach& reach, int32_t from, std::span<const int32_t> there_from) const {
  const int32_t position = (from + reach.size()) * capacity_.block_size;
  for (int32_t g = 0; g < blocks_.num_groups(); ++g) {
    const bool is_there =
        there_from[static_cast<size_t>(g)] <= blocks_.cache().first_needed(g, position);
    if (!is_there && !RUDDER_MUTANT(kRecordWithHole)) return false;
  }
  return capacity_.states.empty() || (reach.pieces.back().parts & step::kStatePart) != 0;
}

// Blocks that a window has passed behind the last piece are not needed.
void Tiers::take_needed(Reach& reach, int32_t from) const {
  const int32_t end = from + reach.size();
  for (int32_t i = from; i < end; ++i) {
    Reach::Piece& piece = reach.pieces[static_cast<size_t>(i - from)];
    for (int32_t g = 0; g < blocks_.num_groups(); ++g) {
      const bool is_seen = i >= blocks_.cache().first_needed(g, end * capacity_.block_size);
      if (is_seen) piece.taken |= step::group_part(g);
    }
    if (i == end - 1 && !capacity_.states.empty()) piece.taken |= step::kStatePart;
  }
}

int32_t Tiers::Reach::num_blocks() const {
  int32_t count = 0;
  for (const Piece& piece : pieces) count += std::popcount(piece.taken & ~step::kStatePart);
  return count;
}

Tiers::Reach Tiers::find(Sequence& sequence, const cache::Match& match,
                         const cache::BlockTables& found) {
  Reach reach;
  sequence.tier.declined = 0;
  if (empty() || is_paused_) return reach;
  std::vector<int32_t> there_from;  // by group, as in BlockCache::match
  for (const cache::BlockTable& table : found) there_from.push_back(table.first);
  const int32_t from = match.num_blocks;
  const int32_t most = blocks_.max_match(sequence);
  int32_t longest = 0;
  for (int32_t i = from; i < most; ++i) {
    const cache::TierKey key = key_of(sequence, i);
    const cache::TierIndex::Found record = index_.find(key);
    const bool in_file = record.host == 0 && has_files_;
    const step::RecordParts parts = in_file ? record.disk : record.host;
    if (parts == 0) break;
    reach.pieces.push_back({.key = record_key(key), .parts = parts, .is_file = in_file});
    for (int32_t g = 0; g < blocks_.num_groups(); ++g) {
      if ((parts & step::group_part(g)) == 0) there_from[static_cast<size_t>(g)] = i + 1;
    }
    if (goes_on(reach, from, there_from)) longest = reach.size();
  }
  reach.pieces.resize(static_cast<size_t>(longest));
  take_needed(reach, from);
  if (reach.num_blocks() + blocks_.cache().count_refs(found, 0) > blocks_.num_available())
    return {};
  const auto files = std::ranges::count(reach.pieces, true, &Reach::Piece::is_file);
  const int32_t tokens = longest * capacity_.block_size;
  const bool is_taken =
      reach.empty() || !settings_.weighs_fetches || pace_.pays(longest - files, files, tokens);
  if (is_taken) return reach;
  sequence.tier.declined = tokens;
  return {};
}

void Tiers::begin(Sequence& sequence, const Reach& reach, step::StepPlan& plan) {
  if (reach.empty()) {
    stats_.computed_instead += static_cast<uint64_t>(sequence.tier.declined);
    if (sequence.tier.declined > 0) pace_.note_declined();
    return;
  }
  pace_.note_taken();
  cache::BlockCache& cache = blocks_.cache();
  const int32_t from = sequence.table_len();
  const int32_t end = (from + reach.size()) * capacity_.block_size;
  cache.release_passed(sequence.tables, end);
  sequence.tier.loaded_from = from * capacity_.block_size;
  sequence.tier.is_first = !sequence.wait.was_planned;
  sequence.tier.has_failed = false;
  sequence.tier.host_tokens = 0;
  sequence.tier.disk_tokens = 0;
  for (const Reach::Piece& piece : reach.pieces) {
    const cache::TierKey key = tier_key(piece.key);
    const auto move = piece.is_file ? step::RecordMove::kFetch : step::RecordMove::kLoad;
    step::RecordCopy& copy =
        add_copy(plan, {.move = move, .key = key, .parts = piece.parts, .sequence = &sequence});
    if (!piece.is_file) copy.record = index_.pin(key);
    index_.touch(key);
    for (int32_t g = 0; g < blocks_.num_groups(); ++g) {
      const bool is_taken = (piece.taken & step::group_part(g)) != 0;
      const bool is_there = (piece.parts & step::group_part(g)) != 0;
      const cache::BlockId block = is_taken ? cache.take() : cache::kNoBlock;
      RUDDER_CHECK(!is_taken || block != cache::kNoBlock, "no block is left for a record");
      sequence.tables[static_cast<size_t>(g)].blocks.push_back(block);
      copy.blocks.push_back(is_there ? block : cache::kNoBlock);
    }
    if ((piece.taken & step::kStatePart) != 0) copy.state = sequence.object;
    (piece.is_file ? sequence.tier.disk_tokens : sequence.tier.host_tokens) += capacity_.block_size;
    ++sequence.tier.loads_left;
  }
  for (int32_t g = 0; g < blocks_.num_groups(); ++g) {
    cache::BlockTable& table = sequence.tables[static_cast<size_t>(g)];
    table.first = std::max(table.first, std::min(cache.first_needed(g, end), sequence.table_len()));
  }
}

step::RecordCopy& Tiers::add_copy(step::StepPlan& plan, Copy copy) {
  step::RecordCopy& added = plan.record_copies.emplace_back();
  added.id = ++last_id_;
  added.move = copy.move;
  added.key = record_key(copy.key);
  added.parts = copy.parts;
  copies_.emplace(added.id, std::move(copy));
  return added;
}

void Tiers::plan(step::StepPlan& plan) {
  if (empty()) return;
  take_lost();
  for (Copy& erase : erases_) add_copy(plan, std::move(erase));
  erases_.clear();
  for (; !writes_.empty(); writes_.pop_front()) {
    const int32_t placement = writes_.front().placement;
    add_copy(plan, std::move(writes_.front())).record = placement;
  }
  while (may_store()) {
    const Wanted wanted = wanted_.front();
    wanted_.pop_front();
    plan_store(wanted, plan);
  }
}

bool Tiers::may_store() const {
  if (is_paused_ || wanted_.empty()) return false;
  return num_stores_ < std::min(kMostStores, blocks_.num_available() / (4 * blocks_.num_groups()));
}

// Unless the node is gone, or the record would have no more than there is. A record never loses a
// part to one that has another.
void Tiers::plan_store(const Wanted& wanted, step::StepPlan& plan) {
  cache::NodeObjects objects = nodes_.objects(wanted.node);
  if (objects.empty()) return;
  const step::RecordParts parts = parts_of(objects);
  const cache::TierIndex::Found known = index_.find(wanted.key);
  if (parts == known.host || ((known.host | known.disk) & ~parts) != 0) return;
  const std::optional<int32_t> placement = index_.begin_fill(wanted.key, parts);
  take_lost();  // whoever watches is told before the placement has another record
  if (!placement) return;
  Copy copy = {.move = step::RecordMove::kStore, .key = wanted.key, .parts = parts};
  if (watch_.has_watcher()) {
    copy.block = nodes_.describe(wanted.node, 0);
    copy.tokens.assign(copy.block.tokens.begin(), copy.block.tokens.end());
    copy.block.tokens = {};
  }
  nodes_.hold(objects);
  copy.held = objects;
  step::RecordCopy& added = add_copy(plan, std::move(copy));
  added.record = *placement;
  added.blocks = std::move(objects.blocks);
  added.state = objects.checkpoint;
  ++num_stores_;
}

void Tiers::note_shared(Sequence& sequence) {
  TierWork& tier = sequence.tier;
  if (empty()) return;
  constexpr size_t kLeastCounted = 1 << 16;
  const auto placements = static_cast<size_t>(capacity_.tiers.plain_records) +
                          static_cast<size_t>(capacity_.tiers.stated_records);
  if (uses_.size() >= kLeastCounted + 8 * placements) uses_.clear();
  for (; tier.noted < sequence.chain.num_shared; ++tier.noted) {
    tier.node = nodes_.at(sequence.chain, sequence.tokens, tier.noted, tier.node);
    if (tier.node.node == cache::kNoNode) {  // it was evicted meanwhile
      tier.noted = sequence.chain.num_shared;
      tier.node = sequence.chain.last_shared;
      return;
    }
    const cache::TierKey key = key_of(sequence, tier.noted);
    index_.touch(key);
    if (++uses_[key] < settings_.store_uses || wanted_.size() >= kMostWanted) continue;
    wanted_.push_back({.node = tier.node, .key = key});
  }
}

void Tiers::distrust(Sequence& sequence) {
  if (empty()) return;
  for (int32_t i = 0; i < static_cast<int32_t>(sequence.chain.keys.size()); ++i) {
    index_.forget(key_of(sequence, i));
  }
}

Sequence* Tiers::take_done(const step::RecordDone& done) {
  const auto found = copies_.find(done.id);
  RUDDER_CHECK(found != copies_.end(), "copy {} is done and was not planned", done.id);
  Copy copy = std::move(found->second);
  copies_.erase(found);
  stats_.bad_records += done.is_bad ? 1 : 0;
  switch (copy.move) {
    case step::RecordMove::kStore:
      end_store(copy, done.ok);
      break;
    case step::RecordMove::kWrite:
      index_.unpin(copy.key, !done.is_bad);
      index_.end_write(copy.key, copy.parts, done.ok);
      ++(done.ok ? stats_.disk_stored : stats_.failed_writes);
      if (done.ok) watch_.stored(copy.key, copy.parts, copy.told(), cache::Medium::kDisk);
      break;
    case step::RecordMove::kLoad:
    case step::RecordMove::kFetch:
      end_load(copy, done);
      break;
    case step::RecordMove::kErase:
      break;
  }
  take_lost();
  if (copy.sequence == nullptr || copy.sequence->tier.loads_left > 0) return nullptr;
  return copy.sequence;
}

void Tiers::end_store(Copy& copy, bool ok) {
  --num_stores_;
  nodes_.release(copy.held);
  copy.held = {};
  index_.end_fill(copy.key, ok);
  const cache::TierIndex::Found found = index_.find(copy.key);
  if (found.host == 0) return;
  ++stats_.host_stored;
  watch_.stored(copy.key, copy.parts, copy.told(), cache::Medium::kHost);
  if (!has_files_ || (copy.parts & ~found.disk) == 0) return;
  if (!index_.begin_write(copy.key, capacity_.tiers.bytes_of(copy.parts))) return;
  copy.move = step::RecordMove::kWrite;
  copy.placement = index_.pin(copy.key);
  writes_.push_back(copy);
}

void Tiers::end_load(Copy& copy, const step::RecordDone& done) {
  Sequence& sequence = *copy.sequence;
  const bool is_file = copy.move == step::RecordMove::kFetch;
  if (done.ok) pace_.note_fetch(is_file, done.us);
  if (!is_file) index_.unpin(copy.key, done.ok);
  if (is_file && !done.ok) index_.drop_file(copy.key);
  sequence.tier.has_failed = sequence.tier.has_failed || !done.ok;
  if (--sequence.tier.loads_left > 0) return;
  sequence.run.is_copied_to = false;
  if (sequence.tier.has_failed) {
    ++stats_.failed_loads;
    return;
  }
  WaitState& wait = sequence.wait;
  if (!sequence.tier.is_first) return;
  wait.cached_host_tokens = sequence.tier.host_tokens;
  wait.cached_disk_tokens = sequence.tier.disk_tokens;
  wait.cached_prompt_tokens += wait.cached_host_tokens + wait.cached_disk_tokens;
  stats_.host_hits += static_cast<uint64_t>(wait.cached_host_tokens);
  stats_.disk_hits += static_cast<uint64_t>(wait.cached_disk_tokens);
}

void Tiers::take_lost() {
  for (const cache::TierIndex::Lost& lost : index_.take_lost()) {
    if (lost.is_file) {
      erases_.push_back({.move = step::RecordMove::kErase, .key = lost.key, .parts = lost.parts});
    }
    watch_.removed(lost);
  }
}

std::vector<cache::CachedBlock> Tiers::watched() const {
  std::vector<cache::CachedBlock> watched = blocks_.cache().watched();
  watch_.append_to(&watched);
  return watched;
}

void Tiers::forget_all() {
  note_cleared(false);
  wanted_.clear();
  uses_.clear();
  index_.forget_all();
  take_lost();
}

void Tiers::drop_all() {
  for (auto& [id, copy] : copies_) {
    if (copy.move == step::RecordMove::kStore) nodes_.release(copy.held);
  }
  copies_.clear();
  writes_.clear();
  erases_.clear();
  wanted_.clear();
  num_stores_ = 0;
  index_ = cache::TierIndex({}, step::kStatePart);
  is_paused_ = true;
}

void Tiers::add_to(SchedStats* stats) const {
  TierStats& tiers = stats->cached.tiers;
  tiers = stats_;
  tiers.exist = !empty();
  const cache::TierIndex::Counts& counts = index_.counts();
  tiers.host_records = counts.host;
  tiers.disk_records = counts.disk;
  tiers.disk_bytes = counts.disk_bytes;
  tiers.host_evictions = counts.host_evictions;
  tiers.disk_evictions = counts.disk_evictions;
  stats->prefix_hits += stats_.host_hits + stats_.disk_hits;
}

std::vector<cache::NodeObjects> Tiers::held() const {
  std::vector<cache::NodeObjects> held;
  for (const auto& [id, copy] : copies_) {
    if (copy.move != step::RecordMove::kStore) continue;
    cache::NodeObjects& objects = held.emplace_back(copy.held);
    std::erase(objects.blocks, cache::kNoBlock);
  }
  return held;
}

Result<void> Tiers::check() const {
  auto in_use = static_cast<int32_t>(writes_.size());
  for (const auto& [id, copy] : copies_) {
    const bool uses_placement =
        copy.move != step::RecordMove::kFetch && copy.move != step::RecordMove::kErase;
    in_use += uses_placement ? 1 : 0;
  }
  return index_.check(in_use);
}

}  // namespace rudder::sched
