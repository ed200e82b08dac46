// Which layers a field means. Every field of layers, of requests, files and flags, is read here and
// takes the same forms. Any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tap/site.h"

namespace rudder::steer {

// The layers of `value`, in its order, each with `site`, none twice: the forms of numbered.h, or
// "all" that have the site. kInvalidArgument at the part that is wrong.
Result<std::vector<int32_t>> read_layers(const boost::json::value& value, tap::Site site,
                                         const tap::Geometry& geometry, const std::string& path);

// One of them as a number (4.0 is one too), or as text ("4", "-1") where the layer is a key.
Result<int32_t> read_layer(const boost::json::value& value, const tap::Geometry& geometry,
                           const std::string& path);
Result<int32_t> read_layer(std::string_view text, const tap::Geometry& geometry,
                           const std::string& path);

}  // namespace rudder::steer
