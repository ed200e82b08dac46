#include "rudder/dialect/loose_literals.h"

#include <algorithm>
#include <cctype>

#include "rudder/base/json.h"
#include "rudder/dialect/json_scanner.h"

namespace rudder::dialect {
namespace {

constexpr int kMaxLooseDepth = 64;

bool is_name_byte(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  return std::isalnum(code) != 0 || byte == '_' || code >= 0x80;
}

// Reads down a text that is whole. Each take_* is false, or empty, where the text does not go on
// so; the reader is then of no further use.
class LooseParser {
 public:
  explicit LooseParser(std::string_view text) : text_(text) {}

  void skip_blanks() {
    while (!text_.empty() && is_blank(text_.front())) text_.remove_prefix(1);
  }
  bool take(std::string_view what) {
    if (!text_.starts_with(what)) return false;
    text_.remove_prefix(what.size());
    return true;
  }
  bool at_end() {
    skip_blanks();
    return text_.empty();
  }

  std::string take_name(std::string_view more = "_") {
    size_t length = 0;
    while (length < text_.size() &&
           (is_name_byte(text_[length]) || more.find(text_[length]) != std::string_view::npos)) {
      ++length;
    }
    std::string name(text_.substr(0, length));
    text_.remove_prefix(length);
    return name;
  }

  // Names and values of a call up to its parenthesis, as the inside of a JSON object.
  bool take_arguments(std::string* out);
  bool take_value(std::string* out);

 private:
  bool take_items(char close, std::string* out);
  bool take_string(std::string* out);
  bool take_quoted(char quote, std::string* decoded);
  bool take_escape(std::string* decoded);
  bool take_word(std::string* out);
  bool take_number(std::string* out);
  bool take_key(std::string* out);
  bool take_nothing(std::string* out);
  bool take_close(char close);

  std::string_view text_;
  int depth_ = 0;
};

void append_code_point(std::string& out, std::string_view hex) {
  // The JSON reader knows how: its escapes are the same for four digits.
  JsonStringReader reader;
  for (const char byte : "\\u" + std::string(4 - hex.size(), '0') + std::string(hex)) {
    reader.push(byte, &out);
  }
}

bool LooseParser::take_escape(std::string* decoded) {
  constexpr std::string_view kNames = "\\'\"abfnrtv/\n";
  constexpr std::string_view kMeant = "\\'\"\a\b\f\n\r\t\v/";
  if (text_.empty()) return false;
  const char name = text_.front();
  text_.remove_prefix(1);
  if (name == 'u' || name == 'x') {
    const size_t digits = name == 'u' ? 4 : 2;
    const std::string_view hex = text_.substr(0, digits);
    const bool all_hex = hex.size() == digits && std::all_of(hex.begin(), hex.end(), [](char ch) {
                           return std::isxdigit(static_cast<unsigned char>(ch)) != 0;
                         });
    if (!all_hex) return false;
    append_code_point(*decoded, hex);
    text_.remove_prefix(digits);
    return true;
  }
  const size_t at = kNames.find(name);
  if (at == std::string_view::npos) {
    *decoded += {'\\', name};  // as Python has it
  } else if (at < kMeant.size()) {
    decoded->push_back(kMeant[at]);
  }
  return true;
}

bool LooseParser::take_quoted(char quote, std::string* decoded) {
  const std::string triple(3, quote);
  const std::string end = take(triple) ? triple : std::string(1, quote);
  if (end.size() == 1) text_.remove_prefix(1);
  while (!text_.empty()) {
    if (take(end)) return true;
    const char byte = text_.front();
    text_.remove_prefix(1);
    if (byte != '\\') {
      decoded->push_back(byte);
    } else if (!take_escape(decoded)) {
      return false;
    }
  }
  return false;
}

bool LooseParser::take_string(std::string* out) {
  std::string decoded;
  const bool is_whole = take_quoted(text_.front(), &decoded);
  append_json_string(*out, decoded);
  if (!is_whole) out->pop_back();  // it has no end
  return is_whole;
}

bool LooseParser::take_word(std::string* out) {
  const std::string word = take_name();
  if (word == "True" || word == "true") {
    *out += "true";
  } else if (word == "False" || word == "false") {
    *out += "false";
  } else if (word == "None" || word == "null") {
    *out += "null";
  } else {
    return false;
  }
  return true;
}

bool LooseParser::take_number(std::string* out) {
  size_t length = text_.find_first_not_of("+-.0123456789eE_");
  if (length == std::string_view::npos) length = text_.size();
  std::string number(text_.substr(0, length));
  text_.remove_prefix(length);
  std::erase(number, '_');
  if (number.starts_with('+')) number.erase(0, 1);
  if (number.ends_with('.')) number.push_back('0');
  if (number.starts_with('.')) number.insert(0, "0");
  if (number.starts_with("-.")) number.insert(1, "0");
  JsonScanner scanner;
  for (const char byte : number) {
    if (scanner.push(byte) != JsonScanner::Step::kMore) return false;
  }
  if (scanner.push(' ') != JsonScanner::Step::kDoneBefore) return false;
  *out += number;
  return true;
}

bool LooseParser::take_key(std::string* out) {
  if (text_.starts_with('"') || text_.starts_with('\'')) return take_string(out);
  const std::string name = take_name("_-$");  // without quotes, as JavaScript has it
  if (!name.empty()) append_json_string(*out, name);
  return !name.empty();
}

// The items of a list, a tuple or a dictionary, from after its opening bracket.
bool LooseParser::take_items(char close, std::string* out) {
  out->push_back(close == '}' ? '{' : '[');
  bool first = true;
  while (true) {
    skip_blanks();
    if (take_close(close)) break;
    if (!first) {
      if (!take(",")) return false;
      skip_blanks();
      if (take_close(close)) break;
      *out += ", ";
    }
    first = false;
    if (close == '}') {
      if (!take_key(out)) return false;
      skip_blanks();
      if (!take(":")) return false;
      *out += ": ";
      if (take_nothing(out)) continue;
    }
    if (!take_value(out)) return false;
  }
  out->push_back(close == '}' ? '}' : ']');
  return true;
}

// A value that is missing is null.
bool LooseParser::take_nothing(std::string* out) {
  skip_blanks();
  if (text_.empty() || std::string_view(",}])").find(text_.front()) == std::string_view::npos) {
    return false;
  }
  *out += "null";
  return true;
}

// The end of what stands in brackets: where a bracket around it closes, its own is missing.
bool LooseParser::take_close(char close) {
  if (take(std::string_view(&close, 1))) return true;
  return depth_ > 0 && !text_.empty() &&
         std::string_view("}])").find(text_.front()) != std::string_view::npos;
}

bool LooseParser::take_value(std::string* out) {
  skip_blanks();
  if (text_.empty() || depth_ == kMaxLooseDepth) return false;
  const char byte = text_.front();
  if (byte == '"' || byte == '\'') return take_string(out);
  if (byte == '[' || byte == '{' || byte == '(') {
    text_.remove_prefix(1);
    ++depth_;
    const bool taken = take_items(byte == '[' ? ']' : byte == '{' ? '}' : ')', out);
    --depth_;
    return taken;
  }
  if (std::isalpha(static_cast<unsigned char>(byte)) != 0) return take_word(out);
  return take_number(out);
}

bool LooseParser::take_arguments(std::string* out) {
  bool first = true;
  while (true) {
    skip_blanks();
    if (take(")")) return true;
    if (!first) {
      if (!take(",")) return false;
      skip_blanks();
      if (take(")")) return true;
      *out += ", ";
    }
    first = false;
    const std::string name = take_name();
    if (name.empty()) return false;
    append_json_string(*out, name);
    skip_blanks();
    if (!take("=") && !take(":")) return false;
    *out += ": ";
    if (take_nothing(out)) continue;
    if (!take_value(out)) return false;
  }
}

std::string_view without_print(std::string_view text) {
  constexpr std::string_view kPrint = "print(";
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  if (!text.starts_with(kPrint) || !text.ends_with(')')) return text;
  text.remove_prefix(kPrint.size());
  text.remove_suffix(1);
  return text;
}

}  // namespace

std::optional<std::string> parse_python_value(std::string_view text) {
  LooseParser parser(text);
  std::string value;
  if (!parser.take_value(&value) || !parser.at_end()) return std::nullopt;
  return value;
}

std::optional<std::string> parse_python_object(std::string_view text) {
  LooseParser parser(text);
  std::string value;
  if (!parser.take_value(&value) || !value.starts_with('{')) return std::nullopt;
  while (parser.take("}") || parser.take("]") || parser.take(" ") || parser.take("\n")) {
  }
  if (!parser.at_end()) return std::nullopt;
  return value;
}

std::optional<LooseCall> parse_python_call(std::string_view text, bool is_cut) {
  LooseParser parser(is_cut ? text : without_print(text));
  LooseCall call;
  parser.skip_blanks();
  call.name = parser.take_name("_.-");
  parser.skip_blanks();
  if (call.name.empty() || !parser.take("(")) return std::nullopt;
  call.arguments = "{";
  const bool is_whole = parser.take_arguments(&call.arguments) && parser.at_end();
  if (is_cut) return call;
  if (!is_whole) return std::nullopt;
  call.arguments.push_back('}');
  return call;
}

}  // namespace rudder::dialect
