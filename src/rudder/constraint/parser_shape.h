// ParserShape: a row of a parser as a key. Rows after which the same bytes may follow have equal
// keys. What may follow an item depends on its position in its rule and, when the rule ends, on the
// items that wait for the rule in the row where it began; the same holds for these items. The key
// is this graph, with its nodes numbered in the order of their first visit. So it contains no row
// numbers and nothing of the text before. It contains counts of rounds and characters as far as the
// bytes of one token can reach a bound. Equal keys have equal masks; equal masks may have different
// keys. FormMatcher has one for each parser; one thread at a time.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/constraint/earley_parser.h"

namespace rudder::constraint {

class ParserShape {
 public:
  // Keys hold for texts of up to `longest` bytes.
  ParserShape(const ParserGrammar& grammar, size_t longest)
      : grammar_(grammar), longest_(static_cast<int32_t>(longest)) {}

  // Begins a key; those of different forms and questions differ.
  void begin(uint64_t form, int32_t question);
  // The order of what is added is part of the key.
  void add(const EarleyParser::Item& item);
  void add(const EarleyParser::Open& open);
  // What follows when the terminal ends here.
  void add_behind(const EarleyParser::Open& open) {
    key_.push_back(number_of(open.symbol, open.row));
  }
  // The key, until the next one is begun; empty when it would be longer than is worth it. Takes
  // time by the number of symbols that are open.
  std::string_view finish(const EarleyParser& parser);

 private:
  // A symbol in the row that it began in.
  struct Begun {
    int32_t symbol = 0;
    int32_t row = 0;
    int32_t before = -1;  // the one before it in the same row
  };

  int32_t number_of(int32_t symbol, int32_t row);
  // `count`, or what stands for all counts that a token cannot take to a bound.
  int32_t count_key(int32_t count, int32_t min, int32_t max) const;

  const ParserGrammar& grammar_;
  const int32_t longest_;
  std::vector<int32_t> key_;
  std::vector<Begun> begun_;
  // By row, the number of its newest in begun_. What was left by another key is known by the row.
  std::vector<int32_t> newest_;
};

}  // namespace rudder::constraint
