// The OpenAPI document of this server: its routes, and schemas of the bodies that they take. Made
// from the route table and the schema of the steering fields. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace rudder::server {

std::string openapi_document(std::string_view version);

}  // namespace rudder::server
