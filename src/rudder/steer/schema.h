// The JSON schema of the steering fields, for the OpenAPI document. Constant data; any thread.
#pragma once

#include <string_view>

namespace rudder::steer {

// One JSON object: "properties" of a request body, the "schemas" that they refer to as
// "#/components/schemas/Steering…", and "examples": for each op, tier form and selector a body with
// only its steering fields, for a model of hidden size 4.
std::string_view steering_schema();

}  // namespace rudder::steer
