// ParserShape: the states of a parser as a key, so that places where the same may follow are known
// by equal keys. What may follow a state is decided by where it is in its rule and, when that rule
// ends, by the states that wait for it in the row that it started in; of these by the same again.
// The key is that graph, its nodes numbered in the order of their first visit: it has no numbers of
// rows in it, and nothing of the text before. Equal keys have equal masks; equal masks may have
// different keys.
// Includes the library's own headers. One a parser; one thread at a time.
#pragma once

#include <cpp/earley_parser.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace rudder::constraint {

class ParserShape {
 public:
  using State = xgrammar::ParserState;
  // By row: rules that were begun there, and the states that go on when they end.
  using Waiting = xgrammar::Compact2DArray<std::pair<int32_t, State>>;

  // Begins a key; those of different forms and questions differ.
  void begin(uint64_t form, int32_t question);
  // Of a grammar without budgets. The order of states is part of the key.
  void add(const State& state);
  // The key, until the next one is begun; empty when it would be longer than is worth it. Takes
  // time by the number of places that are open: rules that have begun and not ended.
  std::string_view finish(const Waiting& waiting);

 private:
  // A rule in the row that it began in.
  struct Open {
    int32_t rule = 0;
    int32_t row = 0;
    int32_t before = -1;  // the one before it in the same row
  };

  int32_t number_of(int32_t rule, int32_t row);

  std::vector<int32_t> key_;
  std::vector<Open> open_;
  // By row, the number of its newest in open_. What was left by another key is known by the row.
  std::vector<int32_t> newest_;
};

}  // namespace rudder::constraint
