#include "rudder/steer/streams.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "rudder/steer/parse_common.h"

namespace rudder::steer {

namespace json = boost::json;

namespace {

// The model has made the stream at each of the points.
Result<void> check_is_made(int32_t stream, std::span<const tap::Point> points,
                           const tap::ResidualForm& residual, const std::string& path) {
  for (const tap::Point& point : points) {
    if (stream < residual.streams_at(point)) continue;
    return invalid_field(
        fmt::format("{} is finished behind {} of layer {}", residual.stream_name(stream),
                    tap::site_name(point.site), point.layer),
        path);
  }
  return {};
}

}  // namespace

std::vector<PartList> StreamChoice::part_lists(const tap::Geometry& geometry) const {
  if (geometry.residual.streams == 1) return {PartList()};
  if (stream != kAll) return {PartList{stream}};
  std::vector<PartList> lists;
  lists.reserve(static_cast<size_t>(geometry.residual.streams));
  for (int32_t i = 0; i < geometry.residual.streams; ++i) lists.push_back({i});
  return lists;
}

Result<StreamChoice> read_stream(const json::value& value, std::span<const tap::Point> points,
                                 const tap::Geometry& geometry, const std::string& path) {
  for (const tap::Point& point : points) {
    if (tap::is_residual(point.site)) continue;
    return invalid_field(
        fmt::format("resid_pre, resid_mid and resid_post have streams, {} has none",
                    tap::site_name(point.site)),
        path);
  }
  if (value.is_string() && value.get_string() == "all") return StreamChoice{};
  const int32_t count = geometry.residual.streams;
  const Result<int32_t> stream = read_int(value, path);
  if (stream && *stream >= 0 && *stream < count) {
    RUDDER_TRY_VOID(check_is_made(*stream, points, geometry.residual, path));
    return StreamChoice{*stream};
  }
  return invalid_field(
      fmt::format("\"all\" or a number from 0 to {} is needed: the residual of this model has {} "
                  "stream{}",
                  count - 1, count, count == 1 ? "" : "s"),
      path);
}

Result<std::optional<StreamChoice>> read_stream_of(const json::object& object,
                                                   std::span<const tap::Point> points,
                                                   const tap::Geometry& geometry,
                                                   const std::string& path) {
  const json::value* const value = member(object, "stream");
  if (value == nullptr) return std::optional<StreamChoice>();
  RUDDER_TRY(const StreamChoice choice,
             read_stream(*value, points, geometry, join_path(path, "stream")));
  return std::optional(choice);
}

}  // namespace rudder::steer
