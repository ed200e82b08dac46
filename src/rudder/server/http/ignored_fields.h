// The header in which answers name fields of a request's body that had no effect. Any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rudder/server/http/http_message.h"

namespace rudder::server {

// `paths` of visible ASCII; nothing where there are none.
inline void name_ignored_fields(const std::vector<std::string>& paths, HttpResponse* response) {
  std::string list;
  for (const std::string& path : paths) {
    if (!list.empty()) list += ", ";
    list += path;
  }
  if (!list.empty()) response->fields.push_back({"x-rudder-ignored-fields", std::move(list)});
}

}  // namespace rudder::server
