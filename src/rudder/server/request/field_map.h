// FieldMap: maps the fields of a chat request back to the fields of the other API's request that it
// was translated from, so that errors name the client's own fields. One object for each request, on
// the tokenise pool.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/server/http/api_error.h"

namespace rudder::server {

class FieldMap {
 public:
  // Records that paths at or below `chat` ("messages[3]") are `client` ("input[2]") in the client's
  // body.
  void add(std::string chat, std::string client) {
    fields_.emplace_back(std::move(chat), std::move(client));
  }

  // The longest path that was added decides; a path below none of them stays as it is.
  std::string client_path(std::string_view chat) const;
  // The error's param and the same path in its message.
  ApiError told(ApiError error) const;

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

}  // namespace rudder::server
