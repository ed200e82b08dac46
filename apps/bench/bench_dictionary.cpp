#include "bench/bench_dictionary.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <span>
#include <vector>

#include "rudder/weights/safetensors_writer.h"

namespace rudder::apps {
namespace {

// Small beside a row of any model.
constexpr float kDecoderSpread = 0.02f;

}  // namespace

Result<void> write_bench_dictionary(const tap::Geometry& geometry, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(ErrorCode::kInternal, error.message(), folder);
  const uint64_t width = static_cast<uint64_t>(geometry.hidden);
  constexpr uint64_t kFeatures = kBenchFeatures;
  std::mt19937 random(1);
  const auto values = [&](uint64_t count, float spread) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> out(count);
    for (float& value : out) value = normal(random);
    return out;
  };
  const std::vector<std::vector<float>> tensors = {
      values(kFeatures * width, 1 / std::sqrt(static_cast<float>(width))),
      std::vector<float>(kFeatures), values(kFeatures * width, kDecoderSpread),
      std::vector<float>(width), std::vector<float>(kFeatures, 0.5f)};
  using weights::TensorShape;
  const auto rows = TensorShape::of({kFeatures, width});
  const auto column = TensorShape::of({kFeatures});
  const std::vector<weights::TensorDecl> names = {
      {"encoder", tensor::DType::kF32, rows},
      {"encoder_bias", tensor::DType::kF32, column},
      {"decoder", tensor::DType::kF32, rows},
      {"output_bias", tensor::DType::kF32, TensorShape::of({width})},
      {"threshold", tensor::DType::kF32, column}};
  RUDDER_TRY(const auto file,
             weights::SafetensorsWriter::create(folder + "/weights.safetensors", names, {}));
  for (size_t i = 0; i < tensors.size(); ++i) {
    RUDDER_TRY_VOID(file->write(i, 0, std::as_bytes(std::span(tensors[i]))));
  }
  RUDDER_TRY_VOID(file->finish(false));
  return weights::write_file_atomically(
      folder + "/dictionary.json",
      fmt::format(
          R"({{"format":"rudder-dictionary","read":"resid_post.{}","activation":"jumprelu",)"
          R"("weights":"weights.safetensors"}})",
          geometry.num_layers / 2),
      false);
}

std::string feature_clamps(int32_t count) {
  std::string ops;
  for (int32_t i = 0; i < count; ++i) {
    ops += fmt::format(
        R"({}{{"op":"feature","dictionary":"{}","feature":{},"kind":"set","value":0.25}})",
        i == 0 ? "" : ",", kBenchDictionary, i);
  }
  return fmt::format(R"({{"steering":[{}]}})", ops);
}

}  // namespace rudder::apps
