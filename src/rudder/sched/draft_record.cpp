#include "rudder/sched/draft_record.h"

#include <algorithm>

namespace rudder::sched {
namespace {

// A case counts half after so many others: 17 of a sequence, 350 of all.
constexpr float kKeepOwn = 0.96f;
constexpr float kKeepAll = 0.998f;
// Of the drafts that follow one token each is so many times less likely than the one before it, as
// far as nothing is known of it.
constexpr float kSiblingOdds = 1.0f / 3;

}  // namespace

Draft& DraftRecord::new_guess() {
  guess_.clear();
  num_came_ = 0;
  row_ = 0;
  is_behind_none_ = is_none_;
  is_none_ = false;
  return guess_;
}

void DraftRecord::note_none(DraftRates* all) {
  is_none_ = true;
  all->first.note(false, kKeepAll);
  note_hit(false, 1);
  run_ = 0;
}

// Of the first positions of the last guess.
void DraftRecord::note_hit(bool is_hit, size_t num_positions) {
  for (size_t i = 0; i < num_positions; ++i) {
    (is_behind_none_ ? behind_none_[i] : by_position_[i]).note(is_hit, kKeepOwn);
  }
}

void DraftRecord::compare(std::span<const int32_t> came, const step::DraftTree& tree,
                          DraftRates* all) {
  for (const int32_t token : came) {
    if (!guess_.odds.empty()) {
      compare_stated(token, all);
      continue;
    }
    if (!tree.empty()) {
      compare_children(token, tree, all);
      continue;
    }
    if (num_came_ == guess_.tokens.size()) {  // nothing was guessed
      run_ = 0;
      continue;
    }
    const bool is_hit = guess_.tokens[num_came_] == token;
    all->first.note(is_hit, kKeepAll);
    note_hit(is_hit, std::min(run_ + 1, kPositions));
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

// Tells of each draft that follows the last token that came.
void DraftRecord::compare_stated(int32_t token, DraftRates* all) {
  const int32_t last = row_;
  row_ = 0;
  const auto size = static_cast<int32_t>(guess_.tokens.size());
  for (int32_t row = last + 1; row <= size; ++row) {
    const auto draft = static_cast<size_t>(row - 1);
    const int32_t parent = guess_.tree.empty() ? row - 1 : guess_.tree.parent(row);
    if (parent != last) continue;
    const bool is_hit = guess_.tokens[draft] == token;
    stated_.note(guess_.odds[draft], run_, is_hit, kKeepOwn);
    all->stated.note(guess_.odds[draft], run_, is_hit, kKeepAll);
    if (is_hit) row_ = row;
    if (guess_.tree.empty()) break;
  }
  run_ = row_ > 0 ? run_ + 1 : 0;
  if (row_ == 0) guess_.clear();
}

// Likewise, of trees that are all alike.
void DraftRecord::compare_children(int32_t token, const step::DraftTree& tree, DraftRates* all) {
  int32_t next = 0;
  bool is_first = row_ == 0;
  const int32_t last = std::min(tree.size(), static_cast<int32_t>(guess_.tokens.size()));
  for (int32_t row = row_ + 1; row <= last; ++row) {
    if (tree.parent(row) != row_) continue;
    const auto draft = static_cast<size_t>(row - 1);
    const bool is_hit = guess_.tokens[draft] == token;
    by_position_[draft].note(is_hit, kKeepOwn);
    if (is_first) all->first.note(is_hit, kKeepAll);
    is_first = false;
    if (is_hit) next = row;
  }
  row_ = next;
  if (next == 0) guess_.clear();
}

void DraftRecord::append_odds(const DraftRates& all, float unknown, size_t count,
                              const step::DraftTree& tree, std::vector<float>* odds) const {
  if (!guess_.odds.empty()) return append_stated_odds(all, count, odds);
  const float first = all.first.estimate(unknown);
  if (!tree.empty()) {
    std::array<float, step::kMaxTreeDrafts + 1> right = {1};
    std::array<float, step::kMaxTreeDrafts + 1> next_prior = {first};  // of the next child, by row
    for (size_t row = 1; row <= std::min(count, static_cast<size_t>(tree.size())); ++row) {
      const auto parent = static_cast<size_t>(tree.parent(static_cast<int32_t>(row)));
      const float rate = by_position_[row - 1].estimate(next_prior[parent]);
      next_prior[parent] = rate * kSiblingOdds;
      next_prior[row] = rate;
      right[row] = right[parent] * rate;
      odds->push_back(right[row]);
    }
    return;
  }
  float right = 1;
  float prior = first;
  for (size_t i = 0; i < count; ++i) {
    if (i < kPositions) prior = (is_none_ ? behind_none_[i] : by_position_[i]).estimate(prior);
    right *= prior;
    odds->push_back(right);
  }
}

void DraftRecord::append_stated_odds(const DraftRates& all, size_t count,
                                     std::vector<float>* odds) const {
  std::array<float, step::kMaxTreeDrafts + 1> right = {1};  // of a tree, by row
  std::array<uint8_t, step::kMaxTreeDrafts + 1> depth = {};
  float last = 1;  // of a chain
  for (size_t i = 0; i < std::min(count, guess_.odds.size()); ++i) {
    if (guess_.tree.empty()) {
      last *= stated_.estimate(guess_.odds[i], i, &all.stated);
      odds->push_back(last);
      continue;
    }
    const auto parent = static_cast<size_t>(guess_.tree.parent(static_cast<int32_t>(i) + 1));
    right[i + 1] = right[parent] * stated_.estimate(guess_.odds[i], depth[parent], &all.stated);
    depth[i + 1] = static_cast<uint8_t>(depth[parent] + 1);
    odds->push_back(right[i + 1]);
  }
}

}  // namespace rudder::sched
