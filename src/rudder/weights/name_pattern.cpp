#include "rudder/weights/name_pattern.h"

#include <fmt/format.h>

#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace rudder::weights {
namespace {

constexpr std::string_view kRegexPrefix = "re:";
// Far above what a pattern of names needs, and done in milliseconds: the file is not trusted.
constexpr uint32_t kMatchLimit = 100'000;

// The glob as a regular expression of the whole name.
std::string glob_regex(std::string_view glob) {
  std::string out;
  for (const char c : glob) {
    if (c == '*') {
      out += ".*";
    } else if (c == '?') {
      out += '.';
    } else {
      if (std::string_view("\\^$.|()[]{}+").find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out + "\\z";
}

}  // namespace

struct NamePattern::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {
    if (match != nullptr) pcre2_set_match_limit(match, kMatchLimit);
  }
  ~Code() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(match);
    pcre2_code_free(code);
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  pcre2_code* const code;
  pcre2_match_context* const match = pcre2_match_context_create(nullptr);
  pcre2_match_data* const data = pcre2_match_data_create(1, nullptr);
};

Result<NamePattern> NamePattern::parse(std::string_view text, const std::string& where) {
  NamePattern pattern{std::string(text), where};
  std::string regex;
  if (text.starts_with(kRegexPrefix)) {
    regex = text.substr(kRegexPrefix.size());
  } else if (text.find_first_of("*?") != std::string_view::npos) {
    regex = glob_regex(text);
  } else {
    return pattern;
  }
  int error = 0;
  size_t offset = 0;
  pcre2_code* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                    PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    char message[128] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    return fail(ErrorCode::kUnsupported,
                fmt::format("the pattern '{}' does not compile: {}", text, message), where);
  }
  auto owned = std::make_shared<const Code>(code);
  if (owned->match == nullptr || owned->data == nullptr) {
    return fail(ErrorCode::kInternal, "out of memory for a pattern", where);
  }
  pattern.code_ = std::move(owned);
  return pattern;
}

Result<bool> NamePattern::matches(std::string_view name) const {
  if (code_ == nullptr) {
    return name.starts_with(text_) && (name.size() == text_.size() || name[text_.size()] == '.');
  }
  const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(),
                                0, 0, code_->data, code_->match);
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  return fail(ErrorCode::kUnsupported,
              fmt::format("the pattern '{}' gave up on '{}' (PCRE2 {})", text_, name, found),
              where_);
}

}  // namespace rudder::weights
