#include "rudder/server/http/admission.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/server/http/api_error.h"
#include "rudder/server/http/content_coding.h"
#include "rudder/server/http/cors.h"
#include "rudder/server/http/origin_check.h"
#include "rudder/server/http/route_table.h"
#include "rudder/server/http/unsupported_paths.h"
#include "rudder/server/steering/tap_names.h"

namespace rudder::server {
namespace {

bool is_json(std::string_view content_type) {
  std::string media(content_type.substr(0, content_type.find(';')));
  while (!media.empty() && (media.back() == ' ' || media.back() == '\t')) media.pop_back();
  for (char& ch : media) ch = static_cast<char>(ch >= 'A' && ch <= 'Z' ? ch - 'A' + 'a' : ch);
  return media == "application/json";
}

// A request without a body, from something else than a web page: `curl -X POST`.
bool is_bare(const HttpRequest& request) {
  const std::string_view length = request.field("content-length");
  return (length.empty() || length == "0") && request.field("transfer-encoding").empty() &&
         request.field("content-type").empty() && request.field("origin").empty();
}

}  // namespace

std::optional<HttpResponse> judge_header(const ServerContext& context, Exchange& exchange) {
  const HttpRequest& request = exchange.request;
  // A preflight is answered whatever its origin: what it is told says who may ask.
  const auto foreign = check_origin(context.origin_rules, request);
  if (foreign && (request.method != "OPTIONS" || foreign->status == 421)) {
    return error_response(*foreign);
  }
  RouteMatch match = match_route(request.method, request.path);
  exchange.route = match.route;
  exchange.path_tail = std::move(match.tail);
  if (request.path == "*") match.allow = "GET, HEAD, POST, OPTIONS";
  if (request.method == "OPTIONS" && !match.allow.empty()) {
    // Browsers send preflights without credentials; nothing but the route table is told.
    return options_response(context.settings.allowed_origins, request, match.allow);
  }
  // Deny by default: a path that is not known to be public is guarded, whether it exists or not.
  if (match.route == nullptr || match.route->access != Access::kPublic) {
    const bool is_admin = match.route != nullptr && match.route->access == Access::kAdmin;
    const ApiKeys& keys =
        is_admin && context.admin_keys.required() ? context.admin_keys : context.keys;
    const std::optional<int> tenant =
        keys.tenant_of(request.field("authorization"), request.field("x-api-key"));
    if (!tenant) return error_response(http_error(401, "a valid API key is required"));
    exchange.tenant = *tenant;
  }
  if (match.allow.empty()) {
    if (const std::string_view feature = unsupported_feature(request.path); !feature.empty()) {
      return error_response(
          http_error(501, fmt::format("{} is not supported by this server", feature)));
    }
    return error_response(http_error(404, "there is nothing under this path"));
  }
  if (match.route == nullptr) {
    HttpResponse response =
        error_response(http_error(405, "this path does not answer this method"));
    response.fields.push_back({"allow", std::move(match.allow)});
    return response;
  }
  // Also keeps pages of other origins out: they cannot send this type without a preflight.
  if (match.route->method == "POST" && !is_json(request.field("content-type")) &&
      !is_bare(request)) {
    return error_response(http_error(415, "content-type must be application/json"));
  }
  if (match.route->method == "POST" && match.route->access == Access::kKey) {
    const Result<void> no_taps = refuse_taps_beside_body(request.query, request.fields);
    if (!no_taps) return error_response(to_api_error(no_taps.error()));
  }
  return refuse_coded_body(request);
}

}  // namespace rudder::server
