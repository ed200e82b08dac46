#include "rudder/server/http/api_error.h"

#include <fmt/format.h>

#include <utility>

#include "rudder/base/json.h"
#include "rudder/base/utf8.h"

namespace rudder::server {
namespace {

constexpr int kRetryAfterSeconds = 1;
constexpr size_t kMaxQuoted = 200;  // bytes of a request that an error repeats in one place

std::string_view http_error_code(int status) {
  switch (status) {
    case 401:
      return "invalid_api_key";
    case 403:
      return "forbidden_origin";
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
    case 421:
      return "misdirected_request";
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

// The text without its middle, where it is longer than kMaxQuoted. May cut characters in two.
std::string without_middle(std::string_view text) {
  constexpr std::string_view kCut = " ... ";
  if (text.size() <= kMaxQuoted) return std::string(text);
  const size_t half = (kMaxQuoted - kCut.size()) / 2;
  return fmt::format("{}{}{}", text.substr(0, half), kCut, text.substr(text.size() - half));
}

// Messages quote what a client wrote as the path of a field, or between quotes; both may be
// of any length. What is ours fits kMaxMessage.
void shorten_quotes(ApiError& error) {
  constexpr size_t kMaxMessage = 600;
  const std::string shown = without_middle(error.param);
  std::string& message = error.message;
  if (shown.size() < error.param.size()) {
    for (size_t at = 0; (at = message.find(error.param, at)) != std::string::npos;) {
      message.replace(at, error.param.size(), shown);
      at += shown.size();
    }
    error.param = shown;
  }
  for (const char quote : {'\'', '"'}) {
    const size_t begin = message.find(quote);
    if (begin == std::string::npos) continue;
    size_t end = message.rfind(quote);
    if (end == begin && quote == '\'') continue;  // an apostrophe
    if (end == begin) end = message.size();       // a quote that is cut before its end
    const std::string_view quoted = std::string_view(message).substr(begin + 1, end - begin - 1);
    message.replace(begin + 1, end - begin - 1, without_middle(quoted));
  }
  if (message.size() > kMaxMessage) message = message.substr(0, kMaxMessage) + " ...";
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
  shorten_quotes(told);
  told.message = to_valid_utf8(told.message);
  told.param = to_valid_utf8(told.param);
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
