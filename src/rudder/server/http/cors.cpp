#include "rudder/server/http/cors.h"

#include <algorithm>

namespace rudder::server {

void add_cors_fields(std::span<const std::string> allowed_origins, const HttpRequest& request,
                     HttpResponse& response) {
  if (allowed_origins.empty()) return;
  const std::string origin(request.field("origin"));
  if (origin.empty()) return;
  const auto holds = [&](const std::string& text) {
    return std::find(allowed_origins.begin(), allowed_origins.end(), text) != allowed_origins.end();
  };
  if (holds("*")) {
    response.fields.push_back({"access-control-allow-origin", "*"});
  } else {
    response.fields.push_back({"vary", "Origin"});
    if (!holds(origin)) return;
    response.fields.push_back({"access-control-allow-origin", origin});
  }
  response.fields.push_back(
      {"access-control-expose-headers", "x-request-id, x-rudder-ignored-fields, retry-after"});
}

HttpResponse options_response(std::span<const std::string> allowed_origins,
                              const HttpRequest& request, const std::string& allow) {
  HttpResponse response;
  response.status = 204;
  response.fields.push_back({"allow", allow});
  if (!allowed_origins.empty() && !request.field("access-control-request-method").empty()) {
    response.fields.push_back({"access-control-allow-methods", allow});
    response.fields.push_back(
        {"access-control-allow-headers",
         "authorization, content-type, x-request-id, x-api-key, anthropic-version, "
         "anthropic-beta"});
    response.fields.push_back({"access-control-max-age", "600"});
  }
  return response;
}

}  // namespace rudder::server
