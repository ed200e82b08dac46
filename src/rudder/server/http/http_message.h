// A parsed HTTP request and a response to be written: plain values without types of Beast or Asio,
// so that only the parser and the session compile with those.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/server/http/byte_charge.h"

namespace rudder::server {

struct ApiError;

struct HttpField {
  std::string name;  // lower case
  std::string value;
};

struct HttpRequest {
  std::string method;  // as sent: methods are case-sensitive
  std::string path;    // as sent, without the query; neither decoded nor normalised
  std::string query;
  std::vector<HttpField> fields;
  std::string body;  // as far as it has arrived, decoded
  bool http_1_1 = true;
  bool keep_alive = true;
  bool expect_continue = false;

  // The first value of the field (`name` in lower case), or empty.
  std::string_view field(std::string_view name) const {
    for (const HttpField& f : fields) {
      if (f.name == name) return f.value;
    }
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  SharedText shared_body = nullptr;  // the body, where it is set
  std::vector<HttpField> fields = {};
  bool close = false;  // the connection may not be used again
  // What the body says, where it is an error: some APIs word it otherwise.
  std::shared_ptr<const ApiError> error = nullptr;

  std::string_view text() const { return shared_body ? *shared_body : body; }
};

}  // namespace rudder::server
