#include "rudder/sched/draft_record.h"

#include <algorithm>

namespace rudder::sched {
namespace {

// A case counts half after so many others: 17 of a sequence, 350 of all.
constexpr float kKeepOwn = 0.96f;
constexpr float kKeepAll = 0.998f;

}  // namespace

std::vector<int32_t>& DraftRecord::new_guess() {
  guess_.clear();
  num_came_ = 0;
  return guess_;
}

void DraftRecord::compare(std::span<const int32_t> came, HitRate* all) {
  for (const int32_t token : came) {
    if (num_came_ == guess_.size()) {  // nothing was guessed
      run_ = 0;
      continue;
    }
    const bool is_hit = guess_[num_came_] == token;
    all->note(is_hit, kKeepAll);
    const size_t last = std::min(run_, kPositions - 1);
    for (size_t i = 0; i <= last; ++i) by_position_[i].note(is_hit, kKeepOwn);
    if (is_hit) {
      ++num_came_;
      ++run_;
    } else {
      guess_.clear();
      num_came_ = 0;
      run_ = 0;
    }
  }
}

void DraftRecord::append_odds(float all, size_t count, std::vector<float>* odds) const {
  float right = 1;
  float prior = all;
  for (size_t i = 0; i < count; ++i) {
    if (i < kPositions) prior = by_position_[i].estimate(prior);
    right *= prior;
    odds->push_back(right);
  }
}

}  // namespace rudder::sched
