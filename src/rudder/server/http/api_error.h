// ApiError: an error as the client gets it, in OpenAI's shape, and the conversion of the project's
// Error into it. For errors that are not the client's fault the text comes from a closed catalogue;
// the details go to the log under the request's id. Any thread; plain values.
#pragma once

#include <string>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/server/http/http_message.h"

namespace rudder::server {

struct ApiError {
  int status = 500;
  std::string type = "server_error";  // "invalid_request_error" for what the client can repair
  std::string message;
  std::string param;  // JSON path of the field; empty: null
  std::string code;   // machine-readable; empty: null
  int retry_after_s = 0;
};

ApiError to_api_error(const Error& error);

// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string error_body(const ApiError& error);
HttpResponse error_response(const ApiError& error);
HttpResponse error_response(const Error& error);

// The errors of the HTTP layer itself: a status and a message, `code` made from the status.
ApiError http_error(int status, std::string message);

}  // namespace rudder::server
