// The part of the conformance suite that is about residuals of several streams: their formulas by
// weights of a device, and captures of the numbers that streams are written by. See
// ops_conformance_taps.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rudder/testing/ops_conformance_taps.h"
#include "rudder/testing/reference_gates.h"
#include "rudder/testing/reference_streams.h"

namespace rudder::testing {

inline ReferenceMap to_reference(const ops::StreamMap& map, Device& device) {
  return {device.matrix(map.fn), device.matrix(map.base), device.matrix(map.scale)};
}
inline ReferenceStreamGate to_reference(const ops::StreamGate& gate, Device& device) {
  const auto matrix = [&](const tensor::View& view) {
    return view.empty() ? Matrix() : device.matrix(view);
  };
  return {matrix(gate.norm.weight), double{gate.norm.eps}, matrix(gate.down), matrix(gate.up),
          matrix(gate.inject)};
}

class OpsStreamTaps : public OpsTaps {
 protected:
  static constexpr tap::Point kPostMix = {0, tap::Site::kAttnPostMix};
  static constexpr tap::Point kResMix = {0, tap::Site::kAttnResMix};

  tensor::View numbers(tensor::Shape shape, double scale) {
    int64_t count = 1;
    for (int i = 0; i < shape.rank(); ++i) count *= shape[i];
    const std::vector<float> values = random_values(count, scale);
    return device_.put_as(std::span<const float>(values), tensor::DType::kF32, shape);
  }

  // Tokens of which every third is captured, at these points.
  Scene scene_of(int32_t streams, int64_t width, int64_t tokens,
                 std::vector<tap::CapturePoint> points) {
    Scene scene;
    scene.geometry = {
        .num_layers = 1,
        .hidden = static_cast<int32_t>(width),
        .mlp_width = {0},
        .heads = {{1, 8}},
        .sites = {static_cast<uint16_t>(tap::kDenseSites | tap::kPostMixSites | tap::kResMixSites)},
        .dtype = act_,
        .residual = {.streams = streams}};
    scene.sets = {{std::move(points)}};
    const int64_t record = record_elements(scene.sets[0], scene.geometry);
    for (int64_t t = 0; t < tokens; ++t) {
      scene.tokens.push_back({});
      if (t % 3 != 1) continue;
      scene.tokens.back().capture_set = 0;
      scene.tokens.back().capture_begin = static_cast<int32_t>(t * record / tap::kCaptureAlign);
    }
    return scene;
  }
  std::vector<float> captured(const Scene& scene, size_t token, size_t point, int64_t width) {
    std::vector<int64_t> offsets;
    record_elements(scene.sets[0], scene.geometry, &offsets);
    const int64_t at = scene.tokens[token].capture_begin * tap::kCaptureAlign + offsets[point];
    auto* const ring = static_cast<std::byte*>(scene.table.ring.data);
    return device_.values<float>({ring + at * static_cast<int64_t>(tensor::dtype_bytes(act_)),
                                  tensor::DType::kF32,
                                  {width}});
  }
  static void expect_numbers(const std::vector<float>& got, const std::vector<double>& expected,
                             const std::string& what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 8e-6) << what << i;
  }
};

}  // namespace rudder::testing
