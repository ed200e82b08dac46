// The methods of strings. Text marked as safe gives such text again, and escapes what is put in.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rudder/base/utf8.h"
#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/interpreter.h"
#include "rudder/text/jinja/printf.h"
#include "rudder/text/jinja/strings.h"
#include "rudder/text/unicode.h"

namespace rudder::text::jinja {
namespace {

Value like(Interpreter& in, const Value& self, std::string text) {
  return in.string(std::move(text), self.is_markup());
}

// What is put into `self`.
std::string inserted(const Value& self, const Value& text) {
  const bool escapes = self.is_markup() && !text.is_markup();
  return escapes ? escape_html(text.text()) : std::string(text.text());
}

template <std::string (*kMap)(std::string_view)>
Value mapped(Interpreter& in, const Value& self, const Args&) {
  in.budget().check(self.text().size() * 3);
  return like(in, self, kMap(self.text()));
}

Value parts_of(Interpreter& in, const Value& self, const std::vector<std::string_view>& parts,
               bool tuple = false) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(like(in, self, std::string(part)));
  return tuple ? in.tuple(std::move(items)) : in.list(std::move(items));
}

void check_parts(Interpreter& in, std::string_view text, const std::string_view* separator) {
  in.budget().check(count_parts(text, separator) * (sizeof(Value) + sizeof(StringBox)));
}

template <bool kBack>
Value split_method(Interpreter& in, const Value& self, const Args& args) {
  const auto limit = static_cast<int64_t>(std::clamp<Int>(args.integer(1, -1), -1, Int{1} << 62));
  const auto cut = kBack ? split_back : split;
  if (!args.holds(0)) {
    check_parts(in, self.text(), nullptr);
    return parts_of(in, self, cut(self.text(), nullptr, limit));
  }
  const std::string_view separator = args.text(0);
  if (separator.empty()) raise("empty separator");
  check_parts(in, self.text(), &separator);
  if (kBack) in.budget().spend(1 + self.text().size() / 64 * (separator.size() / 64 + 1));
  return parts_of(in, self, cut(self.text(), &separator, limit));
}

Value split_lines_method(Interpreter& in, const Value& self, const Args& args) {
  const bool keep = args.has(0) && args.integer(0) != 0;
  in.budget().check(self.text().size() / 2 * sizeof(std::string_view));
  const auto lines = split_lines(self.text(), keep);
  in.budget().check(lines.size() * (sizeof(Value) + sizeof(StringBox)));
  return parts_of(in, self, lines);
}

template <bool kLeft, bool kRight>
Value strip_method(Interpreter& in, const Value& self, const Args& args) {
  if (!args.holds(0)) {
    return like(in, self, std::string(strip(self.text(), nullptr, kLeft, kRight)));
  }
  const std::string_view set = args.text(0);
  in.budget().spend(1 + self.text().size() * (set.size() + 1) / 64);
  return like(in, self, std::string(strip(self.text(), &set, kLeft, kRight)));
}

// The part of a text that the arguments start and end choose, in characters.
struct Window {
  std::string_view text;
  Int start = 0;
  bool exists = true;  // start is not behind the end
};

Window window(const Value& self, const Args& args) {
  const std::string_view text = self.text();
  const Int count = static_cast<Int>(text_length(text));
  const auto index_or = [&](size_t index, Int fallback) {
    if (!args.holds(index)) return fallback;
    const Int given = args.integer(index);
    return given < 0 ? std::max<Int>(given + count, 0) : given;
  };
  const Int start = index_or(1, 0), end = std::min(index_or(2, count), count);
  if (start > end) return {{}, start, false};
  const auto offset = [text](Int index) {
    size_t pos = 0;
    for (; index > 0; --index) pos += utf8_length(static_cast<unsigned char>(text[pos]));
    return pos;
  };
  const size_t begin = offset(start);
  return {text.substr(begin, offset(end) - begin), start};
}

// The last place, in a time that may be the product of both lengths.
size_t find_back(Interpreter& in, std::string_view text, std::string_view part) {
  in.budget().spend(1 + text.size() / 64 * (part.size() / 64 + 1));
  return text.rfind(part);
}

enum class Find { kFind, kBack, kIndex, kBackIndex };
template <Find kKind>
Value search_method(Interpreter& in, const Value& self, const Args& args) {
  const std::string_view needle = args.text(0);
  const Window where = window(self, args);
  const bool back = kKind == Find::kBack || kKind == Find::kBackIndex;
  const size_t at = !where.exists ? std::string_view::npos
                    : back        ? find_back(in, where.text, needle)
                                  : find_text(where.text, needle);
  if (at != std::string_view::npos) {
    return where.start + static_cast<Int>(text_length(where.text.substr(0, at)));
  }
  if (kKind == Find::kIndex || kKind == Find::kBackIndex) raise("substring not found");
  return -1;
}

Value count_method(Interpreter&, const Value& self, const Args& args) {
  const std::string_view needle = args.text(0);
  const Window where = window(self, args);
  if (!where.exists) return 0;
  if (needle.empty()) return text_length(where.text) + 1;
  return count_parts(where.text, &needle) - 1;
}

template <bool kFront>
Value affix_method(Interpreter&, const Value& self, const Args& args) {
  const Window where = window(self, args);
  const auto matches = [&where](const Value& affix) {
    if (!affix.is_string()) raise("startswith and endswith take a string or a tuple of strings");
    if (!where.exists) return false;
    return kFront ? where.text.starts_with(affix.text()) : where.text.ends_with(affix.text());
  };
  if (!args[0].is_tuple()) return matches(args[0]);
  return std::any_of(args[0].items().begin(), args[0].items().end(), matches);
}

Value replace_method(Interpreter& in, const Value& self, const Args& args) {
  const std::string_view from = args.text(0);
  args.text(1);  // raises if it is no string
  const std::string to = inserted(self, args[1]);
  const auto limit = static_cast<int64_t>(std::clamp<Int>(args.integer(2, -1), -1, Int{1} << 62));
  const size_t most = from.empty() ? self.text().size() + 1 : self.text().size() / from.size();
  if (!to.empty() && most > in.budget().memory / to.size()) raise_limit("memory");
  return like(in, self, replace(self.text(), from, to, limit));
}

Value join_method(Interpreter& in, const Value& self, const Args& args) {
  std::string out;
  const auto items = iterate(in.budget(), args[0]);
  bool first = true;
  for (Value item; items->next(item); first = false) {
    if (!first) out += self.text();
    if (self.is_markup() && !item.is_string()) item = in.string(in.text(item));
    if (!item.is_string()) raise("join() takes strings");
    out += inserted(self, item);
    in.budget().spend(1 + item.text().size() / 64);
    in.budget().check(out.size());
  }
  return like(in, self, std::move(out));
}

// The blanks that are missing to `width`, on both sides.
Value pad(Interpreter& in, const Value& self, const Args& args, int side) {
  if (args.has(1)) args.text(1);  // raises if it is no string
  const std::string fill = args.has(1) ? inserted(self, args[1]) : " ";
  if (text_length(fill) != 1) raise("The fill character must be exactly one character long");
  const Int length = static_cast<Int>(text_length(self.text()));
  const Int missing = std::max<Int>(args.integer(0) - length, 0);
  if (missing > static_cast<Int>(in.budget().memory)) raise_limit("memory");
  const auto total = static_cast<size_t>(missing);
  in.budget().check(total * fill.size() + self.text().size());
  // Python's str.center puts the odd blank to the left where the width is odd.
  const auto half = total / 2 + (total & static_cast<size_t>(args.integer(0)) & 1);
  const size_t left = side < 0 ? 0 : side > 0 ? total : half;
  std::string out;
  out.reserve(total * fill.size() + self.text().size());
  for (size_t i = 0; i < left; ++i) out += fill;
  out += self.text();
  for (size_t i = left; i < total; ++i) out += fill;
  return like(in, self, std::move(out));
}

template <int kSide>
Value pad_method(Interpreter& in, const Value& self, const Args& args) {
  return pad(in, self, args, kSide);
}

Value zfill(Interpreter& in, const Value& self, const Args& args) {
  const std::string_view text = self.text();
  const Int missing = std::max<Int>(args.integer(0) - static_cast<Int>(text_length(text)), 0);
  if (missing > static_cast<Int>(in.budget().memory)) raise_limit("memory");
  const size_t sign = text.starts_with('+') || text.starts_with('-') ? 1 : 0;
  std::string out(text.substr(0, sign));
  out.append(static_cast<size_t>(missing), '0');
  out += text.substr(sign);
  return like(in, self, std::move(out));
}

Value expandtabs(Interpreter& in, const Value& self, const Args& args) {
  const Int width = args.integer(0, 8);
  std::string out;
  Int column = 0;
  for (const char c : self.text()) {
    if (c != '\t') {
      out.push_back(c);
      column = c == '\n' || c == '\r' ? 0 : column + ((c & 0xC0) != 0x80 ? 1 : 0);
      continue;
    }
    if (width <= 0) continue;
    const Int blanks = width - column % width;
    if (blanks > static_cast<Int>(in.budget().memory)) raise_limit("memory");
    in.budget().check(out.size() + static_cast<size_t>(blanks));
    in.budget().spend(1 + static_cast<size_t>(blanks) / 64);
    out.append(static_cast<size_t>(blanks), ' ');
    column += blanks;
  }
  return like(in, self, std::move(out));
}

template <bool kBack>
Value partition(Interpreter& in, const Value& self, const Args& args) {
  const std::string_view text = self.text(), mark = args.text(0);
  if (mark.empty()) raise("empty separator");
  const size_t at = kBack ? find_back(in, text, mark) : find_text(text, mark);
  if (at == std::string_view::npos) {
    if (kBack) return parts_of(in, self, {"", "", text}, true);
    return parts_of(in, self, {text, "", ""}, true);
  }
  return parts_of(in, self, {text.substr(0, at), mark, text.substr(at + mark.size())}, true);
}

template <bool kPrefix>
Value remove_affix(Interpreter& in, const Value& self, const Args& args) {
  const std::string_view affix = args.text(0);
  std::string_view text = self.text();
  if (kPrefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!kPrefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return like(in, self, std::string(text));
}

bool is_digit_char(char32_t c) {
  return category(c) == Category::kNd || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468);
}
bool is_decimal_char(char32_t c) {
  return category(c) == Category::kNd;
}
bool is_number_char(char32_t c) {
  return (char_flags()[c] & kNumber) != 0;
}
bool is_letter_char(char32_t c) {
  return (char_flags()[c] & kLetter) != 0;
}
bool is_alnum_char(char32_t c) {
  return is_letter_char(c) || is_number_char(c);
}

template <bool (*kTest)(char32_t)>
Value all_chars(Interpreter&, const Value& self, const Args&) {
  const std::string_view text = self.text();
  if (text.empty()) return false;
  for (size_t pos = 0; pos < text.size();) {
    if (!kTest(next_char(text, pos))) return false;
  }
  return true;
}

// Some cased character, and none of the other case.
template <bool kUpper>
Value is_case(Interpreter&, const Value& self, const Args&) {
  constexpr Category kWanted = kUpper ? Category::kLu : Category::kLl;
  bool found = false;
  for (size_t pos = 0; pos < self.text().size();) {
    const char32_t c = next_char(self.text(), pos);
    const Category kind = category(c);
    if (is_cased(c) && kind != kWanted) return false;
    found |= kind == kWanted;
  }
  return found;
}

// Capitals only at the beginning of words, and nothing else there.
Value is_title(Interpreter&, const Value& self, const Args&) {
  bool found = false, in_word = false;
  for (size_t pos = 0; pos < self.text().size();) {
    const char32_t c = next_char(self.text(), pos);
    const Category kind = category(c);
    const bool capital = kind == Category::kLu || kind == Category::kLt;
    if (is_cased(c) && capital == in_word) return false;
    in_word = is_cased(c);
    found |= in_word;
  }
  return found;
}

Value is_ascii(Interpreter&, const Value& self, const Args&) {
  return std::all_of(self.text().begin(), self.text().end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

Value is_printable(Interpreter& in, const Value& self, const Args&) {
  const std::string_view text = self.text();
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    next_char(text, pos);
    const std::string_view one = text.substr(start, pos - start);
    if (one == "\\" || one == "'") continue;
    if (to_repr(in.budget(), in.string(std::string(one)))[1] == '\\') return false;
  }
  return true;
}

Value is_identifier(Interpreter&, const Value& self, const Args&) {
  const std::string_view text = self.text();
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = next_char(text, pos);
    const bool fits = start == 0 ? is_letter_char(c) || c == '_' || category(c) == Category::kNl
                                 : is_word_char(c);
    if (!fits) return false;
  }
  return !text.empty();
}

Value format_method(Interpreter& in, const Value& self, const Call& call) {
  return format_braces(in, self, call);
}

Value format_map(Interpreter& in, const Value& self, const Args& args) {
  if (!args[0].is_dict()) raise("format_map() takes a mapping");
  Call call;
  for (const auto& [key, value] : args[0].entries()) {
    if (key.is_string()) call.named.emplace_back(key.text(), value);
  }
  return format_braces(in, self, call);
}

Value unsupported_string_method(Interpreter&, const Value&, const Call&) {
  raise_unsupported("this method of a string");
}

constexpr Signature kChars{"chars", 0, false};
constexpr Signature kFind{"sub,start,end", 1, false};
constexpr Signature kPad{"width,fillchar", 1, false};
constexpr Signature kOneText{"text", 1, false};
constexpr Signature kSplit{"sep,maxsplit", 0, true};

constexpr Method kMethods[] = {
    {"capitalize", kNoArguments, mapped<capitalize>},
    {"casefold", kNoArguments, mapped<casefold>},
    {"center", kPad, pad_method<0>},
    {"count", kFind, count_method},
    {"encode", kNoArguments, nullptr, unsupported_string_method},
    {"endswith", kFind, affix_method<false>},
    {"expandtabs", {"tabsize", 0, true}, expandtabs},
    {"find", kFind, search_method<Find::kFind>},
    {"format", kNoArguments, nullptr, format_method},
    {"format_map", kOneText, format_map},
    {"index", kFind, search_method<Find::kIndex>},
    {"isalnum", kNoArguments, all_chars<is_alnum_char>},
    {"isalpha", kNoArguments, all_chars<is_letter_char>},
    {"isascii", kNoArguments, is_ascii},
    {"isdecimal", kNoArguments, all_chars<is_decimal_char>},
    {"isdigit", kNoArguments, all_chars<is_digit_char>},
    {"isidentifier", kNoArguments, is_identifier},
    {"islower", kNoArguments, is_case<false>},
    {"isnumeric", kNoArguments, all_chars<is_number_char>},
    {"isprintable", kNoArguments, is_printable},
    {"isspace", kNoArguments, all_chars<is_space>},
    {"istitle", kNoArguments, is_title},
    {"isupper", kNoArguments, is_case<true>},
    {"join", kOneText, join_method},
    {"ljust", kPad, pad_method<-1>},
    {"lower", kNoArguments, mapped<to_lower>},
    {"lstrip", kChars, strip_method<true, false>},
    {"maketrans", kNoArguments, nullptr, unsupported_string_method},
    {"partition", kOneText, partition<false>},
    {"removeprefix", kOneText, remove_affix<true>},
    {"removesuffix", kOneText, remove_affix<false>},
    {"replace", {"old,new,count", 2, false}, replace_method},
    {"rfind", kFind, search_method<Find::kBack>},
    {"rindex", kFind, search_method<Find::kBackIndex>},
    {"rjust", kPad, pad_method<1>},
    {"rpartition", kOneText, partition<true>},
    {"rsplit", kSplit, split_method<true>},
    {"rstrip", kChars, strip_method<false, true>},
    {"split", kSplit, split_method<false>},
    {"splitlines", {"keepends", 0, true}, split_lines_method},
    {"startswith", kFind, affix_method<true>},
    {"strip", kChars, strip_method<true, true>},
    {"swapcase", kNoArguments, mapped<swapcase>},
    {"title", kNoArguments, mapped<title>},
    {"translate", kNoArguments, nullptr, unsupported_string_method},
    {"upper", kNoArguments, mapped<to_upper>},
    {"zfill", {"width", 1, false}, zfill},
};

}  // namespace

const Method* find_string_method(std::string_view name) {
  for (const Method& method : kMethods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace rudder::text::jinja
