#include "rudder/constraint/unique_strings.h"

#include <algorithm>
#include <utility>

#include "rudder/base/token_mask.h"
#include "rudder/constraint/text_counts.h"

namespace rudder::constraint {
namespace {

// Ids of the texts that begin so.
std::span<const int32_t> ids_from(const TokenTrie& trie, std::string_view prefix) {
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  size_t at = 0;
  size_t end = nodes.size();
  size_t found = end;
  for (const char c : prefix) {
    while (at < end && nodes[at].byte != static_cast<uint8_t>(c)) at = nodes[at].skip;
    if (at >= end) return {};
    found = at;
    end = nodes[at].skip;
    ++at;
  }
  return trie.ids_below(found);
}

// The JSON string that the text begins with; empty when it has no end.
std::string_view string_at(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') return text.substr(0, i + 1);
    if (text[i] == '\\') ++i;
  }
  return {};
}

}  // namespace

void UniqueStrings::note(std::string_view bytes, int32_t num_rows) {
  const auto size = static_cast<size_t>(num_rows);
  // A row a byte, but where a token was taken by its id.
  const bool by_bytes = size - offsets_.size() == bytes.size();
  while (offsets_.size() < size) {
    const size_t taken = by_bytes ? size - offsets_.size() - 1 : 0;
    offsets_.push_back(static_cast<uint32_t>(text_.size() + bytes.size() - taken));
  }
  text_ += bytes;
}

void UniqueStrings::return_to(int32_t num_rows) {
  offsets_.resize(std::min(offsets_.size(), static_cast<size_t>(num_rows)));
  text_.resize(offsets_.back());
}

std::vector<int32_t> UniqueStrings::lists_around(const EarleyParser& parser,
                                                 const ParserGrammar& grammar, int32_t row,
                                                 int32_t symbol) const {
  struct Begun {
    int32_t row;
    int32_t symbol;
    bool operator==(const Begun&) const = default;
  };
  std::vector<int32_t> lists;
  std::vector<Begun> open = {{row, symbol}};
  for (size_t i = 0; i < open.size(); ++i) {
    const Begun begun = open[i];
    for (const EarleyParser::Waiting& one : parser.waiting(begun.row, begun.symbol)) {
      if (one.item.state == EarleyParser::kDone) continue;
      const int32_t origin = std::max(one.item.origin, 0);
      const size_t begin = offset(origin);
      if (begin < text_.size() && text_[begin] == '[') {
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

std::vector<std::string_view> UniqueStrings::earlier(const EarleyParser& parser,
                                                     const ParserGrammar& grammar, const Open& open,
                                                     std::string_view begun) const {
  std::vector<std::string_view> found;
  const std::string_view text = text_;
  const std::vector<int32_t> lists = lists_around(parser, grammar, open.row, open.symbol);
  if (lists.empty()) return found;
  for (int32_t row = *std::min_element(lists.begin(), lists.end()); row < open.row; ++row) {
    const size_t begin = offset(row);
    if (begin >= text.size() || text[begin] != '"') continue;
    if (!text.substr(begin).starts_with(begun)) continue;
    if (parser.waiting(row, open.symbol).empty()) continue;
    const std::vector<int32_t> around = lists_around(parser, grammar, row, open.symbol);
    const bool is_of_one = std::any_of(around.begin(), around.end(), [&](int32_t list) {
      return std::find(lists.begin(), lists.end(), list) != lists.end();
    });
    if (!is_of_one) continue;
    const std::string_view value = string_at(text.substr(begin));
    if (!value.empty()) found.push_back(value);
  }
  return found;
}

bool UniqueStrings::repeats(EarleyParser& parser, const ParserGrammar& grammar,
                            std::string_view bytes) {
  const size_t size = text_.size();
  const size_t rows = offsets_.size();
  bool found = false;
  for (size_t i = 0; i < bytes.size() && !found; ++i) {
    if (bytes[i] == '"') {
      for (const Open& open : parser.open()) {
        const ParserGrammar::Terminal& terminal = grammar.terminal(open.symbol);
        if (!terminal.unique ||
            terminal.tables->dfa().next(open.state, '"') != TerminalDfa::kClosed) {
          continue;
        }
        const std::string value = text_.substr(offset(open.row)) + '"';
        const auto known = earlier(parser, grammar, open, value);
        found = found || std::find(known.begin(), known.end(), value) != known.end();
      }
    }
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

// Whether each text that an open string may become is there.
bool UniqueStrings::is_used_up(const EarleyParser& parser, const ParserGrammar& grammar) const {
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

void UniqueStrings::forbid(EarleyParser& parser, const ParserGrammar& grammar,
                           const TokenTrie& trie, std::span<uint32_t> mask) {
  for (const Open& open : parser.open()) {
    const ParserGrammar::Terminal& terminal = grammar.terminal(open.symbol);
    if (!terminal.unique) continue;
    const size_t begun = text_.size() - offset(open.row);
    const auto values =
        earlier(parser, grammar, open, std::string_view(text_).substr(offset(open.row)));
    const TerminalDfa& dfa = terminal.tables->dfa();
    for (const std::string_view value : values) {
      TerminalDfa::State state = open.state;
      int32_t chars = open.chars;
      for (size_t i = begun; i < value.size() && state != TerminalDfa::kDead; ++i) {
        const TerminalDfa::State to = dfa.next(state, static_cast<uint8_t>(value[i]));
        if (to == TerminalDfa::kDead) break;  // of another terminal
        if (to != TerminalDfa::kClosed && dfa.completes(state, to)) ++chars;
        state = to;
        const int32_t count = terminal.texts_from(state, chars);
        if (std::cmp_greater(count, values.size())) continue;
        const std::string_view prefix = value.substr(0, i + 1);
        const auto same = std::ranges::count_if(
            values, [&](std::string_view other) { return other.starts_with(prefix); });
        if (same < count) continue;
        for (const int32_t id : ids_from(trie, prefix.substr(begun))) clear_in_mask(mask, id);
        break;
      }
    }
  }
}

void UniqueStrings::forbid(EarleyParser& parser, const ParserGrammar& grammar,
                           const std::vector<int32_t>& ids,
                           const std::vector<std::string>& token_bytes, std::span<uint32_t> mask) {
  for (const int32_t id : ids) {
    if (!is_in_mask(mask, id)) continue;
    if (repeats(parser, grammar, token_bytes[static_cast<size_t>(id)])) clear_in_mask(mask, id);
  }
}

}  // namespace rudder::constraint
