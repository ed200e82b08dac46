// Grammar nodes for the texts of JSON values: strings, numbers, any value, and the whitespace
// between tokens. A value without constraint may have any spelling. A constrained one (a pattern, a
// key) has one spelling, that of json.dumps without ASCII escapes, so that two spellings of a value
// cannot differ in validity. Called by translations; one thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/constraint/grammar_spec.h"
#include "rudder/constraint/rule_set.h"

namespace rudder::constraint {

class JsonText {
 public:
  using Node = RuleSet::Node;

  JsonText(RuleSet& rules, JsonSpace space);

  // Whitespace: inside brackets, after a comma, after a colon, before a comma or colon.
  Node inside() const { return inside_; }
  Node comma() const { return comma_; }  // with what may be around it
  Node colon() const { return colon_; }

  Node value() { return value_; }    // any JSON value
  Node object() { return object_; }  // any JSON object
  Node array() { return array_; }
  Node string() { return string_; }
  Node string(int32_t min_length, int32_t max_length);  // in characters
  Node number() { return number_; }
  Node integer() { return integer_; }
  Node boolean();
  Node null();
  // This very value; objects in the order of their keys.
  Node constant(const boost::json::value& value);
  // The string, quoted, in its one spelling.
  Node quoted(std::string_view text);
  // A quoted string that is none of `excluded`, in its one spelling.
  Node string_other_than(const std::vector<std::string>& excluded);

 private:
  void define_values();

  RuleSet& rules_;
  Node inside_, comma_, colon_;
  Node value_ = 0, object_ = 0, array_ = 0, string_ = 0, number_ = 0, integer_ = 0;
};

// Characters that stand for themselves in no JSON string, and the letter behind the backslash that
// some have; '\\0': none.
const CharSet& must_escape();
char short_escape(uint32_t character);
// The text as written inside a JSON string, in its one spelling.
std::string json_spelling(std::string_view text);

// One character of the set as written inside a JSON string, in its one spelling.
RuleSet::Node json_char(RuleSet& rules, const CharSet& set);

}  // namespace rudder::constraint
