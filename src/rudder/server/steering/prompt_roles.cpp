#include "rudder/server/steering/prompt_roles.h"

#include <algorithm>
#include <boost/json.hpp>
#include <optional>

#include "rudder/text/token_begins.h"

namespace rudder::server {
namespace {

std::optional<steer::Role> role_of(const boost::json::value& message, bool is_reasoning) {
  const std::string_view role = message.get_object().at("role").get_string();
  if (role == "assistant") {
    return is_reasoning ? steer::Role::kReasoning : steer::Role::kAssistant;
  }
  if (role == "system" || role == "developer") return steer::Role::kSystem;
  if (role == "user") return steer::Role::kUser;
  return std::nullopt;
}

}  // namespace

Result<std::vector<steer::RoleSpan>> prompt_roles(std::span<const text::MessageSpan> spans,
                                                  const boost::json::array& messages,
                                                  const text::Tokenizer& tokenizer,
                                                  std::span<const int32_t> ids,
                                                  std::string_view prompt) {
  RUDDER_TRY(const std::vector<size_t> begins, text::token_begins(tokenizer, ids, prompt));
  const auto token_at = [&](size_t byte) {  // the first token that begins at or after it
    return static_cast<int32_t>(std::ranges::lower_bound(begins, byte) - begins.begin());
  };
  std::vector<steer::RoleSpan> roles;
  for (const text::MessageSpan& span : spans) {
    const auto role = role_of(messages[static_cast<size_t>(span.message)], span.is_reasoning);
    if (!role) continue;
    int32_t begin = token_at(span.begin);
    const bool starts_inside = begin == static_cast<int32_t>(begins.size()) ||
                               begins[static_cast<size_t>(begin)] > span.begin;
    if (starts_inside && begin > 0) --begin;
    if (!roles.empty()) begin = std::max(begin, roles.back().tokens.end);
    const int32_t end = token_at(span.end);
    if (begin < end) roles.push_back({*role, {begin, end}});
  }
  return roles;
}

}  // namespace rudder::server
