// Parses what the engine itself is to read of a request's rows. The server's threads call it, over
// Library; pure functions. Errors are those of parse.h.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "rudder/base/result.h"
#include "rudder/steer/capture/watch.h"
#include "rudder/steer/parse.h"

namespace rudder::steer {

inline constexpr int32_t kMaxStopCount = 1 << 20;  // of `for`

// {"probe": {"vector", "site", "layer", "stream"?} | "feature": {"dictionary", "layer"?,
// "feature"},
//  "above", "for"?: 1}
Result<capture::StopWhen> parse_stop_when(const boost::json::value& value, const std::string& path,
                                          const Model& model, const Names& names);

}  // namespace rudder::steer
