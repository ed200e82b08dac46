// Terminal: a text of simple form that a grammar has as one symbol: characters of one set with
// bounded length, or the matches of a regular expression. As rules, each of its characters would be
// a parser state with a mask of its own, computed beforehand or while the engine waits. A terminal
// is matched by an automaton and a count instead (terminal_tables.h). Every JSON string is a
// terminal. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/constraint/char_set.h"

namespace rudder::constraint {

struct ByteAutomaton;

struct Terminal {
  static constexpr int32_t kUnbounded = -1;

  CharSet set;          // of its characters
  std::string pattern;  // not empty: what matches it (whole_pattern()), in place of the set
  // Of one with a pattern: what matches it besides, and what must not (string_form.h).
  std::vector<std::string> also = {};
  std::vector<std::string> never = {};
  // A JSON string, quotes included. Otherwise the characters as they are, up to the text's end.
  bool quoted = true;
  // Of a quoted one: escapes may be used anywhere; otherwise where JSON needs them alone, as
  // json.dumps does.
  bool any_spelling = false;
  // Of one in one spelling, with a pattern or quoted: those of a list differ (unique_texts.h).
  bool unique = false;
  bool is_key = false;  // of a unique one: those of an object differ
  // In characters, of the string's value. One of a set that is not quoted has at least 1.
  int32_t min = 0;
  int32_t max = kUnbounded;
  std::vector<std::string> excluded;  // values that it has not; not with any_spelling

  // Of the pattern, where it was made already; says nothing more.
  std::shared_ptr<const ByteAutomaton> automaton = nullptr;
};

// A grammar in text form names a terminal by its description between two noncharacters of Unicode,
// which are in no valid text, and in no need of escapes inside JSON.
std::string to_text(const Terminal& terminal);

// Bytes of the description that `text` begins with, marks included; 0 when it begins with none.
size_t description_length(std::string_view text);
// What to_text() wrote; nothing where it did not.
std::optional<Terminal> read_description(std::string_view text);

}  // namespace rudder::constraint
