#include "rudder/cache/tier_index.h"

#include <fmt/format.h>

#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::cache {

TierIndex::TierIndex(const Options& options, Parts checkpoint)
    : options_(options), checkpoint_(checkpoint) {
  const int32_t all = options.plain_placements + options.stated_placements;
  for (int32_t placement = all - 1; placement >= 0; --placement)
    free_[class_of(placement)].push_back(placement);
}

TierIndex::Found TierIndex::find(const TierKey& key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.is_doomed) return {};
  const Entry& entry = found->second;
  const bool is_there =
      entry.placement >= 0 && (!entry.is_filling || RUDDER_MUTANT(kRecordUnwritten));
  return {.host = is_there ? entry.host : 0, .disk = entry.disk};
}

void TierIndex::touch(const TierKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (entry.placement >= 0) {
    Uses& uses = host_uses_[class_of(entry.placement)];
    uses.splice(uses.end(), uses, entry.host_use);
  }
  if (entry.disk != 0) disk_uses_.splice(disk_uses_.end(), disk_uses_, entry.disk_use);
}

void TierIndex::free_placement(Entry& entry) {
  const size_t size_class = class_of(entry.placement);
  if (!entry.is_filling) --counts_.host;
  host_uses_[size_class].erase(entry.host_use);
  free_[size_class].push_back(entry.placement);
  entry.placement = -1;
  entry.host = 0;
  entry.is_filling = false;
}

void TierIndex::free_file(Entry& entry) {
  if (entry.disk != 0) {
    disk_uses_.erase(entry.disk_use);
    --counts_.disk;
  }
  counts_.disk_bytes -= entry.disk_bytes;
  entry.disk = 0;
  entry.disk_bytes = 0;
  entry.is_writing = false;
}

void TierIndex::remove_if_empty(Entries::iterator found) {
  const Entry& entry = found->second;
  if (entry.placement < 0 && entry.disk == 0 && !entry.is_writing) entries_.erase(found);
}

// Of records of the class the one that was of use longest ago and that nobody reads or fills.
bool TierIndex::evict(size_t size_class) {
  for (const TierKey& key : host_uses_[size_class]) {
    const auto found = entries_.find(key);
    Entry& entry = found->second;
    if (entry.is_filling || entry.pins > 0) continue;
    lost_.push_back({.key = key, .parts = entry.host, .is_file = false});
    ++counts_.host_evictions;
    free_placement(entry);
    remove_if_empty(found);
    return true;
  }
  return false;
}

std::optional<int32_t> TierIndex::begin_fill(const TierKey& key, Parts parts) {
  const auto known = entries_.find(key);
  if (known != entries_.end()) {
    Entry& entry = known->second;
    if (entry.is_doomed || entry.is_filling || entry.pins > 0 || entry.is_writing) return {};
    if (entry.placement >= 0) {  // one with fewer parts gives way
      lost_.push_back({.key = key, .parts = entry.host, .is_file = false});
      free_placement(entry);
    }
  }
  const size_t size_class = (parts & checkpoint_) != 0 || options_.plain_placements == 0 ? 1 : 0;
  if (free_[size_class].empty() && !evict(size_class)) {
    if (const auto left = entries_.find(key); left != entries_.end()) remove_if_empty(left);
    return {};
  }
  Entry& entry = entries_[key];
  entry.placement = free_[size_class].back();
  free_[size_class].pop_back();
  entry.host = parts;
  entry.is_filling = true;
  Uses& uses = host_uses_[size_class];
  entry.host_use = uses.insert(uses.end(), key);
  return entry.placement;
}

void TierIndex::end_fill(const TierKey& key, bool ok) {
  const auto found = entries_.find(key);
  RUDDER_CHECK(found != entries_.end() && found->second.is_filling, "a record is not filled");
  Entry& entry = found->second;
  if (ok && !entry.is_doomed) {
    entry.is_filling = false;
    ++counts_.host;
    return;
  }
  free_placement(entry);
  forget_entry(found);
}

int32_t TierIndex::pin(const TierKey& key) {
  Entry& entry = entries_.at(key);
  ++entry.pins;
  return entry.placement;
}

void TierIndex::unpin(const TierKey& key, bool ok) {
  const auto found = entries_.find(key);
  RUDDER_CHECK(found != entries_.end() && found->second.pins > 0, "a record is not read");
  Entry& entry = found->second;
  --entry.pins;
  if (!ok) entry.is_doomed = true;
  forget_entry(found);
}

bool TierIndex::begin_write(const TierKey& key, int64_t bytes) {
  const auto known = entries_.find(key);
  if (known != entries_.end() && known->second.is_writing) return false;
  if (bytes > options_.disk_bytes) return false;
  while (counts_.disk_bytes + bytes > options_.disk_bytes) {
    if (disk_uses_.empty()) return false;
    const auto oldest = entries_.find(disk_uses_.front());
    lost_.push_back({.key = oldest->first, .parts = oldest->second.disk, .is_file = true});
    ++counts_.disk_evictions;
    free_file(oldest->second);
    remove_if_empty(oldest);
  }
  Entry& entry = entries_[key];
  if (entry.disk != 0) {  // one with fewer parts gives way
    lost_.push_back({.key = key, .parts = entry.disk, .is_file = true});
    free_file(entry);
  }
  entry.is_writing = true;
  entry.disk_bytes = bytes;
  counts_.disk_bytes += bytes;
  return true;
}

void TierIndex::end_write(const TierKey& key, Parts parts, bool ok) {
  const auto found = entries_.find(key);
  RUDDER_CHECK(found != entries_.end() && found->second.is_writing, "a file is not written");
  Entry& entry = found->second;
  if (ok && !entry.is_doomed) {
    entry.is_writing = false;
    entry.disk = parts;
    entry.disk_use = disk_uses_.insert(disk_uses_.end(), key);
    ++counts_.disk;
    return;
  }
  if (ok) lost_.push_back({.key = key, .parts = parts, .is_file = true});
  free_file(entry);
  forget_entry(found);
}

void TierIndex::add_file(const TierKey& key, Parts parts, int64_t bytes) {
  if (begin_write(key, bytes)) end_write(key, parts, true);
}

void TierIndex::drop_file(const TierKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.disk == 0) return;
  lost_.push_back({.key = key, .parts = found->second.disk, .is_file = true});
  free_file(found->second);
  remove_if_empty(found);
}

// What is on its way keeps the entry; nobody finds it.
void TierIndex::forget_entry(Entries::iterator found) {
  Entry& entry = found->second;
  if (entry.is_doomed) {
    if (entry.disk != 0) {
      lost_.push_back({.key = found->first, .parts = entry.disk, .is_file = true});
      free_file(entry);
    }
    if (entry.placement >= 0 && !entry.is_filling && entry.pins == 0) {
      lost_.push_back({.key = found->first, .parts = entry.host, .is_file = false});
      free_placement(entry);
    }
  }
  remove_if_empty(found);
}

void TierIndex::forget(const TierKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  found->second.is_doomed = true;
  forget_entry(found);
}

void TierIndex::forget_all() {
  for (auto next = entries_.begin(); next != entries_.end();) {
    const auto found = next++;
    found->second.is_doomed = true;
    forget_entry(found);
  }
}

Result<void> TierIndex::check(int32_t in_use) const {
  int32_t host = 0;
  int32_t disk = 0;
  int32_t held = 0;
  int32_t used = 0;
  int64_t bytes = 0;
  for (const auto& [key, entry] : entries_) {
    held += entry.placement >= 0 ? 1 : 0;
    host += entry.placement >= 0 && !entry.is_filling ? 1 : 0;
    disk += entry.disk != 0 ? 1 : 0;
    bytes += entry.disk_bytes;
    used += entry.pins + (entry.is_filling ? 1 : 0);
    const bool is_at_work = entry.pins > 0 || entry.is_filling || entry.is_writing;
    if (entry.is_doomed && !is_at_work) return fail(ErrorCode::kInternal, "a record is not gone");
  }
  const auto num_free = static_cast<int32_t>(free_[0].size() + free_[1].size());
  const auto listed = static_cast<int32_t>(host_uses_[0].size() + host_uses_[1].size());
  if (held + num_free != options_.plain_placements + options_.stated_placements || listed != held ||
      host != counts_.host || disk != counts_.disk || std::cmp_not_equal(disk, disk_uses_.size()) ||
      bytes != counts_.disk_bytes || bytes > options_.disk_bytes || used != in_use) {
    return fail(
        ErrorCode::kInternal,
        fmt::format("the tiers are miscounted: {} placements held and {} free, {} files of {} "
                    "bytes, {} records at work for {} copies",
                    held, num_free, disk, bytes, used, in_use));
  }
  return {};
}

}  // namespace rudder::cache
