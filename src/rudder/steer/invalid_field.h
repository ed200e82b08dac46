// The Error for a wrong field of a request or a file. Internal to the room; any thread.
#pragma once

#include <string>
#include <utility>

#include "rudder/base/result.h"

namespace rudder::steer {

// `where` is the field's path: "steering[0].scale".
inline tl::unexpected<Error> invalid_field(std::string message, std::string where) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(where));
}

}  // namespace rudder::steer
