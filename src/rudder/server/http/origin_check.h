// Who a browser's request is really for and from. A page of another site may make a browser send
// requests here, and, by pointing its own name at this machine's address (DNS rebinding), may even
// read the answers. Such a request says so itself: its Host is a name that is not ours, or its
// Origin is another site. Any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rudder/server/http/api_error.h"
#include "rudder/server/http/http_message.h"

namespace rudder::server {

struct OriginRules {
  bool check_host = false;  // else every Host is right
  // Beside localhost and addresses, which no name server decides about. "*": every name.
  std::span<const std::string> allowed_hosts;
  std::span<const std::string> allowed_origins;  // beside the host's own; "*": every origin
};

// 421 for a foreign Host, 403 for a foreign Origin; nothing where both are right or absent.
std::optional<ApiError> check_origin(const OriginRules& rules, const HttpRequest& request);

}  // namespace rudder::server
