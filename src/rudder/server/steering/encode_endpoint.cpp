// POST /v1/steering/features/encode: the features of rows that the client has, as captures give
// them. Computed on the server's pool, in the library's own dictionaries; the engine is not asked.
//
//   {"dictionary", "layer"?, "rows": [[…], …] | packed, "top"?: 8 | "features"?: [3, 17]}
//   -> {"dictionary", "layer", "rows": [{"features": […], "values": […]}, …]}
#include <fmt/format.h>

#include <boost/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/features/dictionary.h"
#include "rudder/features/top_features.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/pool_answer.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/steer/invalid_field.h"
#include "rudder/steer/library.h"
#include "rudder/steer/vectors.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr int32_t kDefaultTop = 8;
constexpr int32_t kMaxTop = 1024;
constexpr size_t kMaxListedFeatures = 4096;
// Products of one request: some seconds of one core.
constexpr int64_t kMaxProducts = int64_t{1} << 33;
constexpr int64_t kMaxAnswerNumbers = int64_t{1} << 20;

struct EncodeRequest {
  std::string name;
  std::shared_ptr<const features::Dictionary> dictionary;
  steer::Rows rows;
  int32_t top = kDefaultTop;
  std::vector<int32_t> features;  // where some are listed; else the `top` largest are told
};

Result<std::shared_ptr<const features::Dictionary>> find_layer(
    const features::DictionarySet& set, const std::optional<int32_t>& layer) {
  const auto* found = layer ? set.at_layer(*layer) : &set.layers.front();
  if (found != nullptr && (layer || set.layers.size() == 1)) return *found;
  return steer::invalid_field(layer ? fmt::format("the dictionary has no layer {}", *layer)
                                    : "is required: the dictionary has several",
                              "layer");
}

Result<steer::Rows> read_numbers(const json::object& body) {
  const json::value* value = body.if_contains("rows");
  if (value == nullptr) return steer::invalid_field("is required", "rows");
  if (const json::array* lists = value->if_array()) return steer::read_lists(*lists, "rows");
  if (const json::object* packed = value->if_object()) return steer::read_packed(*packed, "rows");
  return steer::invalid_field("must be rows of numbers, or packed rows", "rows");
}

Result<void> check_rows(const steer::Rows& rows, const features::Dictionary& dictionary) {
  if (rows.width != dictionary.d_in) {
    return steer::invalid_field(fmt::format("rows of {} numbers; the dictionary reads rows of {}",
                                            rows.width, dictionary.d_in),
                                "rows");
  }
  const int64_t products = int64_t{dictionary.d_in} * dictionary.num_features;
  if (rows.count <= kMaxProducts / products) return {};
  return steer::invalid_field(fmt::format("{} rows; of this dictionary at most {} are encoded at a "
                                          "time",
                                          rows.count, kMaxProducts / products),
                              "rows");
}

Result<std::vector<int32_t>> read_listed(const json::value& value, int32_t num_features) {
  const json::array* list = value.if_array();
  if (list == nullptr || list->empty() || list->size() > kMaxListedFeatures) {
    return steer::invalid_field(
        fmt::format("must be a list of 1 to {} numbers of features", kMaxListedFeatures),
        "features");
  }
  std::vector<int32_t> features;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("features[{}]", i);
    RUDDER_TRY(const int32_t feature, steer::read_int((*list)[i], where));
    if (feature < 0 || feature >= num_features) {
      return steer::invalid_field(fmt::format("must be from 0 to {}", num_features - 1), where);
    }
    features.push_back(feature);
  }
  return features;
}

// What can be said of the fields before the dictionary is known.
Result<void> check_forms(const json::object& body) {
  if (const json::value* layer = body.if_contains("layer")) {
    RUDDER_TRY_VOID(steer::read_int(*layer, "layer"));
  }
  if (const json::value* top = body.if_contains("top")) {
    RUDDER_TRY(const int32_t wanted, steer::read_int(*top, "top"));
    if (wanted < 1 || wanted > kMaxTop) {
      return steer::invalid_field(fmt::format("must be from 1 to {}", kMaxTop), "top");
    }
  }
  if (const json::value* listed = body.if_contains("features")) {
    RUDDER_TRY_VOID(read_listed(*listed, INT32_MAX));
  }
  return {};
}

Result<EncodeRequest> read_encode(const steer::Library& library, const json::object& body) {
  for (const auto& [key, value] : body) {
    if (key == "dictionary" || key == "layer" || key == "rows" || key == "top" ||
        key == "features") {
      continue;
    }
    return steer::invalid_field("unknown: dictionary, layer, rows, top and features are known",
                                std::string(key));
  }
  EncodeRequest request;
  const json::value* name = body.if_contains("dictionary");
  if (name == nullptr || !name->is_string()) {
    return steer::invalid_field("a name is needed", "dictionary");
  }
  request.name = std::string(name->get_string());
  RUDDER_TRY_VOID(check_forms(body));
  RUDDER_TRY(request.rows, read_numbers(body));
  const auto set = library.find_dictionary(request.name);
  if (set == nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("no dictionary is named '{}'", request.name),
                "dictionary");
  }
  std::optional<int32_t> layer;
  if (const json::value* value = body.if_contains("layer")) {
    RUDDER_TRY(layer, steer::read_int(*value, "layer"));
  }
  RUDDER_TRY(request.dictionary, find_layer(*set, layer));
  if (const json::value* listed = body.if_contains("features")) {
    if (body.contains("top")) return steer::invalid_field("goes without features", "top");
    RUDDER_TRY(request.features, read_listed(*listed, request.dictionary->num_features));
  } else if (const json::value* top = body.if_contains("top")) {
    RUDDER_TRY(request.top, steer::read_int(*top, "top"));
  }
  RUDDER_TRY_VOID(check_rows(request.rows, *request.dictionary));
  const int64_t told = request.features.empty() ? request.top : std::ssize(request.features);
  if (request.rows.count * told > kMaxAnswerNumbers) {
    return steer::invalid_field(fmt::format("{} values; an answer has at most {}",
                                            request.rows.count * told, kMaxAnswerNumbers),
                                "rows");
  }
  return request;
}

json::object told_of(const EncodeRequest& request, std::span<const float> features) {
  json::array numbers;
  json::array values;
  if (request.features.empty()) {
    for (const features::FeatureValue& one : features::top_features(features, request.top)) {
      numbers.emplace_back(one.feature);
      values.emplace_back(one.value);
    }
  }
  for (const int32_t feature : request.features) {
    numbers.emplace_back(feature);
    values.emplace_back(features[static_cast<size_t>(feature)]);
  }
  return {{"features", std::move(numbers)}, {"values", std::move(values)}};
}

HttpResponse encode_rows(const steer::Library& library, const json::object& body) {
  const Result<EncodeRequest> request = read_encode(library, body);
  if (!request) return error_response(request.error());
  const features::Dictionary& dictionary = *request->dictionary;
  std::vector<float> features(static_cast<size_t>(dictionary.num_features));
  json::array rows;
  for (int64_t i = 0; i < request->rows.count; ++i) {
    features::encode(dictionary, request->rows.row(i).values(), features);
    rows.push_back(told_of(*request, features));
  }
  HttpResponse response;
  response.body = to_json_text(json::object{
      {"dictionary", request->name}, {"layer", dictionary.read.layer}, {"rows", std::move(rows)}});
  return response;
}

}  // namespace

void handle_feature_encode(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const steer::Library* library = context.parts.steering;
  if (library == nullptr) {
    return exchange->respond(error_response(
        Error{ErrorCode::kUnsupported,
              "dictionaries need a server that was started with --enable-steering", ""}));
  }
  answer_on_pool(context, exchange, [library](const std::string& body) {
    const auto object = parse_body(body.empty() ? "{}" : body);
    return object ? encode_rows(*library, *object) : error_response(object.error());
  });
}

}  // namespace rudder::server
