// The field `stream`: which stream of the residual an op, a vector or a capture is for, where the
// model's residual has several (tap::ResidualForm). Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/row_parts.h"
#include "rudder/tap/site.h"

namespace rudder::steer {

// One stream by its number, or each of them.
struct StreamChoice {
  static constexpr int32_t kAll = -1;
  int32_t stream = kAll;

  bool operator==(const StreamChoice&) const = default;
  // The parts of a row that an op is for: of one stream, or one op for each. A residual of one
  // stream has no parts.
  std::vector<PartList> part_lists(const tap::Geometry& geometry) const;
};

// A number from 0, or "all". kInvalidArgument where a point is none of the residual, or the
// residual has no such stream, or not yet at one of the points.
Result<StreamChoice> read_stream(const boost::json::value& value,
                                 std::span<const tap::Point> points, const tap::Geometry& geometry,
                                 const std::string& path);
// Nothing where `object` has no "stream".
Result<std::optional<StreamChoice>> read_stream_of(const boost::json::object& object,
                                                   std::span<const tap::Point> points,
                                                   const tap::Geometry& geometry,
                                                   const std::string& path);

}  // namespace rudder::steer
