#include "rudder/steer/heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "rudder/steer/invalid_field.h"
#include "rudder/steer/numbered.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

Result<PartList> heads_of_layer(const json::value& value, tap::Point point,
                                const tap::Geometry& geometry, const std::string& path) {
  if (point.site != tap::Site::kAttnZ) {
    return invalid_field(fmt::format("only {} has heads, {} has none",
                                     tap::site_name(tap::Site::kAttnZ), tap::site_name(point.site)),
                         path);
  }
  if (value.is_string() && value.get_string() == "all") return PartList();
  const int32_t count = geometry.heads[static_cast<size_t>(point.layer)].count;
  RUDDER_TRY(PartList heads,
             read_numbers(value,
                          {.noun = "head",
                           .count = count,
                           .of = fmt::format("layer {}, which has {} heads", point.layer, count)},
                          path));
  if (std::ssize(heads) == count && std::ranges::is_sorted(heads)) heads.clear();
  return heads;
}

}  // namespace

Result<std::vector<PartList>> read_heads(const json::value& value,
                                         std::span<const tap::Point> points,
                                         const tap::Geometry& geometry, const std::string& path) {
  std::vector<PartList> by_point;
  for (const tap::Point& point : points) {
    RUDDER_TRY(by_point.emplace_back(), heads_of_layer(value, point, geometry, path));
  }
  return by_point;
}

}  // namespace rudder::steer
