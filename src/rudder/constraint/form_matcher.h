// FormMatcher: the state of one choice in a form (constraint.h). It writes the mask of the tokens
// that may come next. The engine owns it and calls it on the engine thread or a helper, one call at
// a time. It puts a mask together from three parts:
//   - tokens that stay within an open terminal, or close it: from the terminal's tables;
//   - tokens whose bytes the rules decide: by a walk over the vocabulary, or from the memo, which
//     has the results of earlier walks from equal states;
//   - tokens that the grammar names by their ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/constraint/constraint.h"
#include "rudder/constraint/earley_parser.h"
#include "rudder/constraint/mask_memo.h"
#include "rudder/constraint/mask_walk.h"
#include "rudder/constraint/parser_shape.h"
#include "rudder/constraint/token_order.h"
#include "rudder/constraint/unique_texts.h"

namespace rudder::constraint {

// A vocabulary as masks need it. Immutable, shared by all forms.
struct FormVocabulary {
  std::vector<std::string> token_bytes;
  int32_t size = 0;
  std::vector<int32_t> stop_ids;
  std::vector<uint32_t> all;  // a mask: tokens that have bytes, special ones too
  std::shared_ptr<const TokenOrder> order;
  std::vector<int32_t> quoted;   // tokens with two quotes or more
  std::vector<int32_t> opening;  // tokens with one quote and more behind it
  // Tokens with a number and something else in them: without quotes, and with some.
  std::vector<int32_t> numbers;
  std::vector<int32_t> quoted_numbers;

  size_t words() const { return all.size(); }
};

// A compiled form; immutable but for the memo of all forms.
struct Form {
  ParserGrammar grammar;
  std::shared_ptr<const FormVocabulary> vocabulary;
  std::shared_ptr<MaskMemo> memo;
  uint64_t number = 0;  // no other form of `memo` has it
};

class FormMatcher final : public Matcher {
 public:
  explicit FormMatcher(const Form& form);

  Result<void> restrict(std::span<uint32_t> words) override;
  Result<void> advance(int32_t token) override;
  void begin_trial() override;
  void end_trial() override;
  bool is_dear() const override { return is_dear_; }
  // Whether any token may come first, or the output may be empty. Burns fuel for what it takes, and
  // may take less than a choice.
  Result<bool> can_start(Fuel& fuel);
  // What it has taken so far, in steps of the parser.
  uint64_t steps() const { return parser_.steps() + dear_steps_; }
  // From now on masks and tokens may take so many dear steps, fewer than those of a choice.
  void bound_dear_steps(uint64_t steps) {
    max_dear_steps_ = std::min(max_dear_steps_, dear_steps_ + steps);
  }

 private:
  // What may stand behind the closing quote of a terminal.
  struct Continuation {
    int32_t symbol = 0;
    int32_t row = 0;
    std::vector<uint32_t> allowed;  // a mask by index in TokenOrder::after_quotes()
  };

  Result<void> fill();
  // Clears bits of the mask: of tokens behind which texts that have to differ would not.
  void forbid_equal();
  // An Error when masks and steps have become too dear.
  Result<void> charge(uint64_t first_step);
  // A terminal without quotes has text of other rules behind it.
  bool goes_on_behind(const EarleyParser::Open& open);
  void fill_rules();
  void fill_tokens();
  void fill_inside(const EarleyParser::Open& open);
  void fill_closing(const EarleyParser::Open& open, int32_t room,
                    const std::vector<TerminalTables::Closing>& list);
  bool closes(const EarleyParser::Open& open, std::string_view token) const;
  const std::vector<uint32_t>& continuation(const EarleyParser::Open& open);
  // Sets the bits of the texts that go on from the parser's last row, by the memo under `key` or
  // by a walk.
  void walk(const TokenTrie& trie, std::string_view key, std::span<uint32_t> mask);

  const Form& form_;
  const FormVocabulary& vocabulary_;
  EarleyParser parser_;
  ParserShape shape_;
  MaskWalk walk_;
  std::optional<UniqueTexts> unique_;  // where the grammar has such texts
  bool has_unique_numbers_ = false;
  bool may_have_to_end_ = false;  // a string of them
  std::vector<uint32_t> mask_;
  std::vector<Continuation> continuations_;  // of terminals that were open lately
  uint64_t dear_steps_ = 0;
  struct Trial {  // at its begin
    EarleyParser::Checkpoint parser;
    uint64_t dear_steps = 0;
  };
  std::vector<Trial> trials_;
  // What a trial took with those within it, for dear ones have one purse: however many branches a
  // tree has, the time for it is bounded as that for one of them.
  uint64_t tried_dear_steps_ = 0;
  bool is_dear_ = false;
  uint64_t looked_at_ = 0;  // in tables, since the last charge
  uint64_t max_dear_steps_;
};

}  // namespace rudder::constraint
