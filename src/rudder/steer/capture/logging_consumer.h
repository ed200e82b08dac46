// The consumer `logging`: writes norms and statistics as lines of the server's log. Request
// options: "lines": "summary" (one line for each point, when the request ends; default) or "rows"
// (also one for each row).
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "rudder/steer/capture/consumer.h"

namespace rudder::steer::capture {

// `log` takes a line; empty: the server's log at level info.
std::shared_ptr<Consumer> make_logging_consumer(std::function<void(std::string_view)> log = {});

}  // namespace rudder::steer::capture
