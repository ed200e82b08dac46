#include "rudder/constraint/string_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "rudder/constraint/json_text.h"
#include "rudder/constraint/terminal_dfa.h"

namespace rudder::constraint {
namespace {

constexpr size_t kMaxProductStates = 30'000;
constexpr int32_t kLeastLowered = 32;        // characters that a bound on lengths is lowered to
constexpr int64_t kWorkOfStep = 16;          // of the product: a target looked up
constexpr int64_t kProductStateBytes = 140;  // beside its keys, of which there are two, and its row

struct Factor {
  ByteAutomaton automaton;
  bool negated = false;
};

// Of several automata over the same bytes, and a count of characters.
class Product {
 public:
  // The first factor is not negated.
  Product(Fuel& fuel, const std::vector<Factor>& factors, const PatternBounds& bounds, bool quoted)
      : fuel_(fuel), factors_(factors), bounds_(bounds), quoted_(quoted) {
    const bool is_open = bounds.max_length == RuleSet::kUnbounded;
    most_counted_ = is_open ? bounds.min_length : bounds.max_length;
    make_classes();
  }

  std::optional<ByteAutomaton> build();

 private:
  using Key = std::vector<int32_t>;  // a state of each factor, and the count

  void make_classes();
  int32_t state_of(const Key& key);
  // False when nothing accepted goes on by the byte.
  bool step(const Key& from, uint8_t byte, Key& to) const;
  bool accepts(const Key& key) const;

  Fuel& fuel_;
  const std::vector<Factor>& factors_;
  const PatternBounds bounds_;
  const bool quoted_;
  int32_t most_counted_ = 0;
  std::vector<uint8_t> class_byte_;
  std::map<Key, int32_t> ids_;
  std::vector<Key> keys_;  // by state
  ByteAutomaton out_;
};

// Bytes that no factor tells apart are one class.
void Product::make_classes() {
  std::map<std::vector<uint8_t>, uint8_t> known;
  for (size_t byte = 0; byte < 256; ++byte) {
    std::vector<uint8_t> classes;
    classes.reserve(factors_.size());
    for (const Factor& factor : factors_) classes.push_back(factor.automaton.classes[byte]);
    const auto number = static_cast<uint8_t>(known.size());
    const auto [found, is_new] = known.try_emplace(std::move(classes), number);
    if (is_new) class_byte_.push_back(static_cast<uint8_t>(byte));
    out_.classes[byte] = found->second;
  }
  out_.num_classes = static_cast<int32_t>(class_byte_.size());
}

bool Product::accepts(const Key& key) const {
  for (size_t i = 0; i < factors_.size(); ++i) {
    const bool matches = key[i] != ByteAutomaton::kDead &&
                         factors_[i].automaton.accepting[static_cast<size_t>(key[i])];
    if (matches == factors_[i].negated) return false;
  }
  return key.back() >= bounds_.min_length;
}

int32_t Product::state_of(const Key& key) {
  const auto next = static_cast<int32_t>(keys_.size());
  const auto [known, is_new] = ids_.try_emplace(key, next);
  if (is_new) {
    keys_.push_back(key);
    out_.next.resize(out_.next.size() + class_byte_.size(), ByteAutomaton::kDead);
    const ByteAutomaton& first = factors_[0].automaton;
    out_.boundary.push_back(first.boundary[static_cast<size_t>(key[0])]);
    out_.accepting.push_back(out_.boundary.back() && accepts(key));
  }
  return known->second;
}

bool Product::step(const Key& from, uint8_t byte, Key& to) const {
  for (size_t i = 0; i < factors_.size(); ++i) {
    const ByteAutomaton& automaton = factors_[i].automaton;
    to[i] = ByteAutomaton::kDead;
    if (from[i] != ByteAutomaton::kDead) {
      to[i] =
          automaton.next[static_cast<size_t>(from[i]) * static_cast<size_t>(automaton.num_classes) +
                         automaton.classes[byte]];
    }
    const bool ends = to[i] == ByteAutomaton::kDead || to[i] == ByteAutomaton::kClosed;
    if (ends && !factors_[i].negated) return false;  // the quotes come last, in finish_automaton()
  }
  to.back() = from.back();
  if (factors_[0].automaton.boundary[static_cast<size_t>(to[0])]) {
    if (bounds_.max_length != RuleSet::kUnbounded && to.back() == bounds_.max_length) return false;
    to.back() = std::min(to.back() + 1, most_counted_);
  }
  return true;
}

std::optional<ByteAutomaton> Product::build() {
  // The opening and the closing are apart from all others by their counts.
  Key key(factors_.size() + 1, ByteAutomaton::kOpening);
  key.back() = -1;
  state_of(key);
  std::fill(key.begin(), key.end(), ByteAutomaton::kBody);
  key.back() = 0;
  state_of(key);
  std::fill(key.begin(), key.end(), ByteAutomaton::kClosed);
  key.back() = -1;
  state_of(key);
  out_.accepting[ByteAutomaton::kOpening] = out_.accepting[ByteAutomaton::kClosed] = false;
  Key to(key.size());
  Held held(fuel_);
  for (size_t i = ByteAutomaton::kBody; i < keys_.size(); ++i) {
    if (i == ByteAutomaton::kClosed) continue;
    const auto bytes = static_cast<int64_t>(key.size() * 2 + class_byte_.size() * 3) * 4;
    const auto work = out_.num_classes * std::ssize(factors_) + 20;
    if (keys_.size() > kMaxProductStates || !held.add(bytes + kProductStateBytes) ||
        !fuel_.burn(work)) {
      return std::nullopt;
    }
    const Key from = keys_[i];
    for (size_t c = 0; c < class_byte_.size(); ++c) {
      if (!step(from, class_byte_[c], to)) continue;
      fuel_.burn(kWorkOfStep + std::ssize(to));
      const int32_t target = state_of(to);
      out_.next[i * class_byte_.size() + c] = target;
    }
  }
  if (!finish_automaton(fuel_, out_, quoted_)) return std::nullopt;
  return std::move(out_);
}

// "^(?!x)rest" is what must not begin so, "^(?=x)rest" what must: taken off the front.
void split_look_ahead(StringForm& form) {
  for (std::string& pattern : form.all) {
    while (pattern.starts_with("^(?!") || pattern.starts_with("^(?=")) {
      size_t at = 4;
      bool in_class = false;
      for (int depth = 1; at < pattern.size() && depth > 0; ++at) {
        const char c = pattern[at];
        if (c == '\\') {
          ++at;
        } else if (in_class) {
          in_class = c != ']';
        } else if (c == '[') {
          in_class = true;
        } else {
          depth += c == '(' ? 1 : c == ')' ? -1 : 0;
        }
      }
      if (at > pattern.size() || pattern[at - 1] != ')') return;  // the parser says why
      const std::string inner = "^(?:" + pattern.substr(4, at - 5) + ")";
      const bool refused = pattern[3] == '!';
      // A '|' outside of groups would have the look-ahead in its first alternative alone.
      const std::string rest = pattern.substr(at);
      int depth = 0;
      for (size_t i = 0; i < rest.size(); ++i) {
        if (rest[i] == '\\') {
          ++i;
        } else {
          depth += rest[i] == '(' || rest[i] == '[' ? 1 : rest[i] == ')' || rest[i] == ']' ? -1 : 0;
          if (rest[i] == '|' && depth == 0) return;
        }
      }
      pattern = "^" + rest;
      if (refused) {
        form.never.push_back(inner);
      } else {
        form.all.push_back(inner);
        return split_look_ahead(form);  // the list has moved
      }
    }
  }
}

}  // namespace

std::string pattern_of_values(const std::vector<std::string>& values) {
  std::string pattern = "^(?:";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) pattern.push_back('|');
    for (const char c : values[i]) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == '\n') {
        pattern += "\\n";
      } else if (byte < 0x20) {
        pattern += {'\\', 'x', "0123456789abcdef"[byte / 16], "0123456789abcdef"[byte % 16]};
      } else {
        const bool is_name = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                             (c >= 'A' && c <= 'Z') || byte >= 0x80 || c == ' ';
        if (!is_name) pattern.push_back('\\');
        pattern.push_back(c);
      }
    }
  }
  return pattern + ")$";
}

std::string pattern_of_chars(const CharSet& set, const PatternBounds& bounds) {
  std::string pattern = "^[";
  const auto add = [&](uint32_t c) {
    if (c > 0xFFFF) {  // as a pair of surrogates
      fmt::format_to(std::back_inserter(pattern), "\\u{:04x}", 0xD7C0 + (c >> 10));
      c = 0xDC00 + (c & 0x3FF);
    }
    fmt::format_to(std::back_inserter(pattern), "\\u{:04x}", c);
  };
  const CharSet scalars = set.without({{0xD800, 0xDFFF}});
  for (const CharRange& range : scalars.ranges()) {
    add(range.first);
    pattern.push_back('-');
    add(range.last);
  }
  const bool is_open = bounds.max_length == RuleSet::kUnbounded;
  return pattern + fmt::format("]{{{},{}}}$", bounds.min_length,
                               is_open ? "" : std::to_string(bounds.max_length));
}

Result<std::optional<ByteAutomaton>> string_automaton(Fuel& fuel, const StringForm& form,
                                                      bool quoted) {
  const PatternUse use = quoted ? PatternUse::kJsonString : PatternUse::kWholeText;
  StringForm split = form;
  if (quoted) split_look_ahead(split);
  if (split.all.empty()) split.all.emplace_back("(?:)");
  if (split.all.size() == 1 && split.never.empty()) {
    auto tree = whole_pattern(split.all[0], use, split.bounds);
    if (tree) return pattern_automaton(fuel, *tree, quoted);
  }
  std::vector<Factor> factors;
  for (const bool negated : {false, true}) {
    const auto reading = negated ? PatternReading::kWide : PatternReading::kNarrow;
    for (const std::string& pattern : negated ? split.never : split.all) {
      RUDDER_TRY(const PatternTree tree, whole_pattern(pattern, use, {}, reading));
      std::optional<ByteAutomaton> automaton = pattern_automaton(fuel, tree, quoted);
      if (!automaton) return std::optional<ByteAutomaton>();
      factors.push_back({.automaton = std::move(*automaton), .negated = negated});
    }
  }
  // A long bound that would make too many states is taken lower.
  PatternBounds bounds = split.bounds;
  const int32_t least = std::max(bounds.min_length, kLeastLowered);
  while (true) {
    std::optional<ByteAutomaton> automaton = Product(fuel, factors, bounds, quoted).build();
    const bool has_texts =
        automaton && automaton->missing[ByteAutomaton::kBody] != ByteAutomaton::kNever;
    if (automaton && (has_texts || bounds.max_length == split.bounds.max_length)) return automaton;
    if (fuel.out() || bounds.max_length / 4 < least) return std::optional<ByteAutomaton>();
    bounds.max_length /= 4;
  }
}

Result<RuleSet::Node> build_string_form(RuleSet& rules, const StringForm& form) {
  // One expression has its own ways, and those that are characters of a set cheaper tables.
  if (form.all.size() == 1 && form.never.empty() &&
      whole_pattern(form.all[0], PatternUse::kJsonString, form.bounds)) {
    return build_pattern(rules, form.all[0], PatternUse::kJsonString, form.bounds);
  }
  Terminal one;
  one.pattern = "(?:)";
  if (!form.all.empty()) {
    if (!form.all[0].empty()) one.pattern = form.all[0];
    one.also.assign(form.all.begin() + 1, form.all.end());
  }
  one.never = form.never;
  one.min = form.bounds.min_length;
  one.max = form.bounds.max_length;
  RUDDER_TRY(std::optional<ByteAutomaton> automaton, string_automaton(rules.fuel(), form));
  if (rules.fuel().out()) return tl::unexpected(rules.fuel().error());
  if (!automaton) {
    return fail(ErrorCode::kInvalidArgument,
                "is too complex together with other patterns or lengths: say the lengths in the "
                "pattern");
  }
  if (automaton->missing[TerminalDfa::kBody] == ByteAutomaton::kNever) return rules.nothing();
  one.automaton = std::make_shared<ByteAutomaton>(std::move(*automaton));
  return rules.terminal(one);
}

bool takes_string(const ByteAutomaton& automaton, std::string_view value) {
  int32_t state = ByteAutomaton::kBody;
  for (const char c : json_spelling(value)) {
    const auto byte = static_cast<uint8_t>(c);
    state = automaton.next[static_cast<size_t>(state) * static_cast<size_t>(automaton.num_classes) +
                           automaton.classes[byte]];
    if (state == ByteAutomaton::kDead || state == ByteAutomaton::kClosed) return false;
  }
  return automaton.accepting[static_cast<size_t>(state)];
}

}  // namespace rudder::constraint
