// Captures of the numbers that streams are written by, of backends that have StreamOps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance_streams.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

// As the write makes them, in f32; the rows are what they are without captures.
TEST_P(OpsStreamTaps, NumbersOfTokens) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  for (const int32_t count : {1, 3, 4}) {
    for (const int64_t tokens : {1, 11, 40}) {
      SCOPED_TRACE(std::to_string(count) + " streams of " + std::to_string(tokens) + " tokens");
      const int64_t width = wide(37);
      const ops::StreamRule rule{
          .streams = count, .iterations = 6, .eps = 0.01f, .norm_eps = 0.01f};
      const ops::StreamMap map{numbers({rule.rows(), count * width}, 0.1),
                               numbers({rule.rows()}, 1), numbers({3}, 1)};
      Scene scene = scene_of(count, width, tokens, {{kPostMix, false}, {kResMix, true}});
      put_scene(scene, tokens * record_elements(scene.sets[0], scene.geometry));
      const View x = random({tokens, count * width});
      const View delta = random({tokens, width});
      const View plain = copy(x);
      const Matrix before = read(x);
      ops::ConnectStreamsArgs args{.x = plain, .delta = delta, .write = map, .rule = rule};
      streams->connect_streams(args);
      args.x = x;
      args.post_taps = scene.at(kPostMix);
      args.mix_taps = scene.at(kResMix);
      streams->connect_streams(args);
      EXPECT_EQ(max_difference(read(x), read(plain)), 0);
      for (size_t t = 0; t < scene.tokens.size(); ++t) {
        if (scene.tokens[t].capture_set < 0) continue;
        const ReferenceNumbers expected = reference_numbers(
            rule, to_reference(map, device_), row_of(before, static_cast<int64_t>(t)));
        expect_numbers(captured(scene, t, 0, count), expected.post, "post ");
        expect_numbers(captured(scene, t, 1, int64_t{count} * count), expected.mix, "mix ");
      }
    }
  }
}

TEST_P(OpsStreamTaps, NumbersOfGatedStreams) {
  ops::StreamOps* const streams = ops_.stream_ops();
  if (streams == nullptr) GTEST_SKIP() << "it has no residual of several streams";
  constexpr int32_t kCount = 3;
  constexpr int64_t kTokens = 11;
  const int64_t width = wide(37);
  const ops::StreamGate gate{.norm = {.weight = numbers({kCount * width}, 1), .eps = 0.01f},
                             .inject = numbers({kCount, kCount * width}, 0.1)};
  Scene scene = scene_of(kCount, width, kTokens, {{kPostMix, false}});
  put_scene(scene, kTokens * record_elements(scene.sets[0], scene.geometry));
  const View x = random({kTokens, kCount * width});
  const View delta = random({kTokens, width});
  const View plain = copy(x);
  const std::vector<Matrix> before = streams_of(read(x), width);
  streams->gate_streams({.x = plain, .delta = delta, .write = gate});
  streams->gate_streams({.x = x, .delta = delta, .write = gate, .post_taps = scene.at(kPostMix)});
  EXPECT_EQ(max_difference(read(x), read(plain)), 0);
  // What a branch of ones adds to a stream.
  Matrix ones(kTokens, width);
  std::ranges::fill(ones.values, 1.0);
  const std::vector<Matrix> written =
      reference_gated_write(to_reference(gate, device_), before, ones);
  for (size_t t = 0; t < scene.tokens.size(); ++t) {
    if (scene.tokens[t].capture_set < 0) continue;
    std::vector<double> expected;
    for (size_t j = 0; j < before.size(); ++j) {
      const auto row = static_cast<int64_t>(t);
      expected.push_back(written[j].at(row, 0) - before[j].at(row, 0));
    }
    expect_numbers(captured(scene, t, 0, kCount), expected, "post ");
  }
}

}  // namespace
}  // namespace rudder::testing
