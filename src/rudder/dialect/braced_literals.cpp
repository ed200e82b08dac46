#include "rudder/dialect/braced_literals.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "rudder/base/json.h"
#include "rudder/dialect/json_scanner.h"

namespace rudder::dialect {

bool begins_call_mark(std::string_view text) {
  return text.size() <= kCallMark.size() &&
         std::equal(text.begin(), text.end(), kCallMark.begin(), [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) == b;
         });
}

bool is_call_mark(std::string_view text) {
  return text.size() == kCallMark.size() && begins_call_mark(text);
}

namespace internal {
namespace {

constexpr int kMaxBracedDepth = 64;  // of lists and objects in one another

bool is_braced_name_byte(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  return std::isalnum(code) != 0 || code >= 0x80 ||
         std::string_view("_.-$").find(byte) != std::string_view::npos;
}

// The word of a call's mark, in front of `text`: the bytes of it.
size_t call_length(std::string_view text) {
  constexpr size_t kWord = kCallMark.size() - 1;
  return text.size() >= kWord && begins_call_mark(text.substr(0, kWord)) ? kWord : 0;
}

size_t name_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && is_braced_name_byte(text[length])) ++length;
  return length;
}

}  // namespace

void BracedParser::skip_blanks() {
  while (!text_.empty() && is_blank(text_.front())) text_.remove_prefix(1);
}

bool BracedParser::take(std::string_view what) {
  if (!at(what)) return false;
  text_.remove_prefix(what.size());
  return true;
}

bool BracedParser::at_end() {
  while (!text_.empty() && (is_blank(text_.front()) || at_any("}]),;"))) text_.remove_prefix(1);
  return text_.empty();
}

std::string BracedParser::take_name(bool* is_marked) {
  skip_blanks();
  std::string_view rest = text_;
  if (const size_t call = call_length(rest); call > 0) {
    rest.remove_prefix(call);
    while (!rest.empty() && is_blank(rest.front())) rest.remove_prefix(1);
    if (rest.starts_with(':')) {
      *is_marked = true;
      text_ = rest.substr(1);
    } else if (rest.size() + call < text_.size()) {
      text_ = rest;  // its colon alone is missing
    }
  } else if (take(":")) {
    *is_marked = true;  // its word alone
  }
  skip_blanks();
  const size_t length = name_length(text_);
  tool_ = text_.substr(0, length);
  text_.remove_prefix(length);
  if (*is_marked && call_length(tool_) == tool_.size() && at(":")) {  // the mark once more
    text_.remove_prefix(1);
    return take_name(is_marked);
  }
  return tool_;
}

bool BracedParser::at_arguments() {
  skip_blanks();
  std::string_view behind = text_;
  if (behind.starts_with(':')) behind.remove_prefix(1);
  while (!behind.empty() && is_blank(behind.front())) behind.remove_prefix(1);
  if (behind.starts_with('{') || behind.starts_with('(')) text_ = behind;
  return at("{") || (at("(") && begins_arguments());
}

// Whether what stands in the parentheses is arguments by name, or none, or an
// object of them: prose stands in parentheses too.
bool BracedParser::begins_arguments() const {
  std::string_view inside = text_.substr(1);
  while (!inside.empty() && is_blank(inside.front())) inside.remove_prefix(1);
  if (inside.starts_with('{') || inside.starts_with(')') || begins_pair(inside)) return true;
  return is_cut_ && name_length(inside) == inside.size();
}

bool BracedParser::take_arguments(std::string* out) {
  in_parentheses_ = false;
  if (take("(")) {
    skip_blanks();
    in_parentheses_ = !at("{");
  }
  return take_pairs(out);
}

std::string BracedParser::take_key() {
  for (const std::string_view quote : {quote_, std::string_view("\""), std::string_view("'")}) {
    if (!at(quote)) continue;
    const size_t end = text_.find(quote, quote.size());
    if (end == std::string_view::npos) break;
    std::string key(text_.substr(quote.size(), end - quote.size()));
    text_.remove_prefix(end + quote.size());
    return key;
  }
  const size_t length = name_length(text_);
  std::string key(text_.substr(0, length));
  text_.remove_prefix(length);
  return key;
}

// Bytes of a key that is no name, as paths of files are, in front of its colon:
// nothing before that begins a value or another pair. 0: none stands there.
size_t BracedParser::loose_key_length(std::string_view text) const {
  constexpr size_t kLongest = 256;
  const size_t end = text.substr(0, kLongest).find_first_of(":=,{}[]()\"'\n");
  if (end == std::string_view::npos || text[end] != ':') return 0;
  return text.substr(0, end).find(quote_) == std::string_view::npos ? end : 0;
}

// Of a key of `loose` bytes that begins with a name of `name` bytes and a
// blank: whether its colon is one of the value, and that behind the name is
// missing. So where the name is an argument of the tool and the whole is none,
// and where the value is a time or an address.
bool BracedParser::lacks_colon(size_t name, size_t loose) const {
  if (name == 0 || name >= loose || !is_blank(text_[name])) return false;
  if (depth_ == 0 && !sink_.may_have(tool_, trimmed(text_.substr(0, loose))) &&
      sink_.may_have(tool_, text_.substr(0, name))) {
    return true;
  }
  const auto is_digit = [&](size_t at) {
    return std::isdigit(static_cast<unsigned char>(text_[at]));
  };
  const std::string_view behind = text_.substr(loose + 1);
  const bool is_time = is_digit(loose - 1) != 0 && !behind.empty() && is_digit(loose + 1) != 0;
  return is_time || behind.starts_with("//");
}

// A key as take_key() reads it, or one that is no name.
std::string BracedParser::take_any_key() {
  const size_t loose = begins_pair(text_) ? 0 : loose_key_length(text_);
  if (loose == 0 || lacks_colon(name_length(text_), loose)) return take_key();
  std::string key(text_.substr(0, loose));
  text_.remove_prefix(loose);
  return key;
}

// Whether a key and its colon stand at the beginning of `text`.
bool BracedParser::begins_pair(std::string_view text) const {
  BracedParser ahead(text, quote_, false, sink_);
  ahead.skip_blanks();
  if (ahead.take_key().empty()) return false;
  ahead.skip_blanks();
  return ahead.at(":") || ahead.at("=");
}

bool BracedParser::take_pairs(std::string* out) {
  take("{");
  *out += '{';
  bool first = true;
  while (true) {
    while (!text_.empty() && (is_blank(text_.front()) || at(","))) text_.remove_prefix(1);
    if (text_.empty()) {
      if (is_cut_) return false;
      break;  // a brace too few
    }
    if (closes(text_.front())) {
      text_.remove_prefix(1);
      break;
    }
    if (at_any("])")) {  // of what is around it, or one too many
      if (depth_ > 0) break;
      text_.remove_prefix(1);
      continue;
    }
    const std::string key = take_any_key();
    if (key.empty()) {
      text_.remove_prefix(1);  // of no key: passed over
      continue;
    }
    skip_blanks();
    if (text_.empty() && is_cut_) return false;  // it may go on
    if (!first) *out += ", ";
    first = false;
    append_json_string(*out, key);
    *out += ": ";
    if (!take(":")) take("=");
    if (!take_value(out, false)) return false;
  }
  *out += '}';
  return true;
}

bool BracedParser::take_items(std::string* out) {
  take("[");
  *out += '[';
  bool first = true;
  while (true) {
    while (!text_.empty() && (is_blank(text_.front()) || at(","))) text_.remove_prefix(1);
    if (take("]")) break;
    if (text_.empty()) {
      if (is_cut_) return false;
      break;
    }
    if (at_any("})")) break;
    if (!first) *out += ", ";
    first = false;
    if (!take_value(out, true)) return false;
  }
  *out += ']';
  return true;
}

bool BracedParser::take_string(std::string_view end, std::string* out) {
  text_.remove_prefix(end.size());
  const bool escapes = end != quote_;
  std::string decoded;
  while (!text_.empty() && !at(end)) {
    if (escapes && at("\\") && text_.size() > 1) {
      text_.remove_prefix(1);
      const size_t known = std::string_view("nrt").find(text_.front());
      decoded.push_back(known == std::string_view::npos ? text_.front() : "\n\r\t"[known]);
    } else {
      decoded.push_back(text_.front());
    }
    text_.remove_prefix(1);
  }
  const bool is_whole = take(end);
  // Its end alone is missing: the brackets behind it are not of the string.
  if (!is_whole && !is_cut_) {
    while (!decoded.empty() && (is_blank(decoded.back()) || closes(decoded.back()))) {
      decoded.pop_back();
    }
  }
  append_json_string(*out, decoded);
  if (is_whole || !is_cut_) return true;
  out->pop_back();
  return false;
}

// Whether the comma behind a value of `length` bytes without quotes ends it.
// Behind what is no string a key may be any text.
bool BracedParser::begins_pair_behind(size_t length) const {
  constexpr size_t kLongestNumber = 32;
  std::string_view rest = text_.substr(length + 1);
  while (!rest.empty() && (is_blank(rest.front()) || rest.front() == ',')) rest.remove_prefix(1);
  if (begins_pair(rest)) return true;
  const size_t loose = loose_key_length(rest);
  if (length > kLongestNumber || loose == 0) return false;
  const BracedParser ahead(rest, quote_, false, sink_);
  return parse_python_value(text_.substr(0, length)).has_value() ||
         ahead.lacks_colon(name_length(rest), loose);
}

// A word, a number, or a string without quotes.
void BracedParser::take_bare(std::string* out, bool in_list) {
  size_t length = 0;
  int opened = 0;  // parentheses
  while (length < text_.size() && (opened > 0 || !closes(text_[length]))) {
    if (text_[length] == '}') break;
    if (text_[length] == '(') ++opened;
    if (text_[length] == ')') --opened;
    if (in_list && (text_[length] == ',' || text_[length] == ']')) break;
    if (!in_list && text_[length] == ',' && begins_pair_behind(length)) break;
    const bool is_first_comma = text_[length] == ',' && (length == 0 || text_[length - 1] != ',');
    if (is_first_comma &&
        text_.find_first_not_of(in_parentheses_ ? " \n\r\t,)" : " \n\r\t,}", length) == text_.npos)
      break;
    ++length;
  }
  std::string_view word = text_.substr(0, length);
  text_.remove_prefix(length);
  while (!word.empty() && is_blank(word.back())) word.remove_suffix(1);
  const bool may_go_on = is_cut_ && text_.empty();
  if (may_go_on && word.find_first_not_of("+-.0123456789eE") != std::string_view::npos) {
    append_json_string(*out, word);
    out->pop_back();
  } else if (std::optional<std::string> literal = parse_python_value(word)) {
    *out += *literal;
  } else if (!may_go_on) {
    append_json_string(*out, word);
  }
}

// False where the value may go on behind the cut.
bool BracedParser::take_value(std::string* out, bool in_list) {
  skip_blanks();
  if (text_.empty()) {
    if (is_cut_) return false;
    *out += "null";
    return true;
  }
  if (at_any(",}])")) {
    *out += "null";
    return true;
  }
  if (at(quote_)) return take_string(quote_, out);
  if (at("\"") || at("'")) return take_string(text_.substr(0, 1), out);
  if ((at("[") || at("{")) && depth_ < kMaxBracedDepth) {
    ++depth_;
    const bool is_whole = at("[") ? take_items(out) : take_pairs(out);
    --depth_;
    return is_whole;
  }
  take_bare(out, in_list);
  return !is_cut_ || !text_.empty();
}

}  // namespace internal

BracedCalls parse_braced_calls(std::string_view text, std::string_view quote, bool is_cut,
                               const CallSink& sink) {
  internal::BracedParser parser(text, quote, is_cut, sink);
  BracedCalls found;
  while (!parser.at_end()) {
    const std::string_view rest = parser.rest();
    bool is_marked = false;
    LooseCall call;
    call.name = parser.take_name(&is_marked);
    const bool has_arguments = !call.name.empty() && parser.at_arguments();
    bool may_be = has_arguments ? is_marked || sink.knows(call.name) : is_marked && !is_cut;
    bool is_whole = true;
    if (call.name.empty()) {
      may_be = false;
    } else if (has_arguments && may_be) {
      is_whole = parser.take_arguments(&call.arguments);
    } else if (may_be) {
      call.arguments = "{}";
      may_be = parser.at_end();  // else prose
    }
    if (!may_be) {
      found.behind = rest;
      break;
    }
    found.calls.push_back(std::move(call));
    if (!is_whole) break;
  }
  return found;
}

}  // namespace rudder::dialect
