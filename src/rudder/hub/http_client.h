// GET over HTTP and TLS with what the hub needs: redirects that never carry the token to another
// host nor leave TLS, bounds on what is read, and a body that is handed on piece by piece. One
// connection, kept between requests; one thread at a time uses an object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/hub/hub_settings.h"

namespace rudder::hub {

// What stands before a body.
struct HttpHead {
  int status = 0;
  std::string url;                                               // that answered, after redirects
  std::vector<std::pair<std::string, std::string>> fields = {};  // names in lower case

  std::string_view field(std::string_view name) const;  // empty: it is not there
  bool is_success() const { return status >= 200 && status < 300; }
};

struct HttpAnswer {
  HttpHead head;
  std::string body;
};

struct ByteRange {
  int64_t first = 0;
  int64_t last = 0;  // the last byte itself
};

// Takes a body piece by piece. An Error of either ends the transfer and is what get returns.
struct BodySink {
  std::function<Result<void>(const HttpHead& head)> on_head;  // of a success
  // True: on with it; false: enough, which is no error.
  std::function<Result<bool>(std::string_view bytes)> on_bytes;
};

class HttpClient {
 public:
  // `settings` outlive it. kUnavailable: there is no libcurl.
  static Result<std::unique_ptr<HttpClient>> create(const HubSettings& settings);
  ~HttpClient();

  // The answer, whatever its status; at most `max_body` bytes of it, else kTooLarge. kUnavailable
  // where the transfer was cut, refused or stood still: it may be tried again. kInvalidArgument
  // where a redirect leads where none may.
  Result<HttpAnswer> get(const std::string& url, size_t max_body);

  // As get, but a success goes to `sink`; the body of any other answer is in the result.
  Result<HttpAnswer> stream(const std::string& url, std::optional<ByteRange> range,
                            const BodySink& sink);

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

// Whether both addresses have the same scheme, host and port. False where one is no address.
Result<bool> is_same_origin(const std::string& a, const std::string& b);

// Where `location`, absolute or relative, leads from `base`. kInvalidArgument: not http or https,
// or from https to http.
Result<std::string> resolve_redirect(const std::string& base, const std::string& location);

}  // namespace rudder::hub
