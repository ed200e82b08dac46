// Converts calls as Gemma writes them, call:name{key:value,...}, into JSON:
// keys are bare, and strings stand between two marks. What models write in
// their place is read too: no "call", or in other case, parentheses for braces,
// quotes of JSON or Python, strings without any, no value, a bracket too few or
// too many. Internal to the room.
#pragma once

#include <string_view>
#include <vector>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/loose_literals.h"

namespace rudder::dialect {

// In front of each call; models write it in other case too.
inline constexpr std::string_view kCallMark = "call:";
bool begins_call_mark(std::string_view text);  // as far as `text` goes
bool is_call_mark(std::string_view text);

struct BracedCalls {
  std::vector<LooseCall> calls = {};
  std::string_view behind = {};  // the last of them: of the text, what is no call
};

// The calls that the text begins with, one behind the other. `is_cut`: the text
// may end inside the last call, and so do its arguments then. Of `sink` it is
// asked which names are tools' and arguments': without "call" only a tool's
// name begins a call.
BracedCalls parse_braced_calls(std::string_view text, std::string_view quote, bool is_cut,
                               const CallSink& sink);

namespace internal {

// Reads down a text.
class BracedParser {
 public:
  // Of `sink` it is asked which arguments tools have.
  BracedParser(std::string_view text, std::string_view quote, bool is_cut, const CallSink& sink)
      : text_(text), quote_(quote), is_cut_(is_cut), sink_(sink) {}

  // The name of the call that comes next; empty where none does. `is_marked`:
  // "call:" is before it.
  std::string take_name(bool* is_marked);
  // Whether arguments come next, behind a colon too many or none: in braces, or
  // as Python has them in parentheses.
  bool at_arguments();
  // From their bracket on, as JSON. False where the text ends before the arguments
  // do and was cut.
  bool take_arguments(std::string* out);
  // Blanks, and brackets and commas too many.
  bool at_end();
  // What is not taken yet.
  std::string_view rest() const { return text_; }

 private:
  void skip_blanks();
  bool at(std::string_view what) const { return text_.starts_with(what); }
  bool at_any(std::string_view bytes) const {
    return !text_.empty() && bytes.find(text_.front()) != std::string_view::npos;
  }
  bool take(std::string_view what);
  bool take_pairs(std::string* out);
  bool closes(char byte) const {
    return byte == '}' || (byte == ')' && in_parentheses_ && depth_ == 0);
  }
  bool begins_arguments() const;
  bool take_items(std::string* out);
  bool take_value(std::string* out, bool in_list);
  bool take_string(std::string_view end, std::string* out);
  void take_bare(std::string* out, bool in_list);
  bool begins_pair(std::string_view text) const;
  bool begins_pair_behind(size_t length) const;
  size_t loose_key_length(std::string_view text) const;
  bool lacks_colon(size_t name, size_t loose) const;
  std::string take_any_key();
  std::string take_key();

  std::string_view text_;
  const std::string_view quote_;
  const bool is_cut_;
  const CallSink& sink_;
  std::string tool_;  // of the call at hand
  int depth_ = 0;
  bool in_parentheses_ = false;  // the arguments stand in them
};

}  // namespace internal

}  // namespace rudder::dialect
