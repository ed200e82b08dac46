// HttpParser: turns the bytes of a connection into requests. Beast's parser implements the grammar.
// This class refuses what that grammar leaves open, because two parsers that read the same bytes
// differently allow request smuggling: bare line feeds, folded fields, repeated Content-Length, any
// Transfer-Encoding but "chunked", a missing or second Host, trailers, long chunk extensions. One
// object for each connection, on the connection's I/O thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "rudder/server/http/api_error.h"
#include "rudder/server/http/http_message.h"

namespace rudder::server {

struct HttpLimits {
  size_t max_header_bytes = size_t{32} << 10;
  size_t max_fields = 100;
  size_t max_chunk_extension_bytes = 256;
  size_t max_body_bytes = size_t{16} << 20;  // after transfer decoding
};

class HttpParser {
 public:
  enum class Stage { kHeader, kBody, kDone };

  explicit HttpParser(const HttpLimits& limits);
  ~HttpParser();

  // Takes what it can from the front of `bytes` (all bytes not yet consumed, contiguous) and says
  // how much that was; stops after the header so that it can be judged before the body is read,
  // and after the request. After an error the connection is of no further use.
  tl::expected<size_t, ApiError> feed(std::string_view bytes);

  Stage stage() const;
  HttpRequest& request();
  // Ready for the next request on the connection.
  void reset();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rudder::server
