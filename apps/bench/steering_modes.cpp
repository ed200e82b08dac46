#include "bench/steering_modes.h"

#include <fmt/format.h>

#include <random>
#include <span>

#include "bench/bench_dictionary.h"
#include "rudder/steer/capture/base64.h"

namespace rudder::apps {
namespace {

// {SITE: {"dtype": …, "shape": …, "layer_indices": …, "data": …}}
std::string packed_vectors(const tap::Geometry& geometry, tap::Site site, int32_t config) {
  constexpr float kSpread = 0.02f;  // small beside a row of any model
  std::mt19937 random(static_cast<uint32_t>(config));
  std::normal_distribution<float> normal(0, kSpread);
  const int64_t width = geometry.width({0, site});
  std::vector<float> values(static_cast<size_t>(geometry.num_layers * width));
  for (float& value : values) value = normal(random);
  std::string layers;
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    layers += fmt::format("{}{}", layer == 0 ? "" : ",", layer);
  }
  std::string text =
      fmt::format(R"({{"{}":{{"dtype":"float32","shape":[{},{}],"layer_indices":[{}],"data":")",
                  tap::site_name(site), geometry.num_layers, width, layers);
  steer::capture::append_base64(text, std::as_bytes(std::span(values)));
  return text + "\"}}";
}

const std::string kNoSteering = "{}";
const std::string kNamed = fmt::format(R"({{"steering_name":"{}"}})", kBenchModule);

}  // namespace

const std::vector<SteeringMode>& steering_modes() {
  static const std::vector<SteeringMode> modes = {
      {.name = "disabled", .has_steering_off = true},
      {.name = "enabled_idle"},
      {.name = "named_shared", .is_named = true},
      {.name = "all_steered_shared", .num_configs = 1},
      {.name = "per_request_n4", .num_configs = 4},
      {.name = "per_request_n16", .num_configs = 16},
      {.name = "per_request_n256", .num_configs = 256},
      {.name = "feature_delta_1", .num_features = 1},
      {.name = "feature_delta_8", .num_features = 8},
      {.name = "feature_delta_64", .num_features = 64},
      {.name = "feature_topk_16k", .num_encoded = 16384, .is_large = true},
      {.name = "feature_full_16k", .num_encoded = 16384, .reconstructs = true, .is_large = true},
      {.name = "feature_topk_65k", .num_encoded = 65536, .is_large = true},
      {.name = "feature_full_65k", .num_encoded = 65536, .reconstructs = true, .is_large = true},
      {.name = "feature_gate", .is_gated = true},
      {.name = "feature_stream_top", .is_large = true, .readout = BenchReadout::kTopFeatures},
      {.name = "feature_stream_list", .is_large = true, .readout = BenchReadout::kListedFeatures},
      {.name = "attn_z_add", .adds_to_heads = true},
      {.name = "probe", .readout = BenchReadout::kProbe},
      {.name = "stop_when", .watches = true},
      {.name = "lens", .readout = BenchReadout::kLens},
      {.name = "capture_one_site", .num_captured = 1},
      {.name = "capture_all_layers", .num_captured = -1},
  };
  return modes;
}

std::string packed_steering(const tap::Geometry& geometry, int32_t config) {
  return fmt::format(R"({{"steering_vectors":{}}})",
                     packed_vectors(geometry, tap::Site::kResidPost, config));
}

std::string bench_module(const tap::Geometry& geometry) {
  return fmt::format(R"({{"name":"{}","vectors":{}}})", kBenchModule,
                     packed_vectors(geometry, tap::Site::kResidPost, 0));
}

std::string heads_steering(const tap::Geometry& geometry) {
  return fmt::format(R"({{"steering_vectors":{}}})",
                     packed_vectors(geometry, tap::Site::kAttnZ, 0));
}

const std::string& steering_body(const SteeringMode& mode, const std::vector<std::string>& configs,
                                 int64_t index) {
  if (mode.is_named) return kNamed;
  if (mode.num_configs == 0) return kNoSteering;
  return configs[static_cast<size_t>(index % mode.num_configs)];
}

std::string capture_field(const SteeringMode& mode, const tap::Geometry& geometry,
                          std::string_view dictionary) {
  const int32_t layer = geometry.num_layers / 2;
  const auto response = [](const std::string& fields) {
    return fmt::format(R"({{"response":{{{},"positions":"all"}}}})", fields);
  };
  switch (mode.readout) {
    case BenchReadout::kNone:
      break;
    case BenchReadout::kTopFeatures:
      return response(fmt::format(R"("dictionary":"{}","top":8)", dictionary));
    case BenchReadout::kListedFeatures:
      return response(fmt::format(R"("dictionary":"{}","features":[0,1,2,3,4,5,6,7])", dictionary));
    case BenchReadout::kProbe:
      return response(fmt::format(R"("sites":{{"resid_post":[{}]}},"probes":{{"bench":"{}"}})",
                                  layer, kBenchModule));
    case BenchReadout::kLens:
      return response(fmt::format(R"("lens":{{"layers":[{}],"top":5}})", layer));
  }
  if (mode.num_captured == 0) return "";
  const std::string layers = mode.num_captured < 0 ? "\"all\"" : fmt::format("[{}]", layer);
  return fmt::format(
      R"({{"filesystem":{{"sites":{{"resid_post":{}}},"positions":"all","point":"post"}}}})",
      layers);
}

int64_t floor_bytes(const SteeringMode& mode, const tap::Geometry& geometry, tensor::DType dtype) {
  const int64_t row = geometry.hidden;
  if (mode.num_encoded > 0) {
    const int64_t decoder_rows = mode.reconstructs ? kBenchActive : 1;
    return (mode.num_encoded + decoder_rows) * row *
           static_cast<int64_t>(tensor::dtype_bytes(dtype));
  }
  // Columns are vectors of the requests' programs, in f32.
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  if (mode.is_gated) return 2 * row * kFloat;
  return 2 * mode.num_features * row * kFloat;
}

}  // namespace rudder::apps
