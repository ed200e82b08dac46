// CORS: says which browser pages may read answers. Off unless the operator names origins.
#pragma once

#include <span>
#include <string>

#include "rudder/server/http/http_message.h"

namespace rudder::server {

// Adds the fields that let the page the request came from read `response`, if it may.
void add_cors_fields(std::span<const std::string> allowed_origins, const HttpRequest& request,
                     HttpResponse& response);

// The answer to OPTIONS: the path's methods, and a preflight's fields where the origin may ask.
HttpResponse options_response(std::span<const std::string> allowed_origins,
                              const HttpRequest& request, const std::string& allow);

}  // namespace rudder::server
