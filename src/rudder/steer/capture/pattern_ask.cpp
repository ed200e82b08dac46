#include "rudder/steer/capture/pattern_ask.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>
#include <numeric>

#include "rudder/steer/invalid_field.h"
#include "rudder/steer/numbered.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

constexpr int32_t kDefaultKeys = 256;
constexpr int32_t kMostKeys = 1 << 20;

bool is_all(const json::value& value) {
  return value.is_string() && value.get_string() == "all";
}

std::vector<int32_t> first_numbers(int32_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

Result<std::vector<int32_t>> read_pattern_layers(const json::value& value, const std::string& path,
                                                 const tap::Geometry& geometry) {
  const auto attends = [&](int32_t layer) { return geometry.pattern_heads(layer) > 0; };
  std::vector<int32_t> layers;
  if (is_all(value)) {
    layers = first_numbers(geometry.num_layers);
    std::erase_if(layers, [&](int32_t layer) { return !attends(layer); });
    if (layers.empty()) return invalid_field("no layer of this model has attention", path);
    return layers;
  }
  const auto check = [&](int32_t layer) -> Result<void> {
    if (attends(layer)) return {};
    return fail(ErrorCode::kInvalidArgument, fmt::format("layer {} has no attention", layer));
  };
  RUDDER_TRY(layers, read_numbers(value,
                                  {.noun = "layer",
                                   .count = geometry.num_layers,
                                   .of = fmt::format("a model with {} layers", geometry.num_layers),
                                   .check = check},
                                  path));
  std::ranges::sort(layers);
  return layers;
}

Result<std::vector<int32_t>> read_pattern_heads(const json::value* value, int32_t layer,
                                                const std::string& path,
                                                const tap::Geometry& geometry) {
  const int32_t count = geometry.pattern_heads(layer);
  std::vector<int32_t> heads;
  if (value == nullptr || is_all(*value)) {
    heads = first_numbers(count);
  } else {
    RUDDER_TRY(heads,
               read_numbers(*value,
                            {.noun = "head",
                             .count = count,
                             .of = fmt::format("layer {}, which has {} heads", layer, count)},
                            path));
  }
  if (std::ranges::max(heads) >= tap::kMaxPatternHeads) {
    return invalid_field(
        fmt::format("patterns are of the first {} heads of a layer alone", tap::kMaxPatternHeads),
        path);
  }
  return heads;
}

Result<int32_t> read_keys(const json::value* value, const std::string& path) {
  if (value == nullptr) return kDefaultKeys;
  const int64_t* number = value->if_int64();
  if (number != nullptr && *number >= 1 && *number <= kMostKeys) {
    return static_cast<int32_t>(*number);
  }
  return invalid_field(fmt::format("must be a whole number from 1 to {}", kMostKeys), path);
}

}  // namespace

std::vector<tap::CapturePattern> PatternAsk::captured() const {
  std::vector<tap::CapturePattern> patterns;
  for (const Layer& layer : layers) {
    patterns.push_back({.layer = layer.layer, .keys = keys, .heads = layer.heads});
    std::ranges::sort(patterns.back().heads);
  }
  return patterns;
}

Result<PatternAsk> parse_patterns(const json::object& fields, const std::string& path,
                                  const tap::Geometry& geometry) {
  PatternAsk ask;
  const json::value* field = fields.if_contains("patterns");
  if (field == nullptr) return ask;
  const std::string at = path + ".patterns";
  const json::object* object = field->if_object();
  if (object == nullptr) {
    return invalid_field(R"(must be an object: {"layers": [5], "heads": [0], "keys": 64})", at);
  }
  for (const auto& [key, value] : *object) {
    if (key == "layers" || key == "heads" || key == "keys") continue;
    return invalid_field("unknown field: layers, heads and keys are known",
                         fmt::format("{}.{}", at, std::string_view(key)));
  }
  const json::value* layers = object->if_contains("layers");
  if (layers == nullptr) return invalid_field("is required", at + ".layers");
  RUDDER_TRY(const std::vector<int32_t> read,
             read_pattern_layers(*layers, at + ".layers", geometry));
  for (const int32_t layer : read) {
    PatternAsk::Layer& asked = ask.layers.emplace_back();
    asked.layer = layer;
    RUDDER_TRY(asked.heads,
               read_pattern_heads(object->if_contains("heads"), layer, at + ".heads", geometry));
  }
  RUDDER_TRY(ask.keys, read_keys(object->if_contains("keys"), at + ".keys"));
  return ask;
}

std::vector<tap::CapturePattern> merge_patterns(std::vector<tap::CapturePattern> asked) {
  std::ranges::stable_sort(asked, {}, &tap::CapturePattern::layer);
  std::vector<tap::CapturePattern> merged;
  for (tap::CapturePattern& pattern : asked) {
    if (merged.empty() || merged.back().layer != pattern.layer) {
      merged.push_back(std::move(pattern));
      continue;
    }
    tap::CapturePattern& same = merged.back();
    std::vector<int32_t> heads;
    std::ranges::set_union(same.heads, pattern.heads, std::back_inserter(heads));
    same.heads = std::move(heads);
    same.keys = std::max(same.keys, pattern.keys);
  }
  return merged;
}

}  // namespace rudder::steer::capture
