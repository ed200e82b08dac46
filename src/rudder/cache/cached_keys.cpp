#include "rudder/cache/cached_keys.h"

namespace rudder::cache {

bool CachedKeys::contains(const BlockKey& key) const {
  const std::lock_guard lock(mutex_);
  return held_.contains(key.low);
}

size_t CachedKeys::size() const {
  const std::lock_guard lock(mutex_);
  return held_.size();
}

void CachedKeys::stored(const CachedBlock& block) {
  if (is_followed(block)) changes_.push_back({.hash = block.hash, .is_stored = true});
  if (next_ != nullptr) next_->stored(block);
}

void CachedKeys::removed(const CachedBlock& block) {
  if (is_followed(block)) changes_.push_back({.hash = block.hash, .is_stored = false});
  if (next_ != nullptr) next_->removed(block);
}

void CachedKeys::cleared() {
  changes_.clear();
  is_cleared_ = true;
  if (next_ != nullptr) next_->cleared();
}

void CachedKeys::step_done() {
  if (is_cleared_ || !changes_.empty()) {
    const std::lock_guard lock(mutex_);
    if (is_cleared_) held_.clear();
    for (const Change& change : changes_) {
      if (change.is_stored) {
        held_.insert(change.hash);
      } else {
        held_.erase(change.hash);
      }
    }
  }
  changes_.clear();
  is_cleared_ = false;
  if (next_ != nullptr) next_->step_done();
}

}  // namespace rudder::cache
