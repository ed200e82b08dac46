#include "rudder/steer/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <optional>

#include "rudder/steer/invalid_field.h"
#include "rudder/steer/vectors.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr std::string_view kForms =
    R"(a layer, a list of layers, "all", "4-7" or {"ranges": [[first, last]]} is needed)";

// A whole number without leading zeros; below 0 too.
std::optional<int32_t> whole_number(std::string_view text) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  const bool is_plain = digits.size() == 1 || !digits.starts_with('0');
  if (error != std::errc{} || end != text.data() + text.size() || !is_plain) return std::nullopt;
  return number;
}

Result<int32_t> from_the_front(int32_t number, const tap::Geometry& geometry,
                               const std::string& path) {
  const int64_t layer = number < 0 ? int64_t{geometry.num_layers} + number : int64_t{number};
  if (layer >= 0 && layer < geometry.num_layers) return static_cast<int32_t>(layer);
  return invalid_field(
      fmt::format("layer {} of a model with {} layers", number, geometry.num_layers), path);
}

class LayerReader {
 public:
  LayerReader(tap::Site site, const tap::Geometry& geometry) : site_(site), geometry_(geometry) {}

  Result<void> read(const json::value& value, const std::string& path) {
    if (const json::string* text = value.if_string()) {
      return std::string_view(*text) == "all" ? add_all(path) : read_text(*text, path);
    }
    if (const json::array* list = value.if_array()) return read_list(*list, path);
    if (const json::object* object = value.if_object()) return read_object(*object, path);
    if (!value.is_number()) return invalid_field(std::string(kForms), path);
    RUDDER_TRY(const int32_t layer, read_layer(value, geometry_, path));
    return add(layer, path);
  }

  std::vector<int32_t> take() { return std::move(layers_); }

 private:
  Result<void> read_list(const json::array& list, const std::string& path) {
    if (list.empty()) return invalid_field("the list of layers is empty", path);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", path, i);
      if (const json::string* text = list[i].if_string()) {
        RUDDER_TRY_VOID(read_text(*text, at));
      } else {
        RUDDER_TRY(const int32_t layer, read_layer(list[i], geometry_, at));
        RUDDER_TRY_VOID(add(layer, at));
      }
    }
    return {};
  }

  Result<void> read_object(const json::object& object, const std::string& path) {
    if (object.empty()) return invalid_field(std::string(kForms), path);
    for (const auto& [key, value] : object) {
      const std::string at = fmt::format("{}.{}", path, std::string_view(key));
      const json::array* list = value.if_array();
      if (key != "layers" && key != "ranges") {
        return invalid_field("unknown field: layers and ranges are known", at);
      }
      if (list == nullptr) return invalid_field("must be a list", at);
      RUDDER_TRY_VOID(key == "layers" ? read_list(*list, at) : read_ranges(*list, at));
    }
    return {};
  }

  Result<void> read_ranges(const json::array& list, const std::string& path) {
    if (list.empty()) return invalid_field("names no layer", path);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", path, i);
      const json::array* pair = list[i].if_array();
      if (pair == nullptr || pair->size() != 2) return invalid_field("must be [first, last]", at);
      RUDDER_TRY(const int32_t first, read_layer((*pair)[0], geometry_, at + "[0]"));
      RUDDER_TRY(const int32_t last, read_layer((*pair)[1], geometry_, at + "[1]"));
      RUDDER_TRY_VOID(add_range(first, last, at));
    }
    return {};
  }

  // "4,8-12,-1": the dash of a range is not the first character of its part.
  Result<void> read_text(std::string_view text, const std::string& path) {
    while (true) {
      const size_t comma = text.find(',');
      const std::string_view part = text.substr(0, comma);
      const size_t dash = part.find('-', 1);
      RUDDER_TRY(const int32_t first, read_layer(part.substr(0, dash), geometry_, path));
      int32_t last = first;
      if (dash != std::string_view::npos) {
        RUDDER_TRY(last, read_layer(part.substr(dash + 1), geometry_, path));
      }
      RUDDER_TRY_VOID(add_range(first, last, path));
      if (comma == std::string_view::npos) return {};
      text.remove_prefix(comma + 1);
    }
  }

  Result<void> add_all(const std::string& path) {
    if (geometry_.is_divided(site_)) return add(0, path);  // its error
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      if (geometry_.has({layer, site_})) layers_.push_back(layer);
    }
    if (layers_.empty()) return invalid_field("no layer of this model has this site", path);
    return {};
  }

  Result<void> add_range(int32_t first, int32_t last, const std::string& path) {
    if (first > last) {
      return invalid_field(fmt::format("the range from layer {} to {} is empty", first, last),
                           path);
    }
    for (int32_t layer = first; layer <= last; ++layer) RUDDER_TRY_VOID(add(layer, path));
    return {};
  }

  Result<void> add(int32_t layer, const std::string& path) {
    const Result<void> known = geometry_.check({layer, site_});
    if (!known) return invalid_field(known.error().message, path);
    if (std::ranges::find(layers_, layer) != layers_.end()) {
      return invalid_field(fmt::format("layer {} is given twice", layer), path);
    }
    layers_.push_back(layer);
    return {};
  }

  const tap::Site site_;
  const tap::Geometry& geometry_;
  std::vector<int32_t> layers_;
};

}  // namespace

Result<std::vector<int32_t>> read_layers(const json::value& value, tap::Site site,
                                         const tap::Geometry& geometry, const std::string& path) {
  LayerReader reader(site, geometry);
  RUDDER_TRY_VOID(reader.read(value, path));
  return reader.take();
}

Result<int32_t> read_layer(const json::value& value, const tap::Geometry& geometry,
                           const std::string& path) {
  json::value whole = value;
  if (value.is_double() && value.get_double() == std::floor(value.get_double()) &&
      std::abs(value.get_double()) < tap::kNoEnd) {
    whole = static_cast<int64_t>(value.get_double());
  }
  RUDDER_TRY(const int32_t number, read_int(whole, path));
  return from_the_front(number, geometry, path);
}

Result<int32_t> read_layer(std::string_view text, const tap::Geometry& geometry,
                           const std::string& path) {
  const std::optional<int32_t> number = whole_number(text);
  if (!number) return invalid_field("the number of a layer is needed", path);
  return from_the_front(*number, geometry, path);
}

}  // namespace rudder::steer
