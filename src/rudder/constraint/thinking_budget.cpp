#include "rudder/constraint/thinking_budget.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "rudder/base/check.h"

namespace rudder::constraint {
namespace {

using Tokens = std::vector<int32_t>;

struct Rule {
  Tokens begin;
  Tokens end;
  int32_t budget = 0;
  bool open = false;
};

class ThinkingBudgetMatcher final : public Matcher {
 public:
  explicit ThinkingBudgetMatcher(std::shared_ptr<const Rule> rule) : rule_(std::move(rule)) {
    at_.thinks = rule_->open;
  }

  Result<void> restrict(std::span<uint32_t> words) override {
    if (!at_.thinks || at_.num_thought < rule_->budget) return {};
    const int32_t wanted = rule_->end[at_.num_ended];
    const bool may = is_in_mask(words, wanted);
    std::ranges::fill(words, 0);
    if (may) set_in_mask(words, wanted);
    return {};
  }

  Result<void> advance(int32_t token) override {
    if (at_.last.size() == std::max(rule_->begin.size(), rule_->end.size())) {
      at_.last.erase(at_.last.begin());
    }
    at_.last.push_back(token);
    const Tokens& mark = at_.thinks ? rule_->end : rule_->begin;
    const bool complete = ends_with(mark, mark.size());
    if (complete) {
      at_.thinks = !at_.thinks;
      at_.num_thought = 0;
      at_.last.clear();
    } else if (at_.thinks) {
      ++at_.num_thought;
    }
    at_.num_ended = at_.thinks ? begun() : 0;
    return {};
  }
  void begin_trial() override { trials_.push_back(at_); }
  void end_trial() override {
    at_ = std::move(trials_.back());
    trials_.pop_back();
  }

 private:
  bool ends_with(const Tokens& mark, size_t length) const {
    return at_.last.size() >= length &&
           std::equal(mark.begin(), mark.begin() + static_cast<std::ptrdiff_t>(length),
                      at_.last.end() - static_cast<std::ptrdiff_t>(length));
  }

  // Tokens of the mark that ends thoughts that the last ones already are.
  size_t begun() const {
    size_t length = rule_->end.size() - 1;
    while (length > 0 && !ends_with(rule_->end, length)) --length;
    return length;
  }

  struct State {
    bool thinks = false;
    int32_t num_thought = 0;
    size_t num_ended = 0;
    Tokens last;  // since the last mark, as many as a mark may have
  };

  const std::shared_ptr<const Rule> rule_;
  State at_;
  std::vector<State> trials_;  // at their begins
};

class ThinkingBudget final : public Constraint {
 public:
  explicit ThinkingBudget(Rule rule) : rule_(std::make_shared<const Rule>(std::move(rule))) {}

  std::unique_ptr<Matcher> start() const override {
    return std::make_unique<ThinkingBudgetMatcher>(rule_);
  }

 private:
  const std::shared_ptr<const Rule> rule_;
};

}  // namespace

std::shared_ptr<const Constraint> limit_thinking(std::span<const int32_t> begin,
                                                 std::span<const int32_t> end, int32_t budget,
                                                 bool open) {
  RUDDER_CHECK(!begin.empty() && !end.empty() && budget >= 0);
  return std::make_shared<ThinkingBudget>(
      Rule{{begin.begin(), begin.end()}, {end.begin(), end.end()}, budget, open});
}

}  // namespace rudder::constraint
