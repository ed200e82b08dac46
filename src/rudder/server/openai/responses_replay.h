// The events of a response that is remembered, as its stream would have told them, each item whole
// at once. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "rudder/base/result.h"

namespace rudder::server {

// Of the response's document; those behind the event with number `after` (-1: all).
Result<std::string> replayed_events(const std::string& document, int64_t after);

}  // namespace rudder::server
