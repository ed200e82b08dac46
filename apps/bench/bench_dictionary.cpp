#include "bench/bench_dictionary.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <span>
#include <vector>

#include "bench/steering_modes.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::apps {
namespace {

// Small beside a row of any model.
constexpr float kDecoderSpread = 0.02f;

}  // namespace

std::string BenchDictionary::name() const {
  return fmt::format("bench_{}_{}", num_features, k);
}

Result<void> write_bench_dictionary(const BenchDictionary& dictionary,
                                    const tap::Geometry& geometry, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(ErrorCode::kInternal, error.message(), folder);
  const uint64_t width = static_cast<uint64_t>(geometry.hidden);
  const auto features = static_cast<uint64_t>(dictionary.num_features);
  std::mt19937 random(1);
  const auto values = [&](uint64_t count, float spread) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> out(count);
    for (float& value : out) value = normal(random);
    return out;
  };
  std::vector<std::vector<float>> tensors = {
      values(features * width, 1 / std::sqrt(static_cast<float>(width))),
      std::vector<float>(features), values(features * width, kDecoderSpread),
      std::vector<float>(width)};
  using weights::TensorShape;
  const auto rows = TensorShape::of({features, width});
  const auto column = TensorShape::of({features});
  std::vector<weights::TensorDecl> names = {
      {"encoder", tensor::DType::kF32, rows},
      {"encoder_bias", tensor::DType::kF32, column},
      {"decoder", tensor::DType::kF32, rows},
      {"output_bias", tensor::DType::kF32, TensorShape::of({width})}};
  std::string activation = fmt::format(R"("topk","k":{})", dictionary.k);
  if (dictionary.k == 0) {
    activation = R"("jumprelu")";
    tensors.emplace_back(features, 0.5f);
    names.push_back({"threshold", tensor::DType::kF32, column});
  }
  RUDDER_TRY(const auto file,
             weights::SafetensorsWriter::create(folder + "/weights.safetensors", names, {}));
  for (size_t i = 0; i < tensors.size(); ++i) {
    RUDDER_TRY_VOID(file->write(i, 0, std::as_bytes(std::span(tensors[i]))));
  }
  RUDDER_TRY_VOID(file->finish(false));
  return weights::write_file_atomically(
      folder + "/dictionary.json",
      fmt::format(R"({{"format":"rudder-dictionary","read":"resid_post.{}","activation":{},)"
                  R"("weights":"weights.safetensors"}})",
                  geometry.num_layers / 2, activation),
      false);
}

std::string feature_clamps(const BenchDictionary& dictionary, int32_t count) {
  std::string ops;
  for (int32_t i = 0; i < count; ++i) {
    ops += fmt::format(
        R"({}{{"op":"feature","dictionary":"{}","feature":{},"kind":"set","value":0.25}})",
        i == 0 ? "" : ",", dictionary.name(), i);
  }
  return fmt::format(R"({{"steering":[{}]}})", ops);
}

std::string gated_add(const BenchDictionary& dictionary, const tap::Geometry& geometry) {
  return fmt::format(R"({{"steering":{{"op":"add","site":"resid_post","layers":[{}],"vector":"{}",)"
                     R"("gate":{{"feature":{{"dictionary":"{}","feature":0,"above":0.5}}}}}}}})",
                     geometry.num_layers / 2, kBenchModule, dictionary.name());
}

std::string watched_feature(const BenchDictionary& dictionary) {
  return fmt::format(R"({{"feature":{{"dictionary":"{}","feature":0}},"above":1e6}})",
                     dictionary.name());
}

std::string reconstruction(const BenchDictionary& dictionary) {
  return fmt::format(R"({{"steering":{{"op":"feature","dictionary":"{}","mode":"full"}}}})",
                     dictionary.name());
}

}  // namespace rudder::apps
