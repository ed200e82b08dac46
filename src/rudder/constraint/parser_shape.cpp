#include "rudder/constraint/parser_shape.h"

#include <algorithm>

namespace rudder::constraint {
namespace {

constexpr size_t kMaxWords = 4096;
constexpr int32_t kEndOfList = -2;  // no rule's number

}  // namespace

void ParserShape::begin(uint64_t form, int32_t question) {
  open_.clear();
  key_.assign({static_cast<int32_t>(form), static_cast<int32_t>(form >> 32), question});
}

// Every state has a rule here, and every rule an automaton of its own: the fields of states in
// sequences are always 0, as are those of budgets.
void ParserShape::add(const State& state) {
  key_.insert(key_.end(),
              {state.rule_id, state.element_id, state.repeat_count,
               state.active_temperature_rule_id, number_of(state.rule_id, state.rule_start_pos)});
}

int32_t ParserShape::number_of(int32_t rule, int32_t row) {
  if (row == State::kNoPrevInputPos) return -1;
  const auto at = static_cast<size_t>(row);
  if (at >= newest_.size()) newest_.resize(std::max(at + 1, 2 * newest_.size()), -1);
  const auto size = static_cast<int32_t>(open_.size());
  int32_t newest = newest_[at];
  if (newest >= size || (newest >= 0 && open_[static_cast<size_t>(newest)].row != row)) newest = -1;
  for (int32_t i = newest; i >= 0; i = open_[static_cast<size_t>(i)].before) {
    if (open_[static_cast<size_t>(i)].rule == rule) return i;
  }
  open_.push_back({.rule = rule, .row = row, .before = newest});
  newest_[at] = size;
  return size;
}

std::string_view ParserShape::finish(const Waiting& waiting) {
  // open_ grows meanwhile.
  for (size_t i = 0; i < open_.size() && key_.size() <= kMaxWords; ++i) {
    key_.push_back(kEndOfList);
    const Open open = open_[i];
    for (const auto& [rule, state] : waiting[open.row]) {
      if (rule == open.rule) add(state);
    }
  }
  if (key_.size() > kMaxWords) return {};
  return {reinterpret_cast<const char*>(key_.data()), key_.size() * sizeof(int32_t)};
}

}  // namespace rudder::constraint
