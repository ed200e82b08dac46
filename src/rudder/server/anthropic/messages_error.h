// Writes errors in the form of Anthropic's Messages API, on its paths. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "rudder/server/http/api_error.h"

namespace rudder::server {

inline constexpr std::string_view kMessagesPath = "/v1/messages";

// {"type":"error","error":{"type":...,"message":...,"param":...,"code":...},"request_id":...}:
// `param` and `code` are as elsewhere.
std::string messages_error_body(const ApiError& error, std::string_view request_id);

}  // namespace rudder::server
