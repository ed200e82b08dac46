// What a reader of requests and files answers where a field is wrong. Inside this room; any thread.
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
