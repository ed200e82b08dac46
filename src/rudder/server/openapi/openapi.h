// The OpenAPI document of this server: its routes and the schemas of their bodies. Built from the
// route table, the table of ranges and the schema of the steering fields. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "rudder/engine/request.h"

namespace rudder::server {

// Which keys this server asks for.
struct OpenapiKeys {
  bool api = false;
  bool steering = false;  // without it the API key opens the steering API
};

std::string openapi_document(std::string_view version, const engine::RequestLimits& limits,
                             const OpenapiKeys& keys);

}  // namespace rudder::server
