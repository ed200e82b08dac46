// FieldMap: the way back from a chat request that was made of another API's request: what is wrong
// in the one is told in the field names of the other. One object a request, on the tokenise pool.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/server/http/api_error.h"

namespace rudder::server {

class FieldMap {
 public:
  // What lies at or below `chat` ("messages[3]") is at `client` ("input[2]") in the client's body.
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
