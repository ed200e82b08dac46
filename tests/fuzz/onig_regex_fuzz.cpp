// The first line is an expression of a tokenizer, the rest a text: matches stand one behind another
// and begin and end between characters.
#include "require.h"
#include "rudder/base/utf8.h"
#include "rudder/text/regex.h"

namespace rudder::fuzz {
namespace {

bool between_characters(std::string_view text, size_t at) {
  return at == text.size() || (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
}

}  // namespace

void fuzz_onig_regex(std::string_view input) {
  const CpuBound bound(10);
  const size_t line = input.find('\n');
  const std::string text = to_valid_utf8(line == std::string_view::npos ? "Don't, 12 x\xC3\xA9\n"
                                                                        : input.substr(line + 1));
  const auto regex = text::Regex::compile(input.substr(0, line), "pattern");
  if (!regex)
    return require_error(regex.error(), {ErrorCode::kUnsupported, ErrorCode::kCorruptFile},
                         "pattern");
  size_t last = 0;
  const auto matched = regex->for_each_match(text, [&](size_t begin, size_t end) {
    RUDDER_CHECK(last <= begin && begin <= end && end <= text.size(), "{} to {}", begin, end);
    RUDDER_CHECK(between_characters(text, begin) && between_characters(text, end), "{} to {}",
                 begin, end);
    last = end;
  });
  if (!matched) require_error(matched.error(), {ErrorCode::kInvalidArgument});
}

}  // namespace rudder::fuzz
