#include "rudder/constraint/terminal_parser.h"

#include <algorithm>
#include <bitset>
#include <string>
#include <unordered_set>
#include <utility>

#include "rudder/base/token_mask.h"

namespace rudder::constraint {
namespace {

using xgrammar::AdaptiveTokenMask;
using xgrammar::ParserState;

constexpr size_t kContinuations = 8;
// What ParserShape's keys ask for: tokens that the states allow; endings that they go on with.
constexpr int32_t kTokens = 0;
constexpr int32_t kEndings = 1;
// A walk over fewer bytes costs no more than finding what it found.
constexpr uint64_t kWorthKeeping = 32;

}  // namespace

TerminalGrammar::TerminalGrammar(const xgrammar::CompiledGrammar& grammar, std::vector<Use> uses,
                                 int32_t first_id, std::shared_ptr<const TokenOrder> token_order,
                                 std::shared_ptr<MaskMemo> memo, uint64_t number)
    : compiled(grammar),
      order(std::move(token_order)),
      masks(std::move(memo)),
      form(number),
      terminals(std::move(uses)) {
  const xgrammar::TokenizerInfo info = compiled.GetTokenizerInfo();
  const size_t words = mask_words(info.GetVocabSize());
  text_tokens.resize(words);
  for (const auto& [id, bytes] : info.GetSortedDecodedVocab()) set_in_mask(text_tokens, id);
  const xgrammar::Grammar& rules = compiled->grammar;
  for (int32_t rule = 0; rule < rules->NumRules(); ++rule) {
    has_budgets =
        has_budgets || rules->GetRule(rule).max_tokens >= 0 || rules->GetRule(rule).max_chars >= 0;
    const auto& fsm = rules->per_rule_fsms[static_cast<size_t>(rule)];
    if (!fsm.has_value()) continue;
    std::unordered_set<int> states;
    fsm->GetFsm().GetReachableStates(&states);
    for (const int state : states) {
      for (const auto& edge : fsm->GetFsm().GetFsm().GetEdges(state)) {
        has_real_tokens = has_real_tokens || edge.IsExcludeToken();
        if (!edge.IsToken()) continue;
        const auto tokens = fsm->GetFsm().GetFsm().GetTokenEdgeInfo(edge.GetAuxIndex());
        for (int32_t i = 0; i < tokens.Count(); ++i) {
          const int32_t terminal = tokens.TokenIds()[i] - first_id;
          if (terminal < 0 || std::cmp_greater_equal(terminal, terminals.size())) {
            has_real_tokens = true;
          } else {
            by_state[key(rule, state)].push_back({.terminal = terminal, .target = edge.target});
          }
        }
      }
    }
  }
}

TerminalParser::TerminalParser(const TerminalGrammar& grammar)
    : EarleyParser(grammar.compiled->grammar),
      grammar_with_terminals_(grammar),
      token_bytes_(grammar.compiled->tokenizer_info.GetDecodedVocab()),
      sorted_(grammar.compiled->tokenizer_info.GetSortedDecodedVocab()),
      scratch_(grammar.text_tokens.size()) {
  // The library has made the first row; here it is made once more, with the terminals in it.
  rule_id_to_completable_states_.PopBack(1);
  scanable_state_history_.PopBack(1);
  is_completed_.clear();
  if (capture_tracking_) capture_event_history_.PopBack(1);
  begin_row();
  Enqueue(RootInitialState());
  end_row();
}

void TerminalParser::begin_row() {
  tmp_states_visited_in_queue_.Clear();
  tmp_states_to_be_added_.clear();
  tmp_completed_lazy_occurrences_.clear();
  tmp_accept_stop_token_ = false;
  next_active_.clear();
}

// From what is queued: as the library's Advance() does, and then the terminals that start here.
void TerminalParser::end_row() {
  const int32_t row = scanable_state_history_.size();
  rule_id_to_completable_states_.PushBack(std::vector<std::pair<int32_t, ParserState>>());
  if (capture_tracking_) capture_event_history_.PushBack(std::vector<xgrammar::CaptureEvent>());
  while (!tmp_process_state_queue_.empty()) {
    const ParserState state = tmp_process_state_queue_.front();
    tmp_process_state_queue_.pop();
    const auto [scanable, completable] = Predict(state);
    if (completable) Complete(state);
    if (scanable) tmp_states_to_be_added_.push_back(state);
  }
  if (!tmp_completed_lazy_occurrences_.empty()) RemoveCommittedLazyStates();
  is_completed_.push_back(tmp_accept_stop_token_);
  scanable_state_history_.PushBack(tmp_states_to_be_added_);
  const size_t carried = next_active_.size();
  for (const ParserState& state : tmp_states_to_be_added_) {
    const auto* edges = grammar_with_terminals_.edges(state);
    if (edges == nullptr) continue;
    for (const TerminalGrammar::Edge& edge : *edges) {
      const bool known = std::any_of(
          next_active_.begin() + static_cast<std::ptrdiff_t>(carried), next_active_.end(),
          [&](const Active& active) { return active.terminal == edge.terminal; });
      if (known) continue;
      const auto& use = grammar_with_terminals_.terminals[static_cast<size_t>(edge.terminal)];
      next_active_.push_back(
          {.terminal = edge.terminal, .row = row, .state = use.tables->dfa().start()});
    }
  }
  active_.PushBack(next_active_);
}

void TerminalParser::pop_rows(int32_t count) {
  if (count == 0) return;
  PopLastStates(count);
  active_.PopBack(count);
}

template <typename Take>
void TerminalParser::for_each_behind(const Active& active, const Take& take) const {
  for (const ParserState& state : scanable_state_history_[active.row]) {
    const auto* edges = grammar_with_terminals_.edges(state);
    if (edges == nullptr) continue;
    for (const TerminalGrammar::Edge& edge : *edges) {
      if (edge.terminal != active.terminal) continue;
      ParserState behind = state;
      behind.element_id = edge.target;
      take(behind);
    }
  }
}

// The rule's states that waited for the terminal go on behind it.
void TerminalParser::take_edges(const Active& active) {
  for_each_behind(active, [&](const ParserState& behind) { Enqueue(behind); });
}

void TerminalParser::step(const Active& active, uint8_t byte) {
  const auto& use = grammar_with_terminals_.terminals[static_cast<size_t>(active.terminal)];
  Active next = active;
  next.state = use.tables->dfa().next(active.state, byte);
  if (next.state == TerminalDfa::kDead) return;
  if (next.state == TerminalDfa::kClosed) {
    if (active.chars >= use.min && !use.excluded.is_value(active.excluded)) take_edges(active);
    return;
  }
  if (active.state == TerminalDfa::kOpening) {
    next.excluded = use.excluded.start();
  } else {
    next.excluded = use.excluded.next(active.excluded, byte);
  }
  const TerminalDfa& dfa = use.tables->dfa();
  next.chars += dfa.completes(active.state, next.state);
  if (dfa.missing(next.state) > use.max - next.chars) return;
  next_active_.push_back(next);
  if (dfa.may_end(next.state) && next.chars >= use.min) take_edges(next);
}

bool TerminalParser::advance(uint8_t byte) {
  begin_row();
  const int32_t last = scanable_state_history_.size() - 1;
  for (const ParserState& state : scanable_state_history_[last]) Scan(state, byte);
  for (const Active& active : active_[last]) step(active, byte);
  if (tmp_process_state_queue_.empty() && tmp_states_to_be_added_.empty() && next_active_.empty()) {
    return false;
  }
  end_row();
  return true;
}

bool TerminalParser::accept(int32_t token) {
  if (token < 0 || std::cmp_greater_equal(token, token_bytes_.size())) return false;
  const std::string_view bytes = token_bytes_[static_cast<size_t>(token)];
  if (grammar_with_terminals_.has_real_tokens) return accept_special(token, bytes);
  int32_t rows = 0;
  for (const char byte : bytes) {
    if (!advance(static_cast<uint8_t>(byte))) {
      pop_rows(rows);
      return false;
    }
    ++rows;
  }
  return rows > 0;
}

// A token that an edge may name: by the edge and by its bytes, whichever go.
bool TerminalParser::accept_special(int32_t token, std::string_view bytes) {
  begin_row();
  const int32_t start = scanable_state_history_.size() - 1;
  std::vector<ParserState> behind;
  for (const ParserState& state : scanable_state_history_[start]) ScanAtomicToken(state, token);
  while (!tmp_process_state_queue_.empty()) {
    behind.push_back(tmp_process_state_queue_.front());
    tmp_process_state_queue_.pop();
  }
  behind.insert(behind.end(), tmp_states_to_be_added_.begin(), tmp_states_to_be_added_.end());
  int32_t rows = 0;
  while (std::cmp_less(rows, bytes.size()) &&
         advance(static_cast<uint8_t>(bytes[static_cast<size_t>(rows)]))) {
    ++rows;
  }
  const bool by_bytes = rows > 0 && std::cmp_equal(rows, bytes.size());
  if (behind.empty()) {
    if (!by_bytes) pop_rows(rows);
    return by_bytes;
  }
  // The last row again, from what either way leads to.
  pop_rows(by_bytes ? 1 : rows);
  begin_row();
  if (by_bytes) {
    const int32_t last = scanable_state_history_.size() - 1;
    const auto byte = static_cast<uint8_t>(bytes.back());
    for (const ParserState& state : scanable_state_history_[last]) Scan(state, byte);
    for (const Active& active : active_[last]) step(active, byte);
  }
  for (const ParserState& state : behind) Enqueue(state);
  end_row();
  return true;
}

template <typename Bytes, typename Wanted, typename Accepted>
void TerminalParser::walk(size_t count, const Bytes& bytes, const Wanted& wanted,
                          const Accepted& accepted) {
  std::string_view before;
  uint32_t matched = 0;  // bytes of `before` that there are rows for
  for (size_t i = 0; i < count; ++i) {
    if (!wanted(i)) continue;
    const std::string_view text = bytes(i);
    const uint32_t common = bytes_in_common(before, text);
    if (common > matched) {  // the byte that `before` failed at is in it
      // And in more behind it, maybe very many.
      size_t step = 1;
      while (i + step < count && bytes_in_common(before, bytes(i + step)) > matched) {
        i += step;
        step *= 2;
      }
      while (step > 1) {
        step /= 2;
        if (i + step < count && bytes_in_common(before, bytes(i + step)) > matched) i += step;
      }
      continue;
    }
    pop_rows(static_cast<int32_t>(matched - common));
    matched = common;
    before = text;
    while (matched < text.size() && advance(static_cast<uint8_t>(text[matched]))) ++matched;
    bytes_tried_ += matched - common + 1;
    if (matched == text.size()) accepted(i);
  }
  pop_rows(static_cast<int32_t>(matched));
}

template <typename Work>
void TerminalParser::remember(std::span<uint32_t> mask, const Work& work) {
  const std::string_view key = shape_.finish(rule_id_to_completable_states_);
  if (!key.empty() && grammar_with_terminals_.masks->add_to(mask, key)) return;
  const uint64_t before = bytes_tried_;
  work();
  if (key.empty() || bytes_tried_ - before < kWorthKeeping) return;
  grammar_with_terminals_.masks->keep(mask, key);
}

void TerminalParser::fill(std::span<uint32_t> mask) {
  fill_rules(mask);
  const auto last = active_[active_.size() - 1];
  const std::vector<Active> active(last.begin(), last.end());
  for (const Active& one : active) fill_inside(one, mask);
}

// Tokens that begin with bytes of the rules.
void TerminalParser::fill_rules(std::span<uint32_t> mask) {
  const std::vector<ParserState> states = GetLatestScanableStates();
  if (states.empty()) return;
  shape_.begin(grammar_with_terminals_.form, kTokens);
  for (const ParserState& state : states) shape_.add(state);
  remember(mask, [&] {
    fill_from_states(states, mask);
    fill_crossing(states, mask);
  });
}

// The tokens of the masks that were computed beforehand, and of those that are left open there the
// ones that go on from here.
void TerminalParser::fill_from_states(const std::vector<ParserState>& states,
                                      std::span<uint32_t> mask) {
  const auto& masks = grammar_with_terminals_.compiled->adaptive_token_mask_cache;
  for (const ParserState& state : states) {
    const auto found = masks.find(state);
    if (found == masks.end()) continue;
    const AdaptiveTokenMask& known = found->second;
    switch (known.store_type) {
      case AdaptiveTokenMask::StoreType::kAccepted:
        for (const int32_t i : known.accepted_indices) {
          set_in_mask(mask, sorted_[static_cast<size_t>(i)].first);
        }
        break;
      case AdaptiveTokenMask::StoreType::kAcceptedBitset: {
        const auto& bits = known.accepted_bitset;
        xgrammar::DynamicBitset(bits.Size(), mask.data()) |= bits;
        break;
      }
      case AdaptiveTokenMask::StoreType::kRejected:
        scratch_ = grammar_with_terminals_.text_tokens;
        for (const auto* list : {&known.rejected_indices, &known.uncertain_indices}) {
          for (const int32_t i : *list) {
            clear_in_mask(scratch_, sorted_[static_cast<size_t>(i)].first);
          }
        }
        for (size_t i = 0; i < scratch_.size(); ++i) mask[i] |= scratch_[i];
        break;
    }
  }
  for (const ParserState& state : states) fill_uncertain(state, mask);
}

void TerminalParser::fill_uncertain(const ParserState& state, std::span<uint32_t> mask) {
  const auto& masks = grammar_with_terminals_.compiled->adaptive_token_mask_cache;
  const auto found = masks.find(state);
  if (found == masks.end() || found->second.uncertain_indices.empty()) return;
  const std::vector<int32_t>& open = found->second.uncertain_indices;
  const auto entry = [&](size_t i) -> const auto& {
    return sorted_[static_cast<size_t>(open[i])];
  };
  PushOneStateToCheck(state);
  active_.PushBack(std::vector<Active>());
  walk(
      open.size(), [&](size_t i) { return std::string_view(entry(i).second); },
      [&](size_t i) { return !is_in_mask(mask, entry(i).first); },
      [&](size_t i) { set_in_mask(mask, entry(i).first); });
  pop_rows(1);
}

void TerminalParser::fill_inside(const Active& active, std::span<uint32_t> mask) {
  const auto& use = grammar_with_terminals_.terminals[static_cast<size_t>(active.terminal)];
  const bool limited = use.max != TerminalTables::kNoLimit;
  const int32_t room = limited ? use.max - active.chars : TerminalTables::kNoLimit;
  const TerminalTables::View view = use.tables->tokens(active.state);
  for (const TerminalTables::Tokens* tokens : {view.near.get(), view.far.get()}) {
    if (tokens == nullptr) continue;
    tokens->allow_inside(room, mask);
    fill_closing(active, room, tokens->closing(), mask);
  }
}

void TerminalParser::fill_closing(const Active& active, int32_t room,
                                  const std::vector<TerminalTables::Closing>& list,
                                  std::span<uint32_t> mask) {
  const auto& use = grammar_with_terminals_.terminals[static_cast<size_t>(active.terminal)];
  const bool may_be_excluded =
      active.excluded != ExcludedValues::kOff || active.state == TerminalDfa::kOpening;
  const std::vector<uint32_t>* allowed = nullptr;
  for (const TerminalTables::Closing& closing : list) {
    if (closing.chars > room) break;
    if (active.chars + closing.chars < use.min) continue;
    if (allowed == nullptr) allowed = &continuation(active);
    if (!is_in_mask(*allowed, closing.after)) continue;
    if (may_be_excluded && !closes(active, token_bytes_[static_cast<size_t>(closing.token)])) {
      continue;
    }
    set_in_mask(mask, closing.token);
  }
}

// Whether the string that the token closes is none of the excluded ones.
bool TerminalParser::closes(const Active& active, std::string_view token) const {
  const auto& use = grammar_with_terminals_.terminals[static_cast<size_t>(active.terminal)];
  TerminalDfa::State state = active.state;
  int32_t excluded = active.excluded;
  for (const char c : token) {
    const auto byte = static_cast<uint8_t>(c);
    const TerminalDfa::State to = use.tables->dfa().next(state, byte);
    if (to == TerminalDfa::kClosed) return !use.excluded.is_value(excluded);
    excluded =
        state == TerminalDfa::kOpening ? use.excluded.start() : use.excluded.next(excluded, byte);
    state = to;
  }
  return false;
}

const std::vector<uint32_t>& TerminalParser::continuation(const Active& active) {
  for (const Continuation& known : continuations_) {
    if (known.terminal == active.terminal && known.row == active.row) return known.allowed;
  }
  if (continuations_.size() == kContinuations) continuations_.erase(continuations_.begin());
  const std::vector<OrderedToken>& list = grammar_with_terminals_.order->after_quotes();
  std::vector<uint32_t> allowed(mask_words(static_cast<int32_t>(list.size())));
  shape_.begin(grammar_with_terminals_.form, kEndings);
  for_each_behind(active, [&](const ParserState& behind) { shape_.add(behind); });
  remember(allowed, [&] {
    begin_row();
    take_edges(active);
    end_row();
    walk(
        list.size(), [&](size_t i) { return list[i].bytes; }, [](size_t) { return true; },
        [&](size_t i) { set_in_mask(allowed, static_cast<int32_t>(i)); });
    pop_rows(1);
  });
  continuations_.push_back(
      {.terminal = active.terminal, .row = active.row, .allowed = std::move(allowed)});
  return continuations_.back().allowed;
}

// Tokens that begin with bytes of the rules and go on into a terminal, as ` "` does: the masks that
// the library computed beforehand know nothing of terminals.
void TerminalParser::fill_crossing(const std::vector<ParserState>& states,
                                   std::span<uint32_t> mask) {
  std::bitset<256> firsts;
  for (const ParserState& state : states) {
    const auto& fsm = grammar_->per_rule_fsms[static_cast<size_t>(state.rule_id)];
    for (const auto& edge : fsm->GetFsm().GetFsm().GetEdges(state.element_id)) {
      if (!edge.IsCharRange()) continue;
      for (int byte = edge.min; byte <= edge.max; ++byte) firsts.set(static_cast<size_t>(byte));
    }
  }
  if (firsts.none()) return;
  const std::vector<OrderedToken>& list = grammar_with_terminals_.order->quoting();
  PushStatesToCheck(states, is_completed_.back());
  active_.PushBack(std::vector<Active>());
  walk(
      list.size(), [&](size_t i) { return list[i].bytes; },
      [&](size_t i) {
        return firsts[static_cast<unsigned char>(list[i].bytes[0])] &&
               !is_in_mask(mask, list[i].id);
      },
      [&](size_t i) { set_in_mask(mask, list[i].id); });
  pop_rows(1);
}

}  // namespace rudder::constraint
