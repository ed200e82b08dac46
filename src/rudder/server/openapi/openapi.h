// The OpenAPI document of this server: its routes and the schemas of their bodies. Built from the
// route table, the table of ranges and the schema of the steering fields. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "rudder/engine/request.h"

namespace rudder::server {

std::string openapi_document(std::string_view version, const engine::RequestLimits& limits);

}  // namespace rudder::server
