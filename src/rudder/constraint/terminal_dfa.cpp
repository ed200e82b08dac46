#include "rudder/constraint/terminal_dfa.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rudder/constraint/json_text.h"
#include "rudder/constraint/pattern.h"
#include "rudder/constraint/string_form.h"

namespace rudder::constraint {
namespace {

using Ranges = std::vector<CharRange>;
using State = TerminalDfa::State;

constexpr State kDead = TerminalDfa::kDead;
constexpr State kOpening = TerminalDfa::kOpening;
constexpr State kBody = TerminalDfa::kBody;
constexpr State kClosed = TerminalDfa::kClosed;

constexpr std::string_view kHex = "0123456789abcdefABCDEF";

// What of `ranges` is in [first, first + count), counted from `first`.
Ranges clip(const Ranges& ranges, uint32_t first, uint32_t count) {
  Ranges out;
  for (const CharRange& range : ranges) {
    const uint32_t from = std::max(range.first, first);
    const uint32_t to = std::min(range.last, first + count - 1);
    if (from <= to) out.push_back({from - first, to - first});
  }
  return out;
}

// The automaton of any number of characters of a set: one state between them.
class SetAutomaton {
 public:
  explicit SetAutomaton(const Terminal& terminal);
  ByteAutomaton take() const;

 private:
  using Row = std::array<State, 256>;

  State add_state();
  // Of what is left of a character: `bytes` more, whose bits are one of `values`.
  State continuation(int bytes, const Ranges& values);
  void add_plain(const CharSet& set);
  void add_escapes_needed(const CharSet& set);
  void add_escapes_anywhere();
  // From `from` on by any of the characters.
  void link(State from, std::string_view characters, State to);

  std::vector<Row> states_;
  std::map<std::pair<int, std::vector<uint32_t>>, State> continuations_;
};

State SetAutomaton::add_state() {
  Row row;
  row.fill(kDead);
  states_.push_back(row);
  return static_cast<State>(states_.size() - 1);
}

void SetAutomaton::link(State from, std::string_view characters, State to) {
  for (const char c : characters) {
    states_[static_cast<size_t>(from)][static_cast<unsigned char>(c)] = to;
  }
}

State SetAutomaton::continuation(int bytes, const Ranges& values) {
  if (values.empty()) return kDead;
  if (bytes == 0) return kBody;
  std::vector<uint32_t> flat;
  for (const CharRange& range : values) flat.insert(flat.end(), {range.first, range.last});
  const auto [known, is_new] = continuations_.try_emplace({bytes, std::move(flat)}, kDead);
  if (!is_new) return known->second;
  const State state = add_state();
  known->second = state;
  const uint32_t block = uint32_t{1} << (6 * (bytes - 1));
  for (uint32_t low = 0; low < 64; ++low) {
    const State next = continuation(bytes - 1, clip(values, low * block, block));
    states_[static_cast<size_t>(state)][0x80 + low] = next;
  }
  return state;
}

void SetAutomaton::add_plain(const CharSet& set) {
  for (uint32_t c = 0; c < 0x80; ++c) {
    if (set.contains(c)) states_[kBody][c] = kBody;
  }
  const auto lead = [&](uint32_t from, uint32_t to, int bytes, uint32_t least, uint32_t most) {
    // Shorter forms are not UTF-8: `least` is the first character that takes so many bytes.
    Ranges ranges = clip(set.ranges(), least, most - least + 1);
    for (CharRange& range : ranges) range = {range.first + least, range.last + least};
    const uint32_t block = uint32_t{1} << (6 * bytes);
    for (uint32_t byte = from; byte <= to; ++byte) {
      const State next = continuation(bytes, clip(ranges, (byte - from) * block, block));
      states_[kBody][byte] = next;
    }
  };
  lead(0xC0, 0xDF, 1, 0x80, 0x7FF);
  lead(0xE0, 0xEF, 2, 0x800, 0xFFFF);
  lead(0xF0, 0xF7, 3, 0x10000, 0x10FFFF);
}

// As json_char() spells them.
void SetAutomaton::add_escapes_needed(const CharSet& set) {
  const State escape = add_state();
  bool any = false;
  const State zero = add_state();    // \u
  const State second = add_state();  // \u0
  const State high = add_state();    // \u00
  for (uint32_t c = 0; c < 0x80; ++c) {
    if (!set.contains(c) || !must_escape().contains(c)) continue;
    any = true;
    if (const char letter = short_escape(c); letter != '\0') {
      link(escape, {&letter, 1}, kBody);
      continue;
    }
    link(escape, "u", zero);
    link(zero, "0", second);
    link(second, "0", high);
    const char digit = c < 0x10 ? '0' : '1';
    State low = states_[static_cast<size_t>(high)][static_cast<unsigned char>(digit)];
    if (low == kDead) low = add_state();
    link(high, {&digit, 1}, low);
    link(low, kHex.substr(c % 16, 1), kBody);
  }
  if (any) link(kBody, "\\", escape);
}

void SetAutomaton::add_escapes_anywhere() {
  const State escape = add_state();
  link(kBody, "\\", escape);
  link(escape, "\"\\/bfnrt", kBody);
  // `left` hexadecimal digits more, and then `end`.
  const auto digits = [&](int left, State end) {
    for (; left > 0; --left) {
      const State before = add_state();
      link(before, kHex, end);
      end = before;
    }
    return end;
  };
  const State four = digits(4, kBody);
  link(escape, "u", four);
  // Half a pair of surrogates, d800 to dbff, and then the other half; dc00 to dfff is none.
  const State d = add_state();
  link(four, "dD", d);
  link(d, "01234567", digits(2, kBody));
  const State backslash = add_state();
  link(d, "89abAB", digits(2, backslash));
  const State u = add_state();
  const State low_d = add_state();
  const State low = add_state();
  link(backslash, "\\", u);
  link(u, "u", low_d);
  link(low_d, "dD", low);
  link(low, "cdefCDEF", digits(2, kBody));
}

SetAutomaton::SetAutomaton(const Terminal& terminal) {
  for (int i = 0; i < 3; ++i) add_state();
  const CharSet scalars = terminal.set.without({{0xD800, 0xDFFF}});
  if (!terminal.quoted) {
    add_plain(scalars);
    return;
  }
  link(kOpening, "\"", kBody);
  add_plain(scalars.without(must_escape()));
  if (terminal.any_spelling) {
    add_escapes_anywhere();
  } else {
    add_escapes_needed(scalars);
  }
  link(kBody, "\"", kClosed);
}

ByteAutomaton SetAutomaton::take() const {
  ByteAutomaton out;
  std::map<std::vector<State>, uint8_t> classes;  // bytes with the same column are one
  std::vector<std::vector<State>> columns;
  for (size_t byte = 0; byte < 256; ++byte) {
    std::vector<State> column;
    column.reserve(states_.size());
    for (const Row& row : states_) column.push_back(row[byte]);
    const auto next = static_cast<uint8_t>(classes.size());
    const auto [known, is_new] = classes.try_emplace(column, next);
    out.classes[byte] = known->second;
    if (is_new) columns.push_back(std::move(column));
  }
  out.num_classes = static_cast<int32_t>(columns.size());
  for (size_t state = 0; state < states_.size(); ++state) {
    for (const std::vector<State>& column : columns) out.next.push_back(column[state]);
    const auto at = static_cast<State>(state);
    out.boundary.push_back(at == kBody);
    out.accepting.push_back(at == kBody);
    out.missing.push_back(at <= kClosed ? 0 : 1);
  }
  return out;
}

}  // namespace

Result<TerminalDfa> TerminalDfa::make(Fuel& fuel, const Terminal& terminal) {
  const State start = terminal.quoted ? kOpening : kBody;
  if (terminal.pattern.empty()) {
    return TerminalDfa(start, std::make_shared<ByteAutomaton>(SetAutomaton(terminal).take()));
  }
  if (terminal.automaton != nullptr) return TerminalDfa(start, terminal.automaton);
  const PatternBounds bounds = {.min_length = terminal.min, .max_length = terminal.max};
  StringForm form = {.all = terminal.also, .never = terminal.never, .bounds = bounds};
  form.all.insert(form.all.begin(), terminal.pattern);
  RUDDER_TRY(std::optional<ByteAutomaton> automaton, string_automaton(fuel, form, terminal.quoted));
  if (fuel.out()) return tl::unexpected(fuel.error());
  if (!automaton) {
    return fail(ErrorCode::kInvalidArgument, "is too complex: a pattern is too large");
  }
  return TerminalDfa(start, std::make_shared<ByteAutomaton>(std::move(*automaton)));
}

std::vector<int32_t> TerminalDfa::kinds(size_t steps) const {
  const auto width = static_cast<size_t>(dfa_->num_classes) + 1;
  std::vector<int32_t> kinds(size(), 0);
  kinds[kClosed] = 1;
  // What a state is, and what the states are that its bytes lead to, makes the next kind.
  std::vector<int32_t> rows(size() * width);
  const auto hash_of = [&](int32_t state) {
    uint64_t hash = 0;
    const int32_t* row = rows.data() + static_cast<size_t>(state) * width;
    for (size_t i = 0; i < width; ++i) {
      hash = (hash ^ static_cast<uint32_t>(row[i])) * uint64_t{0x9E3779B97F4A7C15};
      hash ^= hash >> 29;
    }
    return hash;
  };
  const auto same_row = [&](int32_t a, int32_t b) {
    const int32_t* row = rows.data() + static_cast<size_t>(a) * width;
    return std::equal(row, row + width, rows.data() + static_cast<size_t>(b) * width);
  };
  size_t num_kinds = 2;
  for (size_t step = 0; step < steps; ++step) {
    for (size_t state = 0; state < size(); ++state) {
      int32_t* row = rows.data() + state * width;
      row[0] = kinds[state];
      for (size_t i = 1; i < width; ++i) {
        const State to = dfa_->next[state * (width - 1) + i - 1];
        row[i] = to == kDead ? -1 : kinds[static_cast<size_t>(to)];
      }
    }
    // By their first state.
    std::unordered_map<int32_t, int32_t, decltype(hash_of), decltype(same_row)> known(
        size(), hash_of, same_row);
    for (size_t state = 0; state < size(); ++state) {
      const auto number = static_cast<int32_t>(known.size());
      kinds[state] = known.try_emplace(static_cast<int32_t>(state), number).first->second;
    }
    if (known.size() == num_kinds) break;  // nothing was told apart that was not before
    num_kinds = known.size();
  }
  return kinds;
}

}  // namespace rudder::constraint
