#include "rudder/steer/capture/feature_ask.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "rudder/steer/features/batch_encode.h"
#include "rudder/steer/invalid_field.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

constexpr int32_t kDefaultTop = 8;
constexpr int32_t kMostFeatures = 1024;  // of a row
constexpr size_t kRowsAtOnce = 16;       // encoded: enough that their encoder is read seldom

Result<int32_t> read_number(const json::value& value, int64_t low, int64_t high,
                            const std::string& path) {
  const int64_t* number = value.if_int64();
  if (number != nullptr && *number >= low && *number <= high) return static_cast<int32_t>(*number);
  return invalid_field(fmt::format("must be a whole number from {} to {}", low, high), path);
}

Result<std::shared_ptr<const Dictionary>> find_layer(const DictionarySet& set,
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

Result<FeatureAsk> parse_feature_ask(const json::object& fields, const std::string& path,
                                     const DictionaryLookup& lookup) {
  FeatureAsk ask;
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

std::vector<std::vector<FeatureValue>> read_features(const FeatureAsk& ask,
                                                     std::span<const float> rows) {
  const Dictionary& dictionary = *ask.dictionary;
  const auto width = static_cast<size_t>(dictionary.d_in);
  const bool reads_columns = ask.top == 0 && dictionary.activation != Activation::kTopK;
  const auto count =
      reads_columns ? ask.features.size() : static_cast<size_t>(dictionary.num_features);
  std::vector<std::vector<FeatureValue>> told;
  std::vector<float> values;
  for (size_t begin = 0; begin < rows.size(); begin += kRowsAtOnce * width) {
    const auto some = rows.subspan(begin, std::min(kRowsAtOnce * width, rows.size() - begin));
    values.resize(some.size() / width * count);
    if (reads_columns) {
      encode_columns(dictionary, some, ask.features, values);
    } else {
      encode_rows(dictionary, some, values);
    }
    for (size_t at = 0; at < values.size(); at += count) {
      const std::span<const float> of_row = std::span(values).subspan(at, count);
      if (ask.top > 0) {
        told.push_back(top_features(of_row, ask.top));
        continue;
      }
      std::vector<FeatureValue>& listed = told.emplace_back();
      for (size_t i = 0; i < ask.features.size(); ++i) {
        const int32_t feature = ask.features[i];
        listed.push_back({feature, of_row[reads_columns ? i : static_cast<size_t>(feature)]});
      }
    }
  }
  return told;
}

}  // namespace rudder::steer::capture
