#include "rudder/text/token_begins.h"

#include <fmt/format.h>

namespace rudder::text {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

}  // namespace

Result<std::vector<size_t>> token_begins(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                                         std::string_view text) {
  std::vector<size_t> begins;
  begins.reserve(ids.size());
  size_t at = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string_view bytes = tokenizer.token_bytes(ids[i]);
    begins.push_back(at);
    if (text.substr(at).starts_with(bytes)) {
      at += bytes.size();
      continue;
    }
    if (bytes.starts_with(' ') && text.substr(at).starts_with(bytes.substr(1))) {
      at += bytes.size() - 1;  // the blank was put in front by the encoder
      continue;
    }
    size_t next = at;
    while (next < text.size() && is_blank(text[next])) ++next;
    if (next > at && text.substr(next).starts_with(bytes)) {
      begins.back() = next;  // blanks before an added token were dropped
      at = next + bytes.size();
      continue;
    }
    if (i == 0 && tokenizer.is_special(ids[i])) continue;  // put in front by the post-processor
    return fail(ErrorCode::kUnsupported,
                fmt::format("token {} of the prompt does not spell the text at byte {}", i, at));
  }
  while (at < text.size() && is_blank(text[at])) ++at;
  if (at != text.size()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the tokens of the prompt spell {} of its {} bytes", at, text.size()));
  }
  return begins;
}

}  // namespace rudder::text
