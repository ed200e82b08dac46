#include "rudder/text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_name(char c) {
  return is_name_start(c) || is_digit(c);
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
        while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
      } else if (sign != '+' && kind != '{') {
        text = strip_line_start(text);
      }
      put_text(text);
      count_lines(text_lines, tag);
      pos_ = tag + 2 + ((sign == '-' || sign == '+') ? 1 : 0);
      line_starting_ = false;
      if (kind == '#') {
        RUDDER_TRY_VOID(comment());
      } else if (kind == '%' && at_raw()) {
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
    return std::all_of(text.begin() + static_cast<ptrdiff_t>(start), text.end(), is_space)
               ? text.substr(0, start)
               : text;
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
      while (at < in_.size() && is_space(in_[at])) ++at;
    } else if (!plus && trims_newline && at < in_.size() && in_[at] == '\n') {
      ++at;
    }
    count_lines(pos_, at);
    line_starting_ = in_[at - 1] == '\n';
    pos_ = at;
    return true;
  }

  Result<void> comment() {
    for (; pos_ < in_.size(); ++pos_) {
      const size_t start = pos_;
      if ((in_[pos_] == '#' || in_[pos_] == '-' || in_[pos_] == '+') && take_end("#}", true)) {
        return {};
      }
      count_lines(start, start + 1);
    }
    return error("a comment is not closed");
  }

  bool at_raw() const {
    size_t at = pos_;
    while (at < in_.size() && is_space(in_[at])) ++at;
    return in_.compare(at, 3, "raw") == 0 && at + 3 < in_.size() && !is_name(in_[at + 3]);
  }

  Result<void> raw() {
    pos_ = in_.find("raw", pos_) + 3;
    while (pos_ < in_.size() && is_space(in_[pos_])) ++pos_;
    if (pos_ >= in_.size() || !take_end("%}", true)) return error("a raw tag is not closed");
    for (size_t at = in_.find("{%", pos_); at != std::string::npos; at = in_.find("{%", at + 2)) {
      size_t name = at + 2;
      const char sign = name < in_.size() ? in_[name] : '\0';
      if (sign == '-' || sign == '+') ++name;
      while (name < in_.size() && is_space(in_[name])) ++name;
      if (in_.compare(name, 6, "endraw") != 0) continue;
      std::string_view text = std::string_view(in_).substr(pos_, at - pos_);
      if (sign == '-') {
        while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
      } else if (sign != '+') {
        text = strip_line_start(text);
      }
      put_text(text);
      count_lines(pos_, name + 6);
      pos_ = name + 6;
      while (pos_ < in_.size() && is_space(in_[pos_])) ++pos_;
      if (pos_ >= in_.size() || !take_end("%}", true)) break;
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
      if (is_space(c)) {
        if (c == '\n') ++line_;
        ++pos_;
      } else if (c == '"' || c == '\'') {
        RUDDER_TRY_VOID(string());
      } else if (is_digit(c)) {
        number();
      } else if (is_name_start(c)) {
        const size_t start = pos_;
        while (pos_ < in_.size() && is_name(in_[pos_])) ++pos_;
        put(Token::Kind::kName, std::string_view(in_).substr(start, pos_ - start));
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

  void number() {
    std::string digits;
    bool is_float = false;
    const auto take_digits = [&] {
      while (pos_ < in_.size() && (is_digit(in_[pos_]) || in_[pos_] == '_')) {
        if (in_[pos_] != '_') digits.push_back(in_[pos_]);
        ++pos_;
      }
    };
    take_digits();
    if (pos_ + 1 < in_.size() && in_[pos_] == '.' && is_digit(in_[pos_ + 1])) {
      is_float = true;
      digits.push_back(in_[pos_++]);
      take_digits();
    }
    if (pos_ < in_.size() && (in_[pos_] | 32) == 'e') {
      size_t exponent = pos_ + 1;
      if (exponent < in_.size() && (in_[exponent] == '+' || in_[exponent] == '-')) ++exponent;
      if (exponent < in_.size() && is_digit(in_[exponent])) {
        is_float = true;
        digits.append(in_, pos_, exponent - pos_);
        pos_ = exponent;
        take_digits();
      }
    }
    put(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, digits);
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
      const char escape = in_[pos_++];
      static constexpr std::string_view kFrom = "ntrbfav0\\'\"";
      static constexpr std::string_view kTo("\n\t\r\b\f\a\v\0\\'\"", 11);
      const size_t simple = kFrom.find(escape);
      const size_t digits = escape == 'x' ? 2 : escape == 'u' ? 4 : escape == 'U' ? 8 : 0;
      if (simple != std::string_view::npos) {
        text.push_back(kTo[simple]);
      } else if (digits > 0) {
        RUDDER_TRY(const char32_t code, hex(digits));
        append_utf8(text, code);
      } else if (escape == '\n') {
        ++line_;
      } else {
        text += {'\\', escape};
      }
    }
    tokens_.push_back({Token::Kind::kString, std::move(text), line});
    return {};
  }

  Result<char32_t> hex(size_t digits) {
    char32_t code = 0;
    for (size_t i = 0; i < digits; ++i, ++pos_) {
      const char c = pos_ < in_.size() ? in_[pos_] : '\0';
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return error("a bad string escape");
      code = code * 16 + static_cast<char32_t>(is_digit(c) ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return error("a bad string escape");
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
