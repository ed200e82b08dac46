#include "rudder/draft/suffix_guess.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace rudder::draft {
namespace {

// What is left to shorter contexts is not worth a look below it.
constexpr double kLeastLeft = 0.1;

}  // namespace

void SuffixGuess::clear() {
  contexts_.clear();
}

void SuffixGuess::add_own(const SuffixTree& tree) {
  ends_.clear();
  tree.append_ends(&ends_);
  add_sites(tree);
}

void SuffixGuess::add_behind(const SuffixTree& tree, std::span<const int32_t> text) {
  ends_.clear();
  tree.append_ends_of(text, &ends_);
  add_sites(tree);
}

void SuffixGuess::add_sites(const SuffixTree& tree) {
  for (size_t i = 0; i < ends_.size(); ++i) {
    contexts_.push_back({&tree, static_cast<int32_t>(i) + 1, ends_[i]});
  }
}

void SuffixGuess::make(const SuffixLimits& limits, sched::Draft* draft) {
  if (contexts_.empty()) return;
  std::ranges::stable_sort(contexts_, std::greater<>(), &Context::length);
  const double deepest = std::floor(limits.max_spec_factor * contexts_.front().length);
  most_depth_ = static_cast<int32_t>(std::min<double>(deepest, limits.most));
  heap_.clear();
  num_candidates_ = 0;
  rows_.assign(1, {});
  sites_.clear();
  for (const Context& context : contexts_) sites_.push_back(context.site);
  bool is_chain = true;
  expand(0, 1, limits);
  while (std::ssize(draft->tokens) < limits.most && !heap_.empty()) {
    const Candidate next = pop();
    const bool goes_on = next.row == std::ssize(draft->tokens);
    const bool is_too_large = std::ssize(draft->tokens) >= step::kMaxTreeDrafts;
    if (is_too_large && !(is_chain && goes_on)) continue;
    is_chain = is_chain && goes_on;
    draft->tokens.push_back(next.token);
    draft->odds.push_back(next.odds);
    add_row(next);
    expand(static_cast<int32_t>(std::ssize(draft->tokens)), next.prob, limits);
  }
  if (is_chain) return;
  for (size_t row = 1; row < rows_.size(); ++row) draft->tree.add(rows_[row].parent);
}

void SuffixGuess::add_row(const Candidate& candidate) {
  const size_t before = static_cast<size_t>(candidate.row) * contexts_.size();
  rows_.push_back({candidate.row, rows_[static_cast<size_t>(candidate.row)].depth + 1});
  for (size_t i = 0; i < contexts_.size(); ++i) {
    const SuffixTree::Site site = sites_[before + i];
    sites_.push_back(site.is_none() ? site : contexts_[i].tree->step(site, candidate.token));
  }
}

// What comes behind the row, and how likely it is.
void SuffixGuess::blend(int32_t row) {
  blended_.clear();
  double left = 1;
  for (size_t i = 0; i < contexts_.size() && left >= kLeastLeft; ++i) {
    const SuffixTree::Site site = sites_[static_cast<size_t>(row) * contexts_.size() + i];
    if (site.is_none()) continue;
    next_.clear();
    const int32_t total = contexts_[i].tree->append_next(site, &next_);
    if (next_.empty()) continue;  // it ends the tree's text
    const double share = left / static_cast<double>(total + std::ssize(next_));
    for (const SuffixTree::Next& next : next_) {
      const auto known = std::ranges::find(blended_, next.token, &Blended::token);
      Blended& blended =
          known != blended_.end() ? *known : blended_.emplace_back(Blended{.token = next.token});
      blended.odds += share * next.count;
    }
    left = share * static_cast<double>(std::ssize(next_));
  }
}

void SuffixGuess::expand(int32_t row, double prob, const SuffixLimits& limits) {
  if (rows_[static_cast<size_t>(row)].depth >= most_depth_) return;
  blend(row);
  if (!limits.takes_tree && !blended_.empty()) {
    const auto best = std::ranges::max_element(blended_, {}, &Blended::odds);
    blended_.assign(1, Blended(*best));
  }
  for (const Blended& blended : blended_) {
    if (prob * blended.odds < limits.min_token_prob) continue;
    heap_.push_back({.prob = prob * blended.odds,
                     .odds = static_cast<float>(blended.odds),
                     .row = row,
                     .token = blended.token,
                     .serial = num_candidates_++});
    std::ranges::push_heap(heap_, comes_later);
  }
}

SuffixGuess::Candidate SuffixGuess::pop() {
  std::ranges::pop_heap(heap_, comes_later);
  const Candidate candidate = heap_.back();
  heap_.pop_back();
  return candidate;
}

bool SuffixGuess::comes_later(const Candidate& a, const Candidate& b) {
  return a.prob != b.prob ? a.prob < b.prob : a.serial > b.serial;
}

}  // namespace rudder::draft
