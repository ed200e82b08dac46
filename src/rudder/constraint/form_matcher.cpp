#include "rudder/constraint/form_matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rudder/base/token_mask.h"

namespace rudder::constraint {
namespace {

using Open = EarleyParser::Open;

constexpr size_t kContinuations = 8;
// What keys of the memo ask for: tokens that go on; endings behind a quote that do.
constexpr int32_t kTokens = 0;
constexpr int32_t kEndings = 1;
// A walk over fewer bytes costs no more than finding what it found.
constexpr uint64_t kWorthKeeping = 32;
// Nodes of a trie that is worth a mask to start from.
constexpr size_t kWorthBase = 1000;
// An ambiguous grammar ("(x+x+)+y") makes each token dearer than the one before, and the engine
// waits for it. Steps of the parser, some 20 ns each: those that a token may take, and those that a
// choice may take beyond them in all (two seconds).
constexpr uint64_t kQuickSteps = 250'000;
constexpr uint64_t kMaxDearSteps = 100'000'000;
constexpr uint64_t kMaxStartSteps = 4'000'000;  // to find whether there is a first token

}  // namespace

FormMatcher::FormMatcher(const Form& form)
    : form_(form),
      vocabulary_(*form.vocabulary),
      parser_(form.grammar),
      shape_(form.grammar, vocabulary_.order->trie().longest()),
      walk_(form.grammar, vocabulary_.order->trie().longest()),
      mask_(vocabulary_.words()),
      max_dear_steps_(kMaxDearSteps) {
  for (const ParserGrammar::Terminal& one : form.grammar.terminals) {
    if (!one.unique) continue;
    if (!unique_) unique_.emplace();
    has_unique_numbers_ = has_unique_numbers_ || !one.quoted;
    may_have_to_end_ = may_have_to_end_ || (one.quoted && one.may_have_to_end());
  }
}

Result<void> FormMatcher::charge(uint64_t first_step) {
  constexpr uint64_t kLookedAtInStep = 2;
  const uint64_t taken =
      parser_.steps() - first_step + std::exchange(looked_at_, 0) / kLookedAtInStep;
  bool is_too_dear = dear_steps_ > max_dear_steps_;
  if (taken > kQuickSteps) {
    dear_steps_ += taken - kQuickSteps;
    if (!trials_.empty()) tried_dear_steps_ += taken - kQuickSteps;
    is_too_dear = std::max(dear_steps_, tried_dear_steps_) > max_dear_steps_;
    is_dear_ = true;
  }
  if (!is_too_dear && !parser_.overflowed()) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the grammar is too ambiguous: the states that the output may be in grow "
              "without bound");
}

Result<void> FormMatcher::restrict(std::span<uint32_t> words) {
  RUDDER_TRY_VOID(fill());
  if (unique_) forbid_equal();
  // A grammar may ask for bytes that no token spells: the choice can only stop there.
  const bool may_end = parser_.accepting() || is_mask_empty(mask_);
  if (may_end) {
    for (const int32_t id : vocabulary_.stop_ids) set_in_mask(mask_, id);
  }
  const size_t count = std::min(words.size(), mask_.size());
  for (size_t i = 0; i < count; ++i) words[i] &= mask_[i];
  std::fill(words.begin() + static_cast<std::ptrdiff_t>(count), words.end(), 0u);
  return {};
}

void FormMatcher::forbid_equal() {
  unique_->forbid(parser_, form_.grammar, vocabulary_.order->trie(), mask_);
  const auto try_each = [&](const std::vector<int32_t>& ids) {
    unique_->forbid(parser_, form_.grammar, ids, vocabulary_.token_bytes, mask_);
  };
  try_each(vocabulary_.quoted);
  if (may_have_to_end_) try_each(vocabulary_.opening);
  if (!has_unique_numbers_) return;
  try_each(vocabulary_.quoted_numbers);
  // No number begins inside of a string.
  const bool in_string =
      parser_.items().empty() && std::ranges::all_of(parser_.open(), [&](const Open& open) {
        return form_.grammar.terminal(open.symbol).quoted && open.state != TerminalDfa::kOpening;
      });
  if (!in_string) try_each(vocabulary_.numbers);
}

Result<void> FormMatcher::advance(int32_t token) {
  const uint64_t first_step = parser_.steps();
  const bool known = token >= 0 && std::cmp_less(token, vocabulary_.token_bytes.size());
  const bool accepted =
      known && parser_.accept(token, vocabulary_.token_bytes[static_cast<size_t>(token)]);
  RUDDER_TRY_VOID(charge(first_step));
  if (accepted && unique_) {
    unique_->note(vocabulary_.token_bytes[static_cast<size_t>(token)], parser_.num_rows());
  }
  if (accepted) return {};
  return fail(ErrorCode::kInternal,
              fmt::format("a grammar refused token {}, which its mask had allowed", token));
}

void FormMatcher::begin_trial() {
  trials_.push_back({parser_.checkpoint(), dear_steps_});
}

// What is known of terminals that began in a row of the trial is not known of the next such row.
void FormMatcher::end_trial() {
  const Trial before = trials_.back();
  trials_.pop_back();
  parser_.return_to(before.parser);
  if (unique_) unique_->return_to(parser_.num_rows());
  dear_steps_ = before.dear_steps;
  if (trials_.empty()) tried_dear_steps_ = 0;
  std::erase_if(continuations_,
                [&](const Continuation& known) { return known.row >= before.parser.num_rows; });
}

Result<bool> FormMatcher::can_start(Fuel& fuel) {
  constexpr int64_t kWorkOfStep = 2;
  max_dear_steps_ = kMaxStartSteps;
  const Result<void> filled = fill();
  const auto steps = static_cast<int64_t>(parser_.steps() + dear_steps_);
  RUDDER_TRY_VOID(filled);
  if (!fuel.burn(kWorkOfStep * steps)) {
    return tl::unexpected(fuel.error());
  }
  return parser_.accepting() || !is_mask_empty(mask_);
}

Result<void> FormMatcher::fill() {
  std::fill(mask_.begin(), mask_.end(), 0u);
  const uint64_t first_step = parser_.steps();
  fill_rules();
  fill_tokens();
  // By value: the parser adds rows and takes them back meanwhile.
  const std::vector<Open> open(parser_.open().begin(), parser_.open().end());
  for (const Open& one : open) {
    if (looked_at_ / 2 > max_dear_steps_) break;  // charge() says so
    fill_inside(one);
  }
  return charge(first_step);
}

bool FormMatcher::goes_on_behind(const Open& open) {
  if (form_.grammar.terminal(open.symbol).tables->dfa().start() == TerminalDfa::kOpening) {
    return false;  // tokens past the quote are in the tables
  }
  parser_.push_behind(open);
  const bool goes_on = !parser_.items().empty() || !parser_.open().empty();
  parser_.pop_rows(1);
  return goes_on;
}

void FormMatcher::walk(const TokenTrie& trie, std::string_view key, std::span<uint32_t> mask) {
  const bool is_large = trie.nodes().size() >= kWorthBase;
  const auto num_words = key.empty() ? std::nullopt : form_.memo->add_to(mask, key);
  if (num_words) {
    if (is_large && 2 * *num_words > mask.size()) walk_.keep_base(parser_, trie, mask);
    return;
  }
  const std::string kept(key);  // the walk makes keys of its own
  const uint64_t tried = walk_.run(parser_, trie, mask, max_dear_steps_);
  if (!kept.empty() && tried >= kWorthKeeping && !parser_.overflowed()) {
    form_.memo->keep(mask, kept);
  }
}

// Tokens that begin with bytes of the rules, or leave a terminal without quotes.
void FormMatcher::fill_rules() {
  std::vector<Open> crossed(parser_.open().begin(), parser_.open().end());
  std::erase_if(crossed, [&](const Open& one) { return !goes_on_behind(one); });
  const bool by_bytes = std::any_of(
      parser_.items().begin(), parser_.items().end(),
      [&](const auto& item) { return !form_.grammar.rules.bytes_of(item.state).empty(); });
  if (!by_bytes && crossed.empty()) return;
  shape_.begin(form_.number, kTokens);
  for (const EarleyParser::Item& item : parser_.items()) shape_.add(item);
  for (const Open& one : crossed) shape_.add(one);
  const std::string_view key = shape_.finish(parser_);
  parser_.push_part([&](const Open& one) {
    return std::any_of(crossed.begin(), crossed.end(), [&](const Open& other) {
      return one.symbol == other.symbol && one.row == other.row && one.state == other.state;
    });
  });
  walk(vocabulary_.order->trie(), key, mask_);
  parser_.pop_rows(1);
}

void FormMatcher::fill_tokens() {
  for (const EarleyParser::Item& item : parser_.items()) {
    for (const Grammar::TokenEdge& edge : form_.grammar.rules.tokens_of(item.state)) {
      const TokenSet& set = form_.grammar.rules.token_sets[static_cast<size_t>(edge.set)];
      if (!set.others) {
        for (const int32_t id : set.ids) {
          if (id >= 0 && id < vocabulary_.size) set_in_mask(mask_, id);
        }
        continue;
      }
      for (size_t word = 0; word < mask_.size(); ++word) {
        uint32_t bits = vocabulary_.all[word];
        for (const int32_t id : set.ids) {
          if (id >= 0 && static_cast<size_t>(id) / 32 == word) bits &= ~(uint32_t{1} << (id % 32));
        }
        mask_[word] |= bits;
      }
    }
  }
}

void FormMatcher::fill_inside(const Open& open) {
  const ParserGrammar::Terminal& terminal = form_.grammar.terminal(open.symbol);
  const bool limited = terminal.max != TerminalTables::kNoLimit;
  const int32_t room = limited ? terminal.max - open.chars : TerminalTables::kNoLimit;
  const TerminalTables::View view = terminal.tables->tokens(open.state, looked_at_);
  for (const TerminalTables::Tokens* tokens : {view.near.get(), view.far.get()}) {
    if (tokens == nullptr) continue;
    tokens->allow_inside(room, mask_);
    fill_closing(open, room, tokens->closing());
  }
}

void FormMatcher::fill_closing(const Open& open, int32_t room,
                               const std::vector<TerminalTables::Closing>& list) {
  const ParserGrammar::Terminal& terminal = form_.grammar.terminal(open.symbol);
  const bool may_be_excluded =
      open.excluded != ExcludedValues::kOff || open.state == TerminalDfa::kOpening;
  const std::vector<uint32_t>* allowed = nullptr;
  for (const TerminalTables::Closing& closing : list) {
    if (closing.chars > room) break;
    if (open.chars + closing.chars < terminal.min) continue;
    if (allowed == nullptr) allowed = &continuation(open);
    if (!is_in_mask(*allowed, closing.after)) continue;
    if (may_be_excluded &&
        !closes(open, vocabulary_.token_bytes[static_cast<size_t>(closing.token)])) {
      continue;
    }
    set_in_mask(mask_, closing.token);
  }
}

// Whether the string that the token closes is none of the excluded ones.
bool FormMatcher::closes(const Open& open, std::string_view token) const {
  const ParserGrammar::Terminal& terminal = form_.grammar.terminal(open.symbol);
  TerminalDfa::State state = open.state;
  int32_t excluded = open.excluded;
  for (const char c : token) {
    const auto byte = static_cast<uint8_t>(c);
    const TerminalDfa::State to = terminal.tables->dfa().next(state, byte);
    if (to == TerminalDfa::kClosed) return !terminal.excluded.is_value(excluded);
    excluded = state == TerminalDfa::kOpening ? terminal.excluded.start()
                                              : terminal.excluded.next(excluded, byte);
    state = to;
  }
  return false;
}

const std::vector<uint32_t>& FormMatcher::continuation(const Open& open) {
  for (const Continuation& known : continuations_) {
    if (known.symbol == open.symbol && known.row == open.row) return known.allowed;
  }
  if (continuations_.size() == kContinuations) continuations_.erase(continuations_.begin());
  const TokenOrder& order = *vocabulary_.order;
  std::vector<uint32_t> allowed(mask_words(order.num_after_quotes()));
  set_in_mask(allowed, order.after_quote(""));  // where a string may end, it may just end
  shape_.begin(form_.number, kEndings);
  shape_.add_behind(open);
  const std::string_view key = shape_.finish(parser_);
  parser_.push_behind(open);
  walk(order.after_quotes(), key, allowed);
  parser_.pop_rows(1);
  continuations_.push_back({.symbol = open.symbol, .row = open.row, .allowed = std::move(allowed)});
  return continuations_.back().allowed;
}

}  // namespace rudder::constraint
