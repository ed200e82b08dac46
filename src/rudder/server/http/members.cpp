#include "rudder/server/http/members.h"

#include <algorithm>
#include <utility>

namespace rudder::server {

void Members::add(const std::shared_ptr<Endable>& member) {
  if (!index_.emplace(member.get(), members_.size()).second) return;
  look_us_.push_back(0);
  owned_.push_back(member);
  members_.push_back(member.get());
}

// The last one moves to its index.
void Members::remove(Endable* member) {
  const auto found = index_.find(member);
  if (found == index_.end()) return;
  const size_t index = found->second;
  index_.erase(found);
  if (index + 1 < members_.size()) {
    look_us_[index] = look_us_.back();
    owned_[index] = std::move(owned_.back());
    members_[index] = members_.back();
    index_[members_[index]] = index;
  }
  look_us_.pop_back();
  owned_.pop_back();
  members_.pop_back();
}

std::vector<std::weak_ptr<Endable>> Members::due(int64_t now_us) {
  std::vector<std::weak_ptr<Endable>> due;
  for (size_t i = 0; i < look_us_.size(); ++i) {
    if (look_us_[i] > now_us) continue;
    const int64_t due_us = members_[i]->due_us();
    look_us_[i] = std::min(due_us, now_us + kLookUs);
    if (due_us <= now_us) due.push_back(owned_[i]);
  }
  return due;
}

}  // namespace rudder::server
