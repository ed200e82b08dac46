// Terminal: a text of simple form that a grammar has as one symbol: characters of one set with
// bounded length, or the matches of a regular expression. As rules, each of its characters would be
// a parser state with a mask of its own, computed beforehand or while the engine waits. A terminal
// is matched by an automaton and a count instead (terminal_tables.h). Every JSON string is a
// terminal. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/constraint/char_set.h"

namespace rudder::constraint {

struct Terminal {
  static constexpr int32_t kUnbounded = -1;

  CharSet set;          // of its characters
  std::string pattern;  // not empty: what matches it (whole_pattern()), in place of the set
  // A JSON string, quotes included. Otherwise the characters as they are, up to the text's end.
  bool quoted = true;
  // Of a quoted one: escapes may be used anywhere; otherwise where JSON needs them alone, as
  // json.dumps does.
  bool any_spelling = false;
  // In characters, of the string's value. One of a set that is not quoted has at least 1.
  int32_t min = 0;
  int32_t max = kUnbounded;
  std::vector<std::string> excluded;  // values that it has not; not with any_spelling

  bool operator==(const Terminal&) const = default;
};

// A grammar in text form names a terminal by its description between two noncharacters of Unicode,
// which are in no valid text, and in no need of escapes inside JSON.
std::string to_text(const Terminal& terminal);

// Replaces each description in `grammar` by `Token(first_id + n)`, n being the terminal's place in
// `terminals`, where equal ones are added once. What is between marks and is no description stays.
std::string take_terminals(std::string_view grammar, int32_t first_id,
                           std::vector<Terminal>* terminals);

}  // namespace rudder::constraint
