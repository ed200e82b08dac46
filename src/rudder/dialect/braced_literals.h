// Converts calls as Gemma writes them, call:name{key:value,...}, into JSON:
// keys are bare, and strings stand between two marks. What models write in
// their place is read too: no "call", quotes of JSON or Python, strings without
// any, no value, a bracket too few or too many. Internal to the room.
#pragma once

#include <string_view>
#include <vector>

#include "rudder/dialect/call_reader.h"
#include "rudder/dialect/loose_literals.h"

namespace rudder::dialect {

// The calls that the text consists of, one behind the other; none where it is
// something else. `is_cut`: the text may end inside the last call, and so do
// its arguments then. Of `sink` it is asked which names are tools' and
// arguments': without "call" only a tool's name begins a call.
std::vector<LooseCall> parse_braced_calls(std::string_view text, std::string_view quote,
                                          bool is_cut, const CallSink& sink);

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
  bool at_brace();
  // From the brace on, as JSON. False where the text ends before the arguments
  // do and was cut.
  bool take_arguments(std::string* out);
  // Blanks, and brackets and commas too many.
  bool at_end();

 private:
  void skip_blanks();
  bool at(std::string_view what) const { return text_.starts_with(what); }
  bool at_any(std::string_view bytes) const {
    return !text_.empty() && bytes.find(text_.front()) != std::string_view::npos;
  }
  bool take(std::string_view what);
  bool take_pairs(std::string* out);
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
};

}  // namespace internal

}  // namespace rudder::dialect
