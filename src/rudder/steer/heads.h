// The field `heads`: which heads of attn_z an op or a capture is for. Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/row_parts.h"
#include "rudder/tap/site.h"

namespace rudder::steer {

// The heads of each of `points`, in the forms of layers (numbered.h), "all" too. kInvalidArgument
// where a point is not at attn_z, or its layer does not have a head.
Result<std::vector<PartList>> read_heads(const boost::json::value& value,
                                         std::span<const tap::Point> points,
                                         const tap::Geometry& geometry, const std::string& path);

}  // namespace rudder::steer
