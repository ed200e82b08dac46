#include "rudder/constraint/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

namespace rudder::constraint {
namespace {

constexpr std::string_view kOpen = "\xEF\xB7\x90";   // U+FDD0
constexpr std::string_view kClose = "\xEF\xB7\x91";  // U+FDD1

// Reads what to_text wrote: "q,a,MIN,MAX;first-last,...;hex,...;hex;hex,...;hex,...;".
class Description {
 public:
  explicit Description(std::string_view text) : text_(text) {}

  std::optional<Terminal> read() {
    Terminal terminal;
    const std::string_view form = take(',');
    const std::string_view spelling = take(',');
    if (form.size() != 1 || std::string_view("qpunk").find(form) == std::string_view::npos ||
        (spelling != "a" && spelling != "o")) {
      return std::nullopt;
    }
    terminal.is_key = form == "k";
    terminal.quoted = form == "q" || form == "u" || terminal.is_key;
    terminal.unique = form == "u" || form == "n" || terminal.is_key;
    terminal.any_spelling = spelling == "a";
    if (!number(take(','), 10, &terminal.min) || !number(take(';'), 10, &terminal.max)) {
      return std::nullopt;
    }
    std::string_view list = take(';');
    while (!list.empty()) {
      const std::string_view range = take(',', &list);
      uint32_t first = 0;
      uint32_t last = 0;
      const size_t dash = range.find('-');
      if (dash == std::string_view::npos || !number(range.substr(0, dash), 16, &first) ||
          !number(range.substr(dash + 1), 16, &last) || last < first || last > 0x10FFFF) {
        return std::nullopt;
      }
      terminal.set.add(first, last);
    }
    list = take(';');
    while (!list.empty()) terminal.excluded.push_back(bytes(take(',', &list)));
    terminal.pattern = bytes(take(';'));
    list = take(';');
    while (!list.empty()) terminal.also.push_back(bytes(take(',', &list)));
    list = take(';');
    while (!list.empty()) terminal.never.push_back(bytes(take(',', &list)));
    const bool of_set = terminal.pattern.empty();
    const bool combined = !terminal.also.empty() || !terminal.never.empty();
    const bool sound =
        ok_ && text_.empty() && terminal.set.empty() != of_set && (!combined || !of_set) &&
        terminal.min >= (of_set && !terminal.quoted ? 1 : 0) &&
        (terminal.max == Terminal::kUnbounded || terminal.max >= terminal.min) &&
        ((terminal.excluded.empty() && of_set) || !terminal.any_spelling) &&
        (!terminal.unique || ((terminal.quoted || !of_set) && !terminal.any_spelling));
    return sound ? std::optional(std::move(terminal)) : std::nullopt;
  }

 private:
  static std::string_view take(char end, std::string_view* from) {
    const size_t at = std::min(from->find(end), from->size());
    const std::string_view taken = from->substr(0, at);
    from->remove_prefix(std::min(at + 1, from->size()));
    return taken;
  }
  std::string_view take(char end) {
    ok_ = ok_ && text_.find(end) != std::string_view::npos;
    return take(end, &text_);
  }
  std::string bytes(std::string_view hex) {
    std::string out;
    for (; hex.size() >= 2; hex.remove_prefix(2)) {
      uint32_t byte = 0;
      ok_ = ok_ && number(hex.substr(0, 2), 16, &byte);
      out.push_back(static_cast<char>(byte));
    }
    return out;
  }
  template <typename Number>
  static bool number(std::string_view text, int base, Number* out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, base);
    return error == std::errc() && end == text.data() + text.size();
  }

  std::string_view text_;
  bool ok_ = true;
};

}  // namespace

std::string to_text(const Terminal& terminal) {
  std::string out(kOpen);
  const auto add_hex = [&](std::string_view bytes) {
    for (const char c : bytes) {
      fmt::format_to(std::back_inserter(out), "{:02x}", static_cast<unsigned char>(c));
    }
  };
  fmt::format_to(std::back_inserter(out), "{},{},{},{};",
                 terminal.is_key   ? 'k'
                 : terminal.quoted ? (terminal.unique ? 'u' : 'q')
                                   : (terminal.unique ? 'n' : 'p'),
                 terminal.any_spelling ? 'a' : 'o', terminal.min, terminal.max);
  const char* separator = "";
  for (const CharRange& range : terminal.set.ranges()) {
    fmt::format_to(std::back_inserter(out), "{}{:x}-{:x}", separator, range.first, range.last);
    separator = ",";
  }
  out.push_back(';');
  for (const std::string& value : terminal.excluded) {
    add_hex(value);
    out.push_back(',');
  }
  out.push_back(';');
  add_hex(terminal.pattern);
  out.push_back(';');
  for (const std::vector<std::string>* patterns : {&terminal.also, &terminal.never}) {
    for (const std::string& pattern : *patterns) {
      add_hex(pattern);
      out.push_back(',');
    }
    out.push_back(';');
  }
  return out.append(kClose);
}

size_t description_length(std::string_view text) {
  if (!text.starts_with(kOpen)) return 0;
  const size_t close = text.find(kClose);
  return close == std::string_view::npos ? kOpen.size() : close + kClose.size();
}

std::optional<Terminal> read_description(std::string_view text) {
  if (!text.starts_with(kOpen) || !text.ends_with(kClose)) return std::nullopt;
  text.remove_prefix(kOpen.size());
  text.remove_suffix(kClose.size());
  return Description(text).read();
}

}  // namespace rudder::constraint
