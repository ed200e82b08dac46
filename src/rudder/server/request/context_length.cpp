#include "rudder/server/request/context_length.h"

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

namespace rudder::server {
namespace {

tl::unexpected<ApiError> too_long(std::string message, std::string param) {
  ApiError error = http_error(400, std::move(message));
  error.param = std::move(param);
  error.code = "context_length_exceeded";
  return tl::unexpected(std::move(error));
}

}  // namespace

tl::expected<void, ApiError> check_length(const PromptText& prompt,
                                          std::optional<int32_t> max_tokens,
                                          const engine::RequestLimits& limits) {
  const int64_t room = limits.max_seq_len - std::ssize(prompt.ids);
  const int32_t wanted = max_tokens.value_or(1);
  if (room >= 1 && wanted <= room) return {};
  const std::string prompt_has = fmt::format(
      "This model's maximum context length is {} tokens. However, the prompt has {}{} tokens",
      limits.max_seq_len, prompt.is_cut ? "at least " : "", prompt.ids.size());
  if (room < 1) {
    return too_long(prompt_has + ", which leaves no room for output.", prompt.path);
  }
  return too_long(fmt::format("{}, and max_tokens asks for {} more.", prompt_has, wanted),
                  "max_tokens");
}

}  // namespace rudder::server
