#include "rudder/text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "rudder/base/utf8.h"
#include "rudder/text/jinja/strings.h"
#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_ascii_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// "\r\n" and "\r" become "\n", and one newline at the end goes.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : in_(source) {}

  Result<std::vector<Token>> run() {
    while (pos_ < in_.size()) {
      const size_t tag = find_tag();
      std::string_view text = std::string_view(in_).substr(pos_, tag - pos_);
      if (tag == in_.size()) {
        put_text(text);
        break;
      }
      const char kind = in_[tag + 1];
      const char sign = tag + 2 < in_.size() ? in_[tag + 2] : '\0';
      const size_t text_lines = pos_;
      if (sign == '-') {
        text = strip(text, nullptr, false, true);
      } else if (sign != '+' && kind != '{') {
        text = strip_line_start(text);
      }
      put_text(text);
      count_lines(text_lines, tag);
      pos_ = tag + 2 + ((sign == '-' || sign == '+') ? 1 : 0);
      line_starting_ = false;
      if (kind == '#') {
        RUDDER_TRY_VOID(comment());
      } else if (kind == '%' && take_raw_begin()) {
        RUDDER_TRY_VOID(raw());
      } else {
        RUDDER_TRY_VOID(tag_body(kind));
      }
    }
    put(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  tl::unexpected<Error> error(std::string_view what) const {
    return fail(ErrorCode::kInvalidArgument, fmt::format("chat template: {}", what),
                fmt::format("line {}", line_));
  }
  tl::unexpected<Error> unsupported(std::string_view what) const {
    return fail(ErrorCode::kUnsupported,
                fmt::format("chat template: {} is not in the supported subset of Jinja", what),
                fmt::format("line {}", line_));
  }
  void put(Token::Kind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }
  void put_text(std::string_view text) {
    if (!text.empty()) put(Token::Kind::kText, text);
  }
  void count_lines(size_t from, size_t to) {
    line_ += static_cast<int>(std::count(in_.begin() + static_cast<ptrdiff_t>(from),
                                         in_.begin() + static_cast<ptrdiff_t>(to), '\n'));
  }
  size_t find_tag() const {
    for (size_t at = in_.find('{', pos_); at != std::string::npos; at = in_.find('{', at + 1)) {
      const char next = at + 1 < in_.size() ? in_[at + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return in_.size();
  }

  // lstrip_blocks: blanks between the start of the line and a block or comment go.
  std::string_view strip_line_start(std::string_view text) const {
    const size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_starting_) return text;
    const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    return strip(text.substr(start), nullptr, true, false).empty() ? text.substr(0, start) : text;
  }

  // The first byte at or after `at` that is no white space.
  size_t skip_space(size_t at) const {
    const std::string_view rest = std::string_view(in_).substr(at);
    return in_.size() - strip(rest, nullptr, true, false).size();
  }

  // Takes the end of a tag at pos_ ("%}", "-%}", "+%}") with the whitespace that belongs to it.
  bool take_end(std::string_view end, bool trims_newline) {
    size_t at = pos_;
    const bool minus = in_[at] == '-';
    const bool plus = in_[at] == '+' && trims_newline;
    if (minus || plus) ++at;
    if (in_.compare(at, end.size(), end) != 0) return false;
    at += end.size();
    if (minus) {
      at = skip_space(at);
    } else if (!plus && trims_newline && at < in_.size() && in_[at] == '\n') {
      ++at;
    }
    count_lines(pos_, at);
    line_starting_ = in_[at - 1] == '\n';
    pos_ = at;
    return true;
  }

  Result<void> comment() {
    if (pos_ == in_.size()) return {};  // the reference lets it pass at the very end
    for (; pos_ < in_.size(); ++pos_) {
      const size_t start = pos_;
      if ((in_[pos_] == '#' || in_[pos_] == '-' || in_[pos_] == '+') && take_end("#}", true)) {
        return {};
      }
      count_lines(start, start + 1);
    }
    return error("a comment is not closed");
  }

  // Takes "raw %}" or "raw -%}" after the start of a tag. The newline after it stays.
  bool take_raw_begin() {
    size_t at = skip_space(pos_);
    if (in_.compare(at, 3, "raw") != 0) return false;
    at = skip_space(at + 3);
    const bool minus = in_.compare(at, 3, "-%}") == 0;
    if (!minus && in_.compare(at, 2, "%}") != 0) return false;
    at = minus ? skip_space(at + 3) : at + 2;
    count_lines(pos_, at);
    line_starting_ = in_[at - 1] == '\n';
    pos_ = at;
    return true;
  }

  Result<void> raw() {
    if (pos_ == in_.size()) return {};  // as of a comment
    for (size_t at = in_.find("{%", pos_); at != std::string::npos; at = in_.find("{%", at + 2)) {
      const char sign = at + 2 < in_.size() ? in_[at + 2] : '\0';
      const size_t name = skip_space(at + (sign == '-' || sign == '+' ? 3 : 2));
      if (in_.compare(name, 6, "endraw") != 0) continue;
      const size_t start = std::exchange(pos_, skip_space(name + 6));
      const bool line_starting = line_starting_;
      const int line = line_;
      if (pos_ >= in_.size() || !take_end("%}", true)) {
        pos_ = start;
        continue;
      }
      const size_t end = std::exchange(pos_, start);
      std::string_view text = std::string_view(in_).substr(start, at - start);
      line_ = line;
      if (sign == '-') {
        text = strip(text, nullptr, false, true);
      } else if (sign != '+') {
        const bool after = std::exchange(line_starting_, line_starting);
        text = strip_line_start(text);
        line_starting_ = after;
      }
      put_text(text);
      count_lines(start, end);
      pos_ = end;
      return {};
    }
    return error("a raw block is not closed");
  }

  Result<void> tag_body(char kind) {
    const bool block = kind == '%';
    put(block ? Token::Kind::kBlock : Token::Kind::kOutput, "");
    std::string open;  // brackets that are open: an end inside them is none
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (open.empty() && (c == '-' || c == '+' || c == (block ? '%' : '}')) &&
          take_end(block ? "%}" : "}}", block)) {
        put(block ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd, "");
        return {};
      }
      if (const size_t space = skip_space(pos_); space != pos_) {
        count_lines(pos_, space);
        pos_ = space;
      } else if (c == '"' || c == '\'') {
        RUDDER_TRY_VOID(string());
      } else if (is_digit(c)) {
        RUDDER_TRY_VOID(number());
      } else if (is_ascii_name(c) || static_cast<unsigned char>(c) >= 0x80) {
        RUDDER_TRY_VOID(name());
      } else {
        RUDDER_TRY_VOID(op(open));
      }
    }
    return error("a tag is not closed");
  }

  Result<void> op(std::string& open) {
    static constexpr std::array<std::string_view, 6> kDouble = {"==", "!=", ">=", "<=", "//", "**"};
    for (const std::string_view two : kDouble) {
      if (in_.compare(pos_, 2, two) == 0) {
        put(Token::Kind::kOperator, two);
        pos_ += 2;
        return {};
      }
    }
    const char c = in_[pos_];
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      return error(fmt::format("unexpected character '{}'", c));
    }
    if (c == '(' || c == '[' || c == '{') {
      open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) return error(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    put(Token::Kind::kOperator, std::string_view(in_).substr(pos_, 1));
    ++pos_;
    return {};
  }

  Result<void> name() {
    const size_t start = pos_;
    while (pos_ < in_.size()) {
      size_t next = pos_;
      const char32_t c = next_char(in_, next);
      if (c < 0x80 ? !is_ascii_name(static_cast<char>(c)) : !is_word_char(c)) break;
      pos_ = next;
    }
    size_t second = start;
    const char32_t first = next_char(in_, second);
    const bool starts =
        first < 0x80 || (char_flags()[first] & kLetter) != 0 || category(first) == Category::kNl;
    if (pos_ == start || !starts) return error("unexpected character");
    put(Token::Kind::kName, std::string_view(in_).substr(start, pos_ - start));
    return {};
  }

  // The end of the digits at `at`, which may have single underscores between them.
  template <typename IsDigit>
  size_t digits_end(size_t at, IsDigit is_one) const {
    while (at < in_.size()) {
      const size_t next = at + (in_[at] == '_' ? 1 : 0);
      if (next >= in_.size() || !is_one(in_[next])) break;
      at = next + 1;
    }
    return at;
  }

  Result<void> number() {
    const bool after_dot = pos_ > 0 && in_[pos_ - 1] == '.';
    const size_t whole = digits_end(pos_, is_digit);
    size_t end = whole;
    if (!after_dot && end + 1 < in_.size() && in_[end] == '.' && is_digit(in_[end + 1])) {
      end = digits_end(end + 1, is_digit);
    }
    if (!after_dot && end < in_.size() && (in_[end] | 32) == 'e') {
      size_t exponent = end + 1;
      if (exponent < in_.size() && (in_[exponent] == '+' || in_[exponent] == '-')) ++exponent;
      if (exponent < in_.size() && is_digit(in_[exponent])) end = digits_end(exponent, is_digit);
    }
    const auto put_number = [this](Token::Kind kind, size_t to) {
      std::string digits = in_.substr(pos_, to - pos_);
      std::erase(digits, '_');
      put(kind, digits);
      pos_ = to;
    };
    if (end > whole) {
      put_number(Token::Kind::kFloat, end);
      return {};
    }
    const char letter = whole == pos_ + 1 && in_[pos_] == '0' && whole < in_.size()
                            ? static_cast<char>(in_[whole] | 32)
                            : '\0';
    const auto is_based = [letter](char c) {
      if (letter == 'x') return std::isxdigit(static_cast<unsigned char>(c)) != 0;
      return c >= '0' && c <= (letter == 'b' ? '1' : '7');
    };
    if (letter == 'x' || letter == 'o' || letter == 'b') end = digits_end(whole + 1, is_based);
    if (end > whole + 1) {
      put_number(Token::Kind::kInteger, end);
    } else if (in_[pos_] == '0') {  // zeros only: what follows is another number
      put_number(Token::Kind::kInteger, digits_end(pos_, [](char c) { return c == '0'; }));
    } else {
      put_number(Token::Kind::kInteger, whole);
    }
    return {};
  }

  // Python's escapes; an unknown one keeps its backslash.
  Result<void> string() {
    const char quote = in_[pos_++];
    const int line = line_;
    std::string text;
    for (;;) {
      if (pos_ >= in_.size()) return error("a string is not closed");
      const char c = in_[pos_++];
      if (c == quote) break;
      if (c == '\n') ++line_;
      if (c != '\\' || pos_ >= in_.size()) {
        text.push_back(c);
        continue;
      }
      RUDDER_TRY_VOID(escape(text));
    }
    tokens_.push_back({Token::Kind::kString, std::move(text), line});
    return {};
  }

  // What follows a backslash.
  Result<void> escape(std::string& text) {
    static constexpr std::string_view kFrom = "ntrbfav\\'\"";
    static constexpr std::string_view kTo = "\n\t\r\b\f\a\v\\'\"";
    const size_t start = pos_;
    const char32_t c = next_char(in_, pos_);
    const char letter = c < 0x80 ? static_cast<char>(c) : '\0';
    const size_t simple = letter != '\0' ? kFrom.find(letter) : std::string_view::npos;
    const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (simple != std::string_view::npos) {
      text.push_back(kTo[simple]);
    } else if (digits > 0) {
      RUDDER_TRY(const char32_t code, hex(digits));
      append_utf8(text, code);
    } else if (letter >= '0' && letter <= '7') {
      char32_t code = 0;
      for (pos_ = start; pos_ < start + 3 && in_[pos_] >= '0' && in_[pos_] <= '7'; ++pos_) {
        code = code * 8 + static_cast<char32_t>(in_[pos_] - '0');
      }
      append_utf8(text, code);
    } else if (letter == '\n') {
      ++line_;
    } else if (letter == 'N') {
      return unsupported("the string escape \\N");
    } else if (letter != '\0') {
      text += {'\\', letter};
    } else {  // the reference escapes the character first, and then reads that
      const auto code = static_cast<uint32_t>(c);
      text += code < 0x100     ? fmt::format("\\x{:02x}", code)
              : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                               : fmt::format("\\U{:08x}", code);
    }
    return {};
  }

  Result<char32_t> hex(size_t digits) {
    char32_t code = 0;
    for (size_t i = 0; i < digits; ++i, ++pos_) {
      const char c = pos_ < in_.size() ? in_[pos_] : '\0';
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return error("a bad string escape");
      code = code * 16 + static_cast<char32_t>(is_digit(c) ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (code > 0x10FFFF) return error("a bad string escape");
    if (code >= 0xD800 && code < 0xE000) return unsupported("a surrogate in a string");
    return code;
  }

  std::string in_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last token ended a line
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (const auto bad = find_invalid_utf8(source)) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("chat template is not UTF-8 at byte {}", *bad));
  }
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace rudder::text::jinja
