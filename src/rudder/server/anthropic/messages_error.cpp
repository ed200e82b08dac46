#include "rudder/server/anthropic/messages_error.h"

#include "rudder/base/json.h"

namespace rudder::server {
namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

void append_field(std::string& out, std::string_view name, std::string_view text) {
  out += ",\"";
  out += name;
  out += "\":";
  if (text.empty()) {
    out += "null";
  } else {
    append_json_string(out, text);
  }
}

}  // namespace

std::string messages_error_body(const ApiError& error, std::string_view request_id) {
  std::string out = "{\"type\":\"error\",\"error\":{\"type\":";
  append_json_string(out, type_of(error.status));
  out += ",\"message\":";
  append_json_string(out, error.message);
  append_field(out, "param", error.param);
  append_field(out, "code", error.code);
  out += "},\"request_id\":";
  append_json_string(out, request_id);
  out.push_back('}');
  return out;
}

}  // namespace rudder::server
