#include "rudder/steer/heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <memory>

#include "rudder/steer/invalid_field.h"
#include "rudder/steer/numbered.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

Result<HeadList> heads_of_layer(const json::value& value, tap::Point point,
                                const tap::Geometry& geometry, const std::string& path) {
  if (point.site != tap::Site::kAttnZ) {
    return invalid_field(fmt::format("only {} has heads, {} has none",
                                     tap::site_name(tap::Site::kAttnZ), tap::site_name(point.site)),
                         path);
  }
  if (value.is_string() && value.get_string() == "all") return HeadList();
  const int32_t count = geometry.heads[static_cast<size_t>(point.layer)].count;
  RUDDER_TRY(HeadList heads,
             read_numbers(value,
                          {.noun = "head",
                           .count = count,
                           .of = fmt::format("layer {}, which has {} heads", point.layer, count)},
                          path));
  if (std::ssize(heads) == count && std::ranges::is_sorted(heads)) heads.clear();
  return heads;
}

}  // namespace

Result<std::vector<HeadList>> read_heads(const json::value& value,
                                         std::span<const tap::Point> points,
                                         const tap::Geometry& geometry, const std::string& path) {
  std::vector<HeadList> by_point;
  for (const tap::Point& point : points) {
    RUDDER_TRY(by_point.emplace_back(), heads_of_layer(value, point, geometry, path));
  }
  return by_point;
}

int32_t HeadRows::width(const HeadList& heads, const tap::Heads& layer) {
  return heads.empty() ? layer.width() : static_cast<int32_t>(heads.size()) * layer.dim;
}

Row HeadRows::spread(const Row& row, bool is_whole, const HeadList& heads,
                     const tap::Heads& layer) {
  if (heads.empty()) return row;
  const auto [found, is_new] =
      made_.try_emplace({row.values().data(), heads, layer.count, layer.dim});
  if (!is_new) return found->second;
  auto buffer = std::make_shared<float[]>(static_cast<size_t>(layer.width()));
  for (size_t i = 0; i < heads.size(); ++i) {
    const int32_t to = heads[i] * layer.dim;
    const int32_t from = is_whole ? to : static_cast<int32_t>(i) * layer.dim;
    std::copy_n(row.values().data() + from, layer.dim, buffer.get() + to);
  }
  found->second = {std::move(buffer), 0, layer.width()};
  return found->second;
}

Row HeadRows::mask(const HeadList& heads, const tap::Heads& layer) {
  if (heads.empty()) return {};
  const auto [found, is_new] = made_.try_emplace({nullptr, heads, layer.count, layer.dim});
  if (!is_new) return found->second;
  auto buffer = std::make_shared<float[]>(static_cast<size_t>(layer.width()));
  for (const int32_t head : heads) std::fill_n(buffer.get() + head * layer.dim, layer.dim, 1.0f);
  found->second = {std::move(buffer), 0, layer.width()};
  return found->second;
}

}  // namespace rudder::steer
