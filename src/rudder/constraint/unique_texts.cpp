#include "rudder/constraint/unique_texts.h"

#include <algorithm>
#include <utility>

#include "rudder/base/token_mask.h"
#include "rudder/constraint/text_counts.h"

namespace rudder::constraint {
namespace {

// Nodes of the trie behind a beginning of texts: those from `first` up to `end`, one by one by
// their `skip`. None where no text begins so.
struct Behind {
  size_t first = 0;
  size_t end = 0;
};

Behind behind(const TokenTrie& trie, std::string_view prefix) {
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  Behind found = {.first = 0, .end = nodes.size()};
  for (const char c : prefix) {
    size_t at = found.first;
    while (at < found.end && nodes[at].byte != static_cast<uint8_t>(c)) at = nodes[at].skip;
    if (at >= found.end) return {};
    found = {.first = at + 1, .end = nodes[at].skip};
  }
  return found;
}

void clear_below(const TokenTrie& trie, size_t node, std::span<uint32_t> mask) {
  for (const int32_t id : trie.ids_below(node)) clear_in_mask(mask, id);
}

// The JSON string that the text begins with; empty when it has no end.
std::string_view string_at(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') return text.substr(0, i + 1);
    if (text[i] == '\\') ++i;
  }
  return {};
}

// The number that the text begins with; empty when it begins with none, or goes on as one.
std::string_view number_at(std::string_view text) {
  const size_t size = text.find_first_not_of(kNumberBytes);
  return size == std::string_view::npos ? std::string_view() : text.substr(0, size);
}

}  // namespace

void UniqueTexts::note(std::string_view bytes, int32_t num_rows) {
  const auto size = static_cast<size_t>(num_rows);
  // A row a byte, but where a token was taken by its id.
  const bool by_bytes = size - offsets_.size() == bytes.size();
  while (offsets_.size() < size) {
    const size_t taken = by_bytes ? size - offsets_.size() - 1 : 0;
    offsets_.push_back(static_cast<uint32_t>(text_.size() + bytes.size() - taken));
  }
  text_ += bytes;
}

void UniqueTexts::return_to(int32_t num_rows) {
  offsets_.resize(std::min(offsets_.size(), static_cast<size_t>(num_rows)));
  text_.resize(offsets_.back());
}

std::vector<int32_t> UniqueTexts::lists_around(const EarleyParser& parser,
                                               const ParserGrammar& grammar, int32_t row,
                                               int32_t symbol) const {
  struct Begun {
    int32_t row;
    int32_t symbol;
    bool operator==(const Begun&) const = default;
  };
  const char bracket = grammar.terminal(symbol).is_key ? '{' : '[';
  std::vector<int32_t> lists;
  std::vector<Begun> open = {{row, symbol}};
  for (size_t i = 0; i < open.size(); ++i) {
    const Begun begun = open[i];
    for (const EarleyParser::Waiting& one : parser.waiting(begun.row, begun.symbol)) {
      if (one.item.state == EarleyParser::kDone) continue;
      const int32_t origin = std::max(one.item.origin, 0);
      const size_t begin = offset(origin);
      if (begin < text_.size() && text_[begin] == bracket) {
        if (std::find(lists.begin(), lists.end(), origin) == lists.end()) lists.push_back(origin);
        continue;
      }
      if (one.item.origin < 0) continue;
      const Begun around = {origin, grammar.rules.state(one.item.state).rule};
      if (std::find(open.begin(), open.end(), around) == open.end()) open.push_back(around);
    }
  }
  return lists;
}

std::vector<std::string_view> UniqueTexts::earlier(const EarleyParser& parser,
                                                   const ParserGrammar& grammar, const Open& open,
                                                   std::string_view begun) const {
  std::vector<std::string_view> found;
  const std::string_view text = text_;
  const bool quoted = grammar.terminal(open.symbol).quoted;
  const std::vector<int32_t> lists = lists_around(parser, grammar, open.row, open.symbol);
  if (lists.empty()) return found;
  for (int32_t row = *std::min_element(lists.begin(), lists.end()); row < open.row; ++row) {
    const size_t begin = offset(row);
    if (begin >= text.size() || (text[begin] == '"') != quoted) continue;
    if (!text.substr(begin).starts_with(begun)) continue;
    if (parser.waiting(row, open.symbol).empty()) continue;
    const std::vector<int32_t> around = lists_around(parser, grammar, row, open.symbol);
    const bool is_of_one = std::any_of(around.begin(), around.end(), [&](int32_t list) {
      return std::find(lists.begin(), lists.end(), list) != lists.end();
    });
    if (!is_of_one) continue;
    const std::string_view rest = text.substr(begin);
    const std::string_view value = quoted ? string_at(rest) : number_at(rest);
    if (!value.empty()) found.push_back(value);
  }
  return found;
}

bool UniqueTexts::ends_as_one(const EarleyParser& parser, const ParserGrammar& grammar,
                              uint8_t byte) const {
  return std::ranges::any_of(parser.open(), [&](const Open& open) {
    const ParserGrammar::Terminal& terminal = grammar.terminal(open.symbol);
    if (!terminal.unique) return false;
    const TerminalDfa& dfa = terminal.tables->dfa();
    const TerminalDfa::State to = dfa.next(open.state, byte);
    // A number has no mark at its end: it is there where it does not go on.
    const bool ends = terminal.quoted ? to == TerminalDfa::kClosed
                                      : to == TerminalDfa::kDead && dfa.may_end(open.state);
    if (!ends) return false;
    std::string value = text_.substr(offset(open.row));
    if (terminal.quoted) value.push_back('"');
    const auto known = earlier(parser, grammar, open, value);
    return std::find(known.begin(), known.end(), value) != known.end();
  });
}

bool UniqueTexts::repeats(EarleyParser& parser, const ParserGrammar& grammar,
                          std::string_view bytes) {
  const size_t size = text_.size();
  const size_t rows = offsets_.size();
  bool found = false;
  for (size_t i = 0; i < bytes.size() && !found; ++i) {
    found = ends_as_one(parser, grammar, static_cast<uint8_t>(bytes[i]));
    if (found || !parser.advance(static_cast<uint8_t>(bytes[i]))) break;
    text_.push_back(bytes[i]);
    offsets_.push_back(static_cast<uint32_t>(text_.size()));
    found = is_used_up(parser, grammar);
  }
  parser.pop_rows(static_cast<int32_t>(offsets_.size() - rows));
  text_.resize(size);
  offsets_.resize(rows);
  return found;
}

// Whether each text that an open one may become is there.
bool UniqueTexts::is_used_up(const EarleyParser& parser, const ParserGrammar& grammar) const {
  return std::ranges::any_of(parser.open(), [&](const Open& open) {
    const ParserGrammar::Terminal& terminal = grammar.terminal(open.symbol);
    if (!terminal.unique || !terminal.may_have_to_end()) return false;
    const int32_t count = terminal.texts_from(open.state, open.chars);
    if (count >= kManyTexts) return false;
    return std::cmp_greater_equal(
        earlier(parser, grammar, open, std::string_view(text_).substr(offset(open.row))).size(),
        count);
  });
}

void UniqueTexts::forbid(EarleyParser& parser, const ParserGrammar& grammar, const TokenTrie& trie,
                         std::span<uint32_t> mask) {
  for (const Open& open : parser.open()) {
    if (!grammar.terminal(open.symbol).unique) continue;
    const auto values =
        earlier(parser, grammar, open, std::string_view(text_).substr(offset(open.row)));
    for (const std::string_view value : values) {
      forbid(grammar.terminal(open.symbol), open, value, values, trie, mask);
    }
  }
}

// That the open text becomes `value`, which is one of `values`, or begins so that it has to become
// one of them.
void UniqueTexts::forbid(const ParserGrammar::Terminal& terminal, const Open& open,
                         std::string_view value, const std::vector<std::string_view>& values,
                         const TokenTrie& trie, std::span<uint32_t> mask) const {
  const size_t begun = text_.size() - offset(open.row);
  const TerminalDfa& dfa = terminal.tables->dfa();
  TerminalDfa::State state = open.state;
  int32_t chars = open.chars;
  for (size_t i = begun; i < value.size(); ++i) {
    const TerminalDfa::State to = dfa.next(state, static_cast<uint8_t>(value[i]));
    if (to == TerminalDfa::kDead) return;  // of another terminal
    if (to != TerminalDfa::kClosed && dfa.completes(state, to)) ++chars;
    state = to;
    const int32_t count = terminal.texts_from(state, chars);
    if (std::cmp_greater(count, values.size())) continue;
    const std::string_view prefix = value.substr(0, i + 1);
    const auto same = std::ranges::count_if(
        values, [&](std::string_view other) { return other.starts_with(prefix); });
    if (same < count) continue;
    const size_t first = behind(trie, prefix.substr(begun)).first;
    if (first > 0) clear_below(trie, first - 1, mask);
    return;
  }
  if (terminal.quoted) return;
  // A number ends where it does not go on.
  const Behind next = behind(trie, value.substr(begun));
  for (size_t at = next.first; at < next.end; at = trie.nodes()[at].skip) {
    if (dfa.next(state, trie.nodes()[at].byte) == TerminalDfa::kDead) clear_below(trie, at, mask);
  }
}

void UniqueTexts::forbid(EarleyParser& parser, const ParserGrammar& grammar,
                         const std::vector<int32_t>& ids,
                         const std::vector<std::string>& token_bytes, std::span<uint32_t> mask) {
  for (const int32_t id : ids) {
    if (!is_in_mask(mask, id)) continue;
    if (repeats(parser, grammar, token_bytes[static_cast<size_t>(id)])) clear_in_mask(mask, id);
  }
}

}  // namespace rudder::constraint
