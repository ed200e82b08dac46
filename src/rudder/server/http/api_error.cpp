#include "rudder/server/http/api_error.h"

#include <utility>

#include "rudder/base/json.h"
#include "rudder/base/utf8.h"

namespace rudder::server {
namespace {

constexpr int kRetryAfterSeconds = 1;

std::string_view http_error_code(int status) {
  switch (status) {
    case 401:
      return "invalid_api_key";
    case 404:
      return "not_found";
    case 405:
      return "method_not_allowed";
    case 408:
      return "timeout";
    case 409:
      return "conflict";
    case 413:
      return "request_too_large";
    case 415:
      return "unsupported_media_type";
    case 417:
      return "expectation_failed";
    case 431:
      return "header_too_large";
    case 501:
      return "not_implemented";
    case 503:
      return "overloaded";
    case 505:
      return "http_version_not_supported";
    default:
      return "bad_request";
  }
}

void append_string_or_null(std::string& out, std::string_view text) {
  if (text.empty()) {
    out += "null";
  } else {
    append_json_string(out, text);
  }
}

}  // namespace

ApiError to_api_error(const Error& error) {
  ApiError api;
  api.status = http_status(error.code);
  api.code = error_code_name(error.code);
  api.message = error.message;
  api.param = error.where;
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      api.type = "invalid_request_error";
      api.code = "invalid_value";
      break;
    case ErrorCode::kUnsupported:
      // The client asked for a feature by a field: it can leave the field out.
      api.status = 400;
      api.type = "invalid_request_error";
      api.code = "unsupported_value";
      break;
    case ErrorCode::kTooLarge:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnauthorized:
    case ErrorCode::kMethodNotAllowed:
    case ErrorCode::kTimeout:
      api.type = "invalid_request_error";
      break;
    case ErrorCode::kOverloaded:
    case ErrorCode::kUnavailable:
      api.retry_after_s = kRetryAfterSeconds;
      break;
    case ErrorCode::kCancelled:
      api.message = "the request was cancelled by the server";
      api.param.clear();
      break;
    case ErrorCode::kNumerical:
      api.message = "the model produced a value that is not a number for this request";
      api.param.clear();
      break;
    case ErrorCode::kCorruptFile:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      api.message = "internal error; the server's log has the details under this request's id";
      api.code = error_code_name(ErrorCode::kInternal);
      api.param.clear();
      break;
  }
  return api;
}

ApiError http_error(int status, std::string message) {
  ApiError api;
  api.status = status;
  api.type = status >= 500 ? "server_error" : "invalid_request_error";
  api.message = std::move(message);
  api.code = http_error_code(status);
  if (status == 503) api.retry_after_s = kRetryAfterSeconds;
  return api;
}

std::string error_body(const ApiError& error) {
  std::string out = "{\"error\":{\"message\":";
  append_json_string(out, error.message);
  out += ",\"type\":";
  append_json_string(out, error.type);
  out += ",\"param\":";
  append_string_or_null(out, error.param);
  out += ",\"code\":";
  append_string_or_null(out, error.code);
  out += "}}";
  return out;
}

HttpResponse error_response(const ApiError& error) {
  // What a client wrote may be quoted, and its path may be any bytes.
  ApiError told = error;
  told.message = to_valid_utf8(error.message);
  told.param = to_valid_utf8(error.param);
  HttpResponse response;
  response.status = error.status;
  response.body = error_body(told);
  response.error = std::make_shared<const ApiError>(std::move(told));
  if (error.retry_after_s > 0) {
    response.fields.push_back({"retry-after", std::to_string(error.retry_after_s)});
  }
  if (error.status == 401) response.fields.push_back({"www-authenticate", "Bearer"});
  return response;
}

HttpResponse error_response(const Error& error) {
  return error_response(to_api_error(error));
}

}  // namespace rudder::server
