#include "rudder/steer/capture/feature_ask.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "rudder/features/feature_reader.h"
#include "rudder/steer/invalid_field.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

constexpr int32_t kDefaultTop = 8;
constexpr int32_t kMostFeatures = 1024;  // of a row

Result<int32_t> read_number(const json::value& value, int64_t low, int64_t high,
                            const std::string& path) {
  const int64_t* number = value.if_int64();
  if (number != nullptr && *number >= low && *number <= high) return static_cast<int32_t>(*number);
  return invalid_field(fmt::format("must be a whole number from {} to {}", low, high), path);
}

Result<std::shared_ptr<const features::Dictionary>> find_layer(const features::DictionarySet& set,
                                                               const json::value* layer,
                                                               const std::string& path) {
  if (layer == nullptr) {
    if (set.layers.size() == 1) return set.layers[0];
    return invalid_field(fmt::format("'{}' has dictionaries of {} layers: a layer is needed",
                                     set.name, set.layers.size()),
                         path);
  }
  const int64_t* number = layer->if_int64();
  const auto* found = number == nullptr || *number < 0 || *number > INT32_MAX
                          ? nullptr
                          : set.at_layer(static_cast<int32_t>(*number));
  if (found != nullptr) return *found;
  return invalid_field(fmt::format("'{}' has no dictionary of that layer", set.name), path);
}

Result<std::vector<int32_t>> read_list(const json::value& value, int32_t num_features,
                                       const std::string& path) {
  const json::array* list = value.if_array();
  if (list == nullptr || list->empty() || list->size() > size_t{kMostFeatures}) {
    return invalid_field(fmt::format("must be a list of 1 to {} features", kMostFeatures), path);
  }
  std::vector<int32_t> features;
  for (size_t i = 0; i < list->size(); ++i) {
    RUDDER_TRY(features.emplace_back(),
               read_number((*list)[i], 0, num_features - 1, fmt::format("{}[{}]", path, i)));
  }
  return features;
}

}  // namespace

Result<features::FeatureAsk> parse_feature_ask(const json::object& fields, const std::string& path,
                                               const DictionaryLookup& lookup,
                                               const features::FeatureReader* reader) {
  features::FeatureAsk ask;
  const json::value* name = fields.if_contains("dictionary");
  if (name == nullptr) {
    for (const char* key : {"layer", "top", "features"}) {
      if (fields.contains(key)) {
        return invalid_field("needs a dictionary", fmt::format("{}.{}", path, key));
      }
    }
    return ask;
  }
  const std::string where = path + ".dictionary";
  if (!name->is_string()) return invalid_field("must be the name of a dictionary", where);
  ask.name = std::string(name->get_string());
  const auto set = lookup ? lookup(ask.name) : nullptr;
  if (set == nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("no dictionary is named '{}'", ask.name), where);
  }
  RUDDER_TRY(ask.dictionary, find_layer(*set, fields.if_contains("layer"), path + ".layer"));
  if (reader != nullptr) {
    if (const Result<void> fits = reader->check(*ask.dictionary); !fits) {
      return invalid_field(fits.error().message, where);
    }
  }
  const json::value* top = fields.if_contains("top");
  const json::value* features = fields.if_contains("features");
  if (top != nullptr && features != nullptr) {
    return invalid_field("is one way to say which, top is the other", path + ".features");
  }
  if (features != nullptr) {
    RUDDER_TRY(ask.features,
               read_list(*features, ask.dictionary->num_features, path + ".features"));
    return ask;
  }
  ask.top = kDefaultTop;
  if (top != nullptr) {
    RUDDER_TRY(ask.top, read_number(*top, 1, kMostFeatures, path + ".top"));
  }
  return ask;
}

}  // namespace rudder::steer::capture
