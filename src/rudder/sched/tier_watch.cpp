#include "rudder/sched/tier_watch.h"

namespace rudder::sched {

namespace {

size_t index_of(cache::Medium medium) {
  return medium == cache::Medium::kDisk ? 1 : 0;
}

}  // namespace

template <typename Take>
void TierWatch::each_block(const Told& told, cache::Medium medium, const Take& take) const {
  cache::CachedBlock block = {.hash = told.hash, .is_public = told.is_public, .medium = medium};
  for (block.group = 0; block.group < num_groups_; ++block.group) {
    if ((told.parts & step::group_part(block.group)) != 0) take(block);
  }
}

void TierWatch::stored(const cache::TierKey& key, step::RecordParts parts, cache::CachedBlock block,
                       cache::Medium medium) {
  if (watcher_ == nullptr) return;
  const Told told = {.hash = block.hash, .parts = parts, .is_public = block.is_public};
  told_[index_of(medium)][key] = told;
  each_block(told, medium, [&](const cache::CachedBlock& one) {
    block.group = one.group;
    block.medium = medium;
    watcher_->stored(block);
  });
}

void TierWatch::removed(const cache::TierIndex::Lost& lost) {
  const cache::Medium medium = lost.is_file ? cache::Medium::kDisk : cache::Medium::kHost;
  Records& records = told_[index_of(medium)];
  const auto told = records.find(lost.key);
  if (told == records.end()) return;
  each_block(told->second, medium,
             [&](const cache::CachedBlock& block) { watcher_->removed(block); });
  records.erase(told);
}

void TierWatch::clear() {
  for (Records& records : told_) records.clear();
}

void TierWatch::append_to(std::vector<cache::CachedBlock>* watched) const {
  for (const auto medium : {cache::Medium::kHost, cache::Medium::kDisk}) {
    for (const auto& [key, told] : told_[index_of(medium)]) {
      each_block(told, medium, [&](const cache::CachedBlock& block) { watched->push_back(block); });
    }
  }
}

}  // namespace rudder::sched
