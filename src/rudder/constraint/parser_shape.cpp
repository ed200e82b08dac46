#include "rudder/constraint/parser_shape.h"

#include <algorithm>

namespace rudder::constraint {
namespace {

constexpr size_t kMaxWords = 4096;
// Apart from all numbers of states and symbols.
constexpr int32_t kEndOfList = -2;
constexpr int32_t kOpenTerminal = -3;
constexpr int32_t kFarBelow = -4;
constexpr int32_t kBetween = -5;

}  // namespace

void ParserShape::begin(uint64_t form, int32_t question) {
  begun_.clear();
  key_.assign({static_cast<int32_t>(form), static_cast<int32_t>(form >> 32), question});
}

int32_t ParserShape::count_key(int32_t count, int32_t min, int32_t max) const {
  if (count < min) return min - count > longest_ ? kFarBelow : count;
  return max < 0 || max - count > longest_ ? kBetween : count;
}

void ParserShape::add(const EarleyParser::Item& item) {
  if (key_.size() > kMaxWords) return;  // there will be no key
  if (item.state == EarleyParser::kDone) {
    key_.push_back(EarleyParser::kDone);
    return;
  }
  const int32_t symbol = grammar_.rules.state(item.state).rule;
  const Grammar::Rule& rule = grammar_.rules.rule(symbol);
  key_.push_back(item.state);
  if (rule.part >= 0) key_.push_back(count_key(item.count, rule.min, rule.max));
  key_.push_back(number_of(symbol, item.origin));
}

void ParserShape::add(const EarleyParser::Open& open) {
  if (key_.size() > kMaxWords) return;
  const ParserGrammar::Terminal& terminal = grammar_.terminal(open.symbol);
  const int32_t max = terminal.max == TerminalTables::kNoLimit ? -1 : terminal.max;
  key_.insert(key_.end(),
              {kOpenTerminal, open.symbol, open.state, open.excluded,
               count_key(open.chars, terminal.min, max), number_of(open.symbol, open.row)});
}

int32_t ParserShape::number_of(int32_t symbol, int32_t row) {
  if (row == EarleyParser::kWhole) return -1;
  const auto at = static_cast<size_t>(row);
  if (at >= newest_.size()) newest_.resize(std::max(at + 1, 2 * newest_.size()), -1);
  const auto size = static_cast<int32_t>(begun_.size());
  int32_t newest = newest_[at];
  if (newest >= size || (newest >= 0 && begun_[static_cast<size_t>(newest)].row != row))
    newest = -1;
  for (int32_t i = newest; i >= 0; i = begun_[static_cast<size_t>(i)].before) {
    if (begun_[static_cast<size_t>(i)].symbol == symbol) return i;
  }
  begun_.push_back({.symbol = symbol, .row = row, .before = newest});
  newest_[at] = size;
  return size;
}

std::string_view ParserShape::finish(const EarleyParser& parser) {
  // begun_ grows meanwhile.
  for (size_t i = 0; i < begun_.size() && key_.size() <= kMaxWords; ++i) {
    key_.push_back(kEndOfList);
    const Begun begun = begun_[i];
    for (const EarleyParser::Waiting& one : parser.waiting(begun.row, begun.symbol)) add(one.item);
  }
  if (key_.size() > kMaxWords) return {};
  return {reinterpret_cast<const char*>(key_.data()), key_.size() * sizeof(int32_t)};
}

}  // namespace rudder::constraint
