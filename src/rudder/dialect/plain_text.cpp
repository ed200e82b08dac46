#include "rudder/dialect/plain_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

namespace rudder::dialect {
namespace {

// How much of a mark has come: every beginning of a mark but the whole of it, the empty one first.
std::map<std::string, size_t> states_of(const std::vector<std::string>& marks) {
  std::map<std::string, size_t> states = {{"", 0}};
  for (const std::string& mark : marks) {
    for (size_t length = 1; length < mark.size(); ++length) {
      states.emplace(mark.substr(0, length), states.size());
    }
  }
  return states;
}

// The longest end of `text` that is a state.
size_t state_after(std::string_view text, const std::map<std::string, size_t>& states) {
  for (size_t start = 0; start < text.size(); ++start) {
    const auto found = states.find(std::string(text.substr(start)));
    if (found != states.end()) return found->second;
  }
  return 0;
}

std::string escaped(char ch) {
  return fmt::format("\\u{:04X}", static_cast<unsigned>(ch));
}

}  // namespace

std::string text_without(const std::vector<std::string>& marks) {
  const std::map<std::string, size_t> states = states_of(marks);
  std::set<char> letters;
  for (const std::string& mark : marks) letters.insert(mark.begin(), mark.end());
  std::string grammar = "root ::= s0\n";
  for (const auto& [begun, number] : states) {
    fmt::format_to(std::back_inserter(grammar), "s{} ::= \"\"", number);
    std::string others;
    for (const char letter : letters) {
      const std::string text = begun + letter;
      const bool is_mark =
          std::ranges::any_of(marks, [&](const std::string& mark) { return text.ends_with(mark); });
      const size_t next = state_after(text, states);
      if (!is_mark && next == 0) continue;
      others += escaped(letter);
      if (!is_mark) {
        fmt::format_to(std::back_inserter(grammar), " | [{}] s{}", escaped(letter), next);
      }
    }
    grammar +=
        others.empty() ? " | [\\u0000-\\U0010FFFF] s0\n" : fmt::format(" | [^{}] s0\n", others);
  }
  return grammar;
}

}  // namespace rudder::dialect
