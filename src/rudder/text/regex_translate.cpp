// Oniguruma (Ruby syntax) to PCRE2, construct by construct: see translate_onig in regex.h. The
// semantics on the left were checked against the reference package over all code points.
#include <fmt/format.h>

#include <array>
#include <cctype>
#include <string>
#include <vector>

#include "rudder/base/utf8.h"
#include "rudder/text/regex.h"
#include "rudder/text/unicode.h"

namespace rudder::text {
namespace {

// What Oniguruma calls a word character, spelled as class items. Outside a class it takes these
// Latin-1 superscripts and fractions as well.
constexpr std::string_view kWordItems = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kBareWordItems = R"(\xB2\xB3\xB9\xBC-\xBE)";

struct Alias {
  std::string_view onig;
  std::string_view pcre;  // class items
};
constexpr std::array kPropertyNames = {
    Alias{"letter", "L"},
    Alias{"mark", "M"},
    Alias{"number", "N"},
    Alias{"punctuation", "P"},
    Alias{"symbol", "S"},
    Alias{"separator", "Z"},
    Alias{"other", "C"},
    Alias{"control", "Cc"},
    Alias{"decimalnumber", "Nd"},
    Alias{"uppercaseletter", "Lu"},
    Alias{"lowercaseletter", "Ll"},
};
constexpr std::array kPosixNames = {
    Alias{"alpha", R"(\p{Alphabetic})"}, Alias{"alnum", R"(\p{Alphabetic}\p{Nd})"},
    Alias{"digit", R"(\p{Nd})"},         Alias{"space", R"(\p{White_Space})"},
    Alias{"upper", R"(\p{Uppercase})"},  Alias{"lower", R"(\p{Lowercase})"},
    Alias{"xdigit", "0-9A-Fa-f"},
};

std::string fold_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != '_' && c != ' ' && c != '-') {
      out.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
  }
  return out;
}

// Class items for the code points of a general category that PCRE2's Unicode version lacks.
std::string later_items(std::string_view gc) {
  static constexpr std::array<std::string_view, 30> kNames = {
      "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
      "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
  std::string out;
  for (const CodePointRange& range : kLaterCategory) {
    const std::string_view name = kNames[static_cast<size_t>(range.category)];
    if (name.substr(0, gc.size()) == gc) {
      out += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", range.first, range.last);
    }
  }
  return out;
}

std::string word_items(bool in_class) {
  std::string items(kWordItems);
  if (!in_class) items += kBareWordItems;
  return items + later_items("L") + later_items("M") + later_items("Nd");
}

class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  Result<std::string> run() {
    while (pos_ < in_.size()) RUDDER_TRY_VOID(step());
    if (!groups_.empty()) return refuse("an unclosed group");
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> refuse(std::string_view what) const {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("regex construct is not supported: {} (byte {} of {})", what, pos_, in_));
  }
  bool at(std::string_view text) const { return in_.substr(pos_, text.size()) == text; }

  void atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  Result<void> step() {
    const char c = in_[pos_];
    switch (c) {
      case '\\':
        return escape_outside();
      case '[': {
        std::string items;
        bool negated = false;
        RUDDER_TRY_VOID(char_class(items, negated, 0));
        atom(fmt::format("[{}{}]", negated ? "^" : "", items));
        return {};
      }
      case '(':
        return open_group();
      case ')':
        if (groups_.empty()) return refuse("an unopened group");
        atom_ = groups_.back();
        groups_.pop_back();
        out_.push_back(')');
        ++pos_;
        return {};
      case '^':
        atom("(?m:^)");
        ++pos_;
        return {};
      case '$':
        atom("(?m:$)");
        ++pos_;
        return {};
      case '{':
        return interval();
      case '*':
      case '+':
      case '?':  // greedy, lazy and possessive single-character quantifiers are the same in both
        out_.push_back(c);
        ++pos_;
        if (at("?") || at("+")) out_.push_back(in_[pos_++]);
        if (at("?") || at("+") || at("*")) return refuse("a quantifier on a quantifier");
        return {};
      default: {
        const size_t length = utf8_length(static_cast<unsigned char>(c));
        atom(in_.substr(pos_, length));
        pos_ += length;
        return {};
      }
    }
  }

  Result<void> open_group() {
    groups_.push_back(out_.size());
    if (!at("(?")) {
      out_ += "(?:";  // no pattern here reads a capture
      ++pos_;
      return {};
    }
    for (const std::string_view plain : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (at(plain)) {
        out_ += plain;
        pos_ += plain.size();
        return {};
      }
    }
    // Inline options; Ruby's m is PCRE2's s.
    size_t end = pos_ + 2;
    std::string flags;
    for (; end < in_.size() && in_[end] != ':' && in_[end] != ')'; ++end) {
      const char flag = in_[end];
      if (flag != 'i' && flag != 'm' && flag != '-') return refuse("this kind of group");
      flags.push_back(flag == 'm' ? 's' : flag);
    }
    if (end == in_.size() || in_[end] != ':') return refuse("options that apply to what follows");
    out_ += "(?" + flags + ":";
    pos_ = end + 1;
    return {};
  }

  // {n}, {n,}, {n,m}, {,m}; anything else is a literal brace. A + after it repeats the repeat.
  Result<void> interval() {
    size_t end = pos_ + 1;
    std::string low, high;
    bool comma = false;
    for (; end < in_.size() && in_[end] != '}'; ++end) {
      if (in_[end] == ',' && !comma) {
        comma = true;
      } else if (std::isdigit(static_cast<unsigned char>(in_[end])) != 0) {
        (comma ? high : low).push_back(in_[end]);
      } else {
        break;
      }
    }
    if (end == in_.size() || in_[end] != '}' || (low.empty() && high.empty())) {
      atom("\\{");
      ++pos_;
      return {};
    }
    if (low.empty()) low = "0";
    pos_ = end + 1;
    out_ += comma ? fmt::format("{{{},{}}}", low, high) : fmt::format("{{{}}}", low);
    if (at("+") || (!comma && at("?"))) {
      out_ = out_.substr(0, atom_) + "(?:" + out_.substr(atom_) + ")" + in_[pos_++];
    } else if (at("?")) {
      out_.push_back(in_[pos_++]);
    }
    return {};
  }

  // An escape as class items, e.g. \s -> \p{White_Space}; `negated` for \S, \P and the like.
  Result<std::string> escape_items(bool& negated, bool in_class) {
    negated = false;
    ++pos_;
    if (pos_ == in_.size()) return refuse("a trailing backslash");
    const char c = in_[pos_++];
    switch (c) {
      case 'S':
        negated = true;
        [[fallthrough]];
      case 's':
        return std::string(R"(\p{White_Space})");
      case 'W':
        negated = true;
        [[fallthrough]];
      case 'w':
        return word_items(in_class);
      case 'D':
        negated = true;
        [[fallthrough]];
      case 'd':
        return R"(\p{Nd})" + later_items("Nd");
      case 'H':
        negated = true;
        [[fallthrough]];
      case 'h':
        return std::string("0-9A-Fa-f");
      case 'P':
        negated = true;
        [[fallthrough]];
      case 'p':
        return property(negated);
      case 'v':
        return std::string("\\x0B");
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        return std::string{'\\', c};
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      default:
        break;
    }
    if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0) {
      return std::string{'\\', c};
    }
    --pos_;
    return refuse(fmt::format("the escape \\{}", c));
  }

  Result<std::string> hex(size_t max_digits) {
    const bool braced = max_digits == 2 && at("{");
    if (braced) {
      ++pos_;
      max_digits = 6;
    }
    uint32_t value = 0;
    size_t digits = 0;
    for (; digits < max_digits && pos_ < in_.size(); ++digits, ++pos_) {
      const char c = in_[pos_];
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) break;
      value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (digits == 0 || (braced && !at("}"))) return refuse("this hexadecimal escape");
    if (braced) ++pos_;
    // Oniguruma reads \x80 and above without braces as a raw byte.
    if (!braced && max_digits == 2 && value >= 0x80) return refuse("a raw byte escape");
    return fmt::format("\\x{{{:X}}}", value);
  }

  Result<std::string> property(bool& negated) {
    if (!at("{")) return refuse("a property without braces");
    const size_t end = in_.find('}', pos_);
    if (end == std::string_view::npos) return refuse("an unclosed property");
    std::string_view name = in_.substr(pos_ + 1, end - pos_ - 1);
    pos_ = end + 1;
    if (name.substr(0, 1) == "^") {
      negated = !negated;
      name.remove_prefix(1);
    }
    std::string folded = fold_name(name);
    for (const Alias& alias : kPropertyNames) {
      if (alias.onig == folded) folded = fold_name(alias.pcre);
    }
    for (const Alias& alias : kPosixNames) {
      if (alias.onig == folded) return std::string(alias.pcre);
    }
    static constexpr std::string_view kMajor = "lmnpsz";
    if ((folded.size() == 1 || folded.size() == 2) && kMajor.find(folded[0]) != kMajor.npos) {
      folded[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(folded[0])));
      return fmt::format("\\p{{{}}}", folded) + later_items(folded);
    }
    if (folded == "any") return std::string("\\p{Any}");
    if (folded == "c" || folded.size() == 2) return refuse("a property of unassigned characters");
    if (folded == "alphabetic") return R"(\p{Alphabetic})" + later_items("L");
    if (folded == "han") return R"(\p{sc:Han}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
    if (folded == "hiragana") return std::string(R"(\p{sc:Hiragana}\x{1B132})");
    if (folded == "katakana") return std::string(R"(\p{sc:Katakana}\x{1B155})");
    return fmt::format("\\p{{sc:{}}}", name);
  }

  Result<void> escape_outside() {
    const char c = pos_ + 1 < in_.size() ? in_[pos_ + 1] : '\0';
    if (c == 'A' || c == 'z' || c == 'Z' || c == 'G') {  // the same in both
      atom(in_.substr(pos_, 2));
      pos_ += 2;
      return {};
    }
    if (c == 'b' || c == 'B') {
      const std::string word = "[" + word_items(false) + "]";
      const std::string edge = fmt::format("(?<={0})(?!{0})|(?<!{0})(?={0})", word);
      atom(c == 'b' ? "(?:" + edge + ")" : "(?!" + edge + ")");
      pos_ += 2;
      return {};
    }
    bool negated = false;
    RUDDER_TRY(const std::string items, escape_items(negated, false));
    const bool single = !negated && items.find('\\', 1) == std::string::npos && items[0] == '\\';
    atom(single ? items : fmt::format("[{}{}]", negated ? "^" : "", items));
    return {};
  }

  // Reads "[...]" at pos_ into the items of one PCRE2 class.
  Result<void> char_class(std::string& items, bool& negated, int depth) {
    if (depth > 8) return refuse("classes nested this deep");
    ++pos_;
    if (at("^")) {
      negated = true;
      ++pos_;
    }
    for (bool first = true;; first = false) {
      if (pos_ >= in_.size()) return refuse("an unclosed class");
      if (in_[pos_] == ']' && !first) break;
      if (at("&&")) return refuse("a class intersection (&&)");
      if (at("[:")) {
        RUDDER_TRY_VOID(posix(items));
      } else if (in_[pos_] == '[') {
        std::string inner;
        bool inner_negated = false;
        RUDDER_TRY_VOID(char_class(inner, inner_negated, depth + 1));
        if (inner_negated) return refuse("a negated class inside a class");
        items += inner;
      } else if (in_[pos_] == '\\') {
        bool escape_negated = false;
        RUDDER_TRY(const std::string inner, escape_items(escape_negated, true));
        if (escape_negated) {
          RUDDER_TRY(const std::string spelled, negated_item(inner));
          items += spelled;
        } else {
          items += inner;
        }
      } else if (in_[pos_] == ']') {
        items += "\\]";
        ++pos_;
      } else {
        const size_t length = utf8_length(static_cast<unsigned char>(in_[pos_]));
        items += in_.substr(pos_, length);
        pos_ += length;
      }
    }
    ++pos_;
    return {};
  }

  // \S, \D, \P{..} inside a class: only a single property can be negated in place.
  Result<std::string> negated_item(const std::string& items) {
    if (items == R"(\p{White_Space})") return std::string(R"(\P{White_Space})");
    return refuse("a negated property inside a class");
  }

  Result<void> posix(std::string& items) {
    const size_t end = in_.find(":]", pos_);
    if (end == std::string_view::npos) return refuse("an unclosed posix bracket");
    const std::string_view name = in_.substr(pos_ + 2, end - pos_ - 2);
    for (const Alias& alias : kPosixNames) {
      if (alias.onig == name) {
        items += alias.pcre;
        if (name == "alpha" || name == "alnum") items += later_items("L");
        if (name == "digit" || name == "alnum") items += later_items("Nd");
        if (name == "upper") items += later_items("Lu");
        if (name == "lower") items += later_items("Ll");
        pos_ = end + 2;
        return {};
      }
    }
    return refuse(fmt::format("the posix bracket {}", name));
  }

  std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_ = 0;             // where the last atom begins in out_
  std::vector<size_t> groups_;  // where the open groups begin in out_
};

}  // namespace

Result<std::string> translate_onig(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace rudder::text
