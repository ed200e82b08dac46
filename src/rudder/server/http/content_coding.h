// Which codings of a request's body are taken: none. A compressed body would be read as broken
// JSON, so it is refused by the name of its coding. Pure; I/O threads.
#pragma once

#include <optional>

#include "rudder/server/http/http_message.h"

namespace rudder::server {

// 415 with `accept-encoding: identity` (RFC 9110, 12.5.3) where the body is coded.
std::optional<HttpResponse> refuse_coded_body(const HttpRequest& request);

}  // namespace rudder::server
