// TerminalParser: xgrammar's parser with terminals. A grammar has a terminal as an edge for a token
// that is no token; here it is a run of bytes of any length: it starts wherever such an edge may be
// taken, is counted byte by byte beside the parser's rows, and where it ends, the edge is taken
// from the row that it started in. All of the parser's ambiguity therefore holds for terminals too.
// Includes the library's own headers, so only xgrammar_engine.cpp may include it; its functions may
// throw what the library throws. One parser a choice; one thread at a time.
#pragma once

#include <cpp/compiled_grammar_impl.h>
#include <cpp/earley_parser.h>
#include <xgrammar/xgrammar.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rudder/constraint/mask_memo.h"
#include "rudder/constraint/parser_shape.h"
#include "rudder/constraint/terminal.h"
#include "rudder/constraint/terminal_tables.h"
#include "rudder/constraint/token_order.h"

namespace rudder::constraint {

// A compiled grammar and its terminals; immutable but for the memo of all grammars, shared by
// parsers.
struct TerminalGrammar {
  struct Use {
    std::shared_ptr<const TerminalTables> tables;
    ExcludedValues excluded;
    int32_t min = 0;  // that is to be counted: a pattern's bounds are in its tables
    int32_t max = TerminalTables::kNoLimit;
  };
  struct Edge {
    int32_t terminal = 0;
    int32_t target = 0;  // the state behind it
  };

  // Tokens from `first_id` on stand for the terminals. `number`: no other grammar of `memo` has it.
  TerminalGrammar(const xgrammar::CompiledGrammar& grammar, std::vector<Use> uses, int32_t first_id,
                  std::shared_ptr<const TokenOrder> token_order, std::shared_ptr<MaskMemo> memo,
                  uint64_t number);

  const std::vector<Edge>* edges(const xgrammar::ParserState& state) const {
    const auto found = by_state.find(key(state.rule_id, state.element_id));
    return found == by_state.end() ? nullptr : &found->second;
  }
  static uint64_t key(int32_t rule, int32_t state) {
    return uint64_t{static_cast<uint32_t>(rule)} << 32 | static_cast<uint32_t>(state);
  }

  const xgrammar::CompiledGrammar compiled;
  const std::shared_ptr<const TokenOrder> order;
  const std::shared_ptr<MaskMemo> masks;
  const uint64_t form;
  const std::vector<Use> terminals;
  std::unordered_map<uint64_t, std::vector<Edge>> by_state;
  std::vector<uint32_t> text_tokens;  // a mask: all but special tokens
  bool has_real_tokens = false;       // edges for tokens that are tokens
  bool has_budgets = false;           // rules with budgets, which this parser does not keep
};

class TerminalParser final : public xgrammar::EarleyParser {
 public:
  explicit TerminalParser(const TerminalGrammar& grammar);

  // Sets the bits of the tokens that may come next, but for stop tokens, in a mask without any.
  void fill(std::span<uint32_t> mask);
  bool may_end() const { return IsCompleted(); }
  // False, and no change, when the token may not come next.
  bool accept(int32_t token);

 private:
  // A terminal that has started and not ended.
  struct Active {
    int32_t terminal = 0;
    int32_t row = 0;  // that it started in
    int32_t chars = 0;
    int32_t excluded = ExcludedValues::kOff;
    TerminalDfa::State state = TerminalDfa::kOpening;
  };
  // What may stand behind the closing quote of a terminal.
  struct Continuation {
    int32_t terminal = 0;
    int32_t row = 0;
    std::vector<uint32_t> allowed;  // a mask by place in TokenOrder::after_quotes()
  };

  void begin_row();
  void end_row();
  void pop_rows(int32_t count);
  bool advance(uint8_t byte);
  void step(const Active& active, uint8_t byte);
  // Calls `take` for each state of the rules behind the terminal.
  template <typename Take>
  void for_each_behind(const Active& active, const Take& take) const;
  void take_edges(const Active& active);
  bool accept_special(int32_t token, std::string_view bytes);

  // Calls `work` on a mask without bits, or adds what it set at a place of the same shape: that of
  // shape_, which has all that `work` depends on.
  template <typename Work>
  void remember(std::span<uint32_t> mask, const Work& work);

  void fill_rules(std::span<uint32_t> mask);
  void fill_from_states(const std::vector<xgrammar::ParserState>& states, std::span<uint32_t> mask);
  void fill_uncertain(const xgrammar::ParserState& state, std::span<uint32_t> mask);
  void fill_inside(const Active& active, std::span<uint32_t> mask);
  void fill_closing(const Active& active, int32_t room,
                    const std::vector<TerminalTables::Closing>& list, std::span<uint32_t> mask);
  void fill_crossing(const std::vector<xgrammar::ParserState>& states, std::span<uint32_t> mask);
  const std::vector<uint32_t>& continuation(const Active& active);
  bool closes(const Active& active, std::string_view token) const;
  // Calls `accepted(i)` for each i below `count` that is wanted(i) and whose bytes(i), in order, go
  // on from the last row.
  template <typename Bytes, typename Wanted, typename Accepted>
  void walk(size_t count, const Bytes& bytes, const Wanted& wanted, const Accepted& accepted);

  const TerminalGrammar& grammar_with_terminals_;
  const std::vector<std::string>& token_bytes_;
  const std::vector<std::pair<int32_t, std::string>>& sorted_;
  xgrammar::Compact2DArray<Active> active_;  // by row
  std::vector<Active> next_active_;
  std::vector<Continuation> continuations_;  // of terminals that were active lately
  std::vector<uint32_t> scratch_;
  ParserShape shape_;
  uint64_t bytes_tried_ = 0;  // by walk(), ever
};

}  // namespace rudder::constraint
