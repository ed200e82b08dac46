#include "rudder/steer/layers.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "rudder/steer/invalid_field.h"
#include "rudder/steer/numbered.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

Numbered layers_of(const tap::Geometry& geometry) {
  return {.noun = "layer",
          .count = geometry.num_layers,
          .of = fmt::format("a model with {} layers", geometry.num_layers)};
}

Result<std::vector<int32_t>> all_layers(tap::Site site, const tap::Geometry& geometry,
                                        const std::string& path) {
  std::vector<int32_t> layers;
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    if (geometry.has({layer, site})) layers.push_back(layer);
  }
  if (layers.empty()) return invalid_field("no layer of this model has this site", path);
  return layers;
}

}  // namespace

Result<std::vector<int32_t>> read_layers(const json::value& value, tap::Site site,
                                         const tap::Geometry& geometry, const std::string& path) {
  if (value.is_string() && value.get_string() == "all") return all_layers(site, geometry, path);
  Numbered layers = layers_of(geometry);
  layers.check = [&](int32_t layer) { return geometry.check({layer, site}); };
  return read_numbers(value, layers, path);
}

Result<int32_t> read_layer(const json::value& value, const tap::Geometry& geometry,
                           const std::string& path) {
  return read_number_of(value, layers_of(geometry), path);
}

Result<int32_t> read_layer(std::string_view text, const tap::Geometry& geometry,
                           const std::string& path) {
  return read_number_of(text, layers_of(geometry), path);
}

}  // namespace rudder::steer
