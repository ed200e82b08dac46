// Result and Error: every room reports errors of the client, of files and of the operating system
// with them. For bugs of our own there is RUDDER_CHECK (check.h). The backends turn device faults
// into an Error. No exception crosses a room. Plain values; any thread.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace rudder {

enum class ErrorCode {
  kInvalidArgument,   // the client's field is wrong: HTTP 400
  kUnauthorized,      // HTTP 401
  kNotFound,          // HTTP 404
  kMethodNotAllowed,  // HTTP 405
  kTooLarge,          // body or header over its limit: HTTP 413
  kOverloaded,        // bounded queue is full: HTTP 503 with Retry-After
  kUnavailable,       // starting, draining or stuck: HTTP 503
  kCancelled,         // the client went away, or the server shut down
  kTimeout,           // HTTP 408
  kUnsupported,       // well formed, but this build or model cannot do it: HTTP 501
  kNumerical,         // NaN or Inf in this request's logits: HTTP 500
  kCorruptFile,       // a model file breaks its format
  kIo,                // the operating system refused
  kInternal,          // HTTP 500
};

// `message` is for people and names the shape, tensor or field. `where` is for programs: a JSON
// path for requests ("messages[0].role"), a file or tensor name for model files.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string where;

  std::string to_string() const;
};

std::string_view error_code_name(ErrorCode code);
int http_status(ErrorCode code);

template <typename T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string message, std::string where = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(where)});
}

}  // namespace rudder

#define RUDDER_CONCAT_INNER(a, b) a##b
#define RUDDER_CONCAT(a, b) RUDDER_CONCAT_INNER(a, b)

// RUDDER_TRY(auto x, expr): x is the value of expr, or this function returns its Error.
#define RUDDER_TRY(decl, expr) RUDDER_TRY_INNER(decl, expr, RUDDER_CONCAT(rudder_try_, __COUNTER__))
#define RUDDER_TRY_INNER(decl, expr, tmp)                          \
  auto tmp = (expr);                                               \
  if (!tmp) return ::tl::unexpected<::rudder::Error>(tmp.error()); \
  decl = std::move(*tmp)

// RUDDER_TRY_VOID(expr): as RUDDER_TRY for Result<void>.
#define RUDDER_TRY_VOID(expr)                                                       \
  do {                                                                              \
    auto rudder_try_void = (expr);                                                  \
    if (!rudder_try_void)                                                           \
      return ::tl::unexpected<::rudder::Error>(std::move(rudder_try_void.error())); \
  } while (false)
