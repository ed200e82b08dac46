// RuleSet: a context-free grammar under construction: nodes that stand for sets of texts, and named
// rules, which may be recursive. It finds nodes that no text can complete (a recursion without an
// end, a class without characters) and leaves them out, so that an output cannot run into them. One
// object for each translation, one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/constraint/char_set.h"
#include "rudder/constraint/fuel.h"
#include "rudder/constraint/terminal.h"

namespace rudder::constraint {

// Tokens by their ids: those of the list, or all but those.
struct TokenSet {
  std::vector<int32_t> ids;  // in order
  bool others = false;

  bool contains(int32_t id) const {
    return std::binary_search(ids.begin(), ids.end(), id) != others;
  }
};

// Free text in which certain strings are followed by certain nodes.
struct Dispatch {
  struct Case {
    std::string text;  // not empty
    int32_t node = 0;  // what follows it
  };
  std::vector<Case> cases;
  std::vector<std::string> excluded;  // that the free text has not
  bool loop = true;                   // free text goes on behind a case
};

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
  Node tokens(TokenSet tokens);  // one of them, whatever its bytes
  Node dispatch(Dispatch dispatch);
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

  // EBNF (ebnf_parser.h) and descriptions of terminals in it, with `start` as the rule `root`.
  // kInvalidArgument when no text is in it, or when it is too large.
  Result<std::string> to_ebnf(Node start) const;

  // What nodes are made of, for those who compile them.
  enum class Kind : uint8_t {
    kEmpty,
    kNothing,
    kLiteral,
    kChars,
    kTerminal,
    kTokens,
    kSequence,
    kChoice,
    kRepeat,
    kDispatch,
    kRule
  };
  struct Data {
    Kind kind = Kind::kEmpty;
    std::string text = {};         // kLiteral; kTerminal: its description
    CharSet set = {};              // kChars
    std::vector<Node> parts = {};  // kSequence, kChoice, kRepeat (one)
    int32_t index = 0;             // kRule, kTerminal, kTokens, kDispatch
    int32_t min = 0;               // kRepeat
    int32_t max = 0;
  };
  const Data& data(Node node) const { return nodes_[static_cast<size_t>(node)]; }
  Node body(int32_t rule) const { return rules_[static_cast<size_t>(rule)]; }
  const Terminal& terminal_of(int32_t index) const {
    return terminals_[static_cast<size_t>(index)];
  }
  // Not there any more afterwards.
  Terminal take_terminal(int32_t index) {
    return std::move(terminals_[static_cast<size_t>(index)]);
  }
  const TokenSet& tokens(int32_t index) const { return tokens_[static_cast<size_t>(index)]; }
  const Dispatch& dispatch_of(int32_t index) const {
    return dispatches_[static_cast<size_t>(index)];
  }
  // From here on the rules accept less than was asked for at `where`, all of which no grammar says,
  // or of which they write no text (`why`).
  static constexpr const char* kPartAlone =
      "is not supported here: of what it refuses, a grammar can say a part alone, and "
      "nothing valid is left beside it";
  static constexpr const char* kTooManyDigits =
      "is not supported here: what may be valid has more digits than numbers are written with";
  void narrow(std::string where, const char* why = kPartAlone) {
    if (!narrowed_) narrowed_ = Error{ErrorCode::kInvalidArgument, why, std::move(where)};
  }
  // Why rules without any text are refused. kInvalidArgument.
  tl::unexpected<Error> nothing_valid() const;

  // Which nodes stand for at least one text.
  std::vector<bool> productive() const;

 private:
  static constexpr Node kEmpty = 0;
  static constexpr Node kNothing = 1;

  // The same data is the same node.
  Node push(Data data);
  Node* known(const Data& data);
  void print(Node node, const std::vector<bool>& productive, std::string& out) const;

  Fuel& fuel_;
  std::deque<Data> nodes_;                  // which never needs twice their memory while it grows
  std::vector<Node> rules_;                 // bodies
  std::unordered_map<size_t, Node> known_;  // by the hash of their data
  std::unordered_map<Node, Node> shared_;   // the rule of a body
  std::vector<Terminal> terminals_;
  std::vector<TokenSet> tokens_;
  std::vector<Dispatch> dispatches_;
  std::optional<Error> narrowed_;  // first
};

}  // namespace rudder::constraint
