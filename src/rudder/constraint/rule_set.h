// RuleSet: a context-free grammar under construction: nodes that stand for sets of texts, and named
// rules, which may be recursive. It finds nodes that no text can complete (a recursion without an
// end, a class without characters) and leaves them out, so that an output cannot run into them. One
// object for each translation, one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/char_set.h"
#include "rudder/constraint/fuel.h"
#include "rudder/constraint/terminal.h"

namespace rudder::constraint {

class RuleSet {
 public:
  using Node = int32_t;

  static constexpr int32_t kUnbounded = -1;

  // Nodes burn and hold fuel; once it is out, no more are made: who builds asks now and then, and
  // fails. It outlives this.
  explicit RuleSet(Fuel& fuel);

  Fuel& fuel() { return fuel_; }

  Node empty() const { return kEmpty; }      // the text of no characters
  Node nothing() const { return kNothing; }  // no text at all
  Node literal(std::string_view utf8);
  Node chars(const CharSet& set);  // one character of the set
  Node terminal(const Terminal& terminal);
  Node sequence(const std::vector<Node>& parts);
  Node choice(const std::vector<Node>& alternatives);
  Node repeat(Node part, int32_t min, int32_t max);  // max: kUnbounded or >= min
  Node optional(Node part) { return repeat(part, 0, 1); }

  // A rule may be referred to before it is defined.
  int32_t add_rule();
  void define(int32_t rule, Node body);
  Node rule(int32_t rule);
  // The node as a rule of its own, so that large shared parts are written once.
  Node share(Node body);

  // xgrammar's EBNF and descriptions of terminals in it, with `start` as the rule `root`.
  // kInvalidArgument when no text is in it, or when it is too large.
  Result<std::string> to_ebnf(Node start) const;

 private:
  enum class Kind : uint8_t {
    kEmpty,
    kNothing,
    kLiteral,
    kChars,
    kTerminal,
    kSequence,
    kChoice,
    kRule
  };
  struct Data {
    Kind kind = Kind::kEmpty;
    std::string text = {};         // kLiteral; kTerminal: its description
    CharSet set = {};              // kChars
    std::vector<Node> parts = {};  // kSequence, kChoice
    int32_t rule = 0;              // kRule
  };
  static constexpr Node kEmpty = 0;
  static constexpr Node kNothing = 1;

  Node push(Data data);
  Node repeat_in_chunks(Node part, int32_t min, int32_t max);
  // Which nodes stand for at least one text.
  std::vector<bool> productive() const;
  void print(Node node, const std::vector<bool>& productive, std::string& out) const;

  Fuel& fuel_;
  std::vector<Data> nodes_;
  std::vector<Node> rules_;  // bodies
};

}  // namespace rudder::constraint
