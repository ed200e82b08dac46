#include "rudder/steer/capture/watch.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "rudder/steer/capture/spec.h"
#include "rudder/steer/features/test_dictionary.h"

namespace rudder::steer::capture {
namespace {

Watch first_element() {
  auto vector = std::make_shared<float[]>(2);
  vector[0] = 1;
  Watch watch;
  watch.vector = {vector, 0, 2};
  return watch;
}

TEST(Watch, AFeaturesValueIsThatOfItsEncode) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const auto activation : {features::Activation::kRelu, features::Activation::kJumpRelu,
                                features::Activation::kGated}) {
    for (const auto norm :
         {tap::FeatureNorm::kNone, tap::FeatureNorm::kConstantNorm, tap::FeatureNorm::kLayerNorm}) {
      const auto dictionary = std::make_shared<const features::Dictionary>(random_dictionary(
          {.activation = activation, .norm = norm, .subtracts_bias = true}, random()));
      std::vector<float> row(static_cast<size_t>(dictionary->d_in));
      for (float& value : row) value = 3 * normal(random);
      std::vector<float> features(static_cast<size_t>(dictionary->num_features));
      encode(*dictionary, row, features);
      for (int32_t j = 0; j < dictionary->num_features; ++j) {
        Watch watch;
        watch.dictionary = dictionary;
        watch.feature = j;
        EXPECT_NEAR(watch_score(watch, row), features[static_cast<size_t>(j)], 1e-5);
      }
    }
  }
}

TEST(StopCount, CountsTokensInARow) {
  const StopWhen stop{.watch = first_element(), .above = 1, .count = 2};
  StopCount count;
  int32_t position = 10;
  const auto read = [&](float score) {
    count.read(stop, position++, std::vector<float>{score, 100});
    return count.is_met(stop);
  };
  EXPECT_FALSE(read(2));
  EXPECT_FALSE(read(1));  // not above
  EXPECT_FALSE(read(2));
  EXPECT_FALSE(read(std::numeric_limits<float>::quiet_NaN()));
  EXPECT_FALSE(read(2));
  EXPECT_TRUE(read(1.5));
  EXPECT_TRUE(read(std::numeric_limits<float>::infinity()));
  EXPECT_FALSE(read(0));
}

// Rows that come again, because a sequence was computed again, do not count twice.
TEST(StopCount, ReadsEachPositionOnce) {
  const StopWhen stop{.watch = first_element(), .above = 0, .count = 2};
  StopCount count;
  const std::vector<float> row = {1, 0};
  count.read(stop, 4, row);
  count.read(stop, 4, row);
  EXPECT_FALSE(count.is_met(stop));
  count.read(stop, 5, row);
  EXPECT_TRUE(count.is_met(stop));
}

// The row that the engine reads is in the record, and every generated token is captured.
TEST(Spec, TheEngineReadsWithoutAConsumer) {
  SpecContext context;
  context.geometry = {
      .num_layers = 2,
      .hidden = 8,
      .mlp_width = {16, 16},
      .sites = {tap::dense_sites_but(tap::Site::kAttnZ), tap::dense_sites_but(tap::Site::kAttnZ)},
      .dtype = tensor::DType::kBF16};
  context.limits.capture_elements = 1024;
  StopWhen stop;
  stop.watch.point = {.point = {1, tap::Site::kMlpAct}};
  const auto spec = combine({}, stop, context);
  ASSERT_TRUE(spec.has_value());
  EXPECT_TRUE(spec->is_for_engine_alone());
  EXPECT_EQ(spec->stop_width, 16);
  EXPECT_EQ(spec->set->points.size(), 1u);
  const auto ranges = captured_ranges(*spec, 5);
  ASSERT_TRUE(ranges.has_value() && ranges->size() == 1);
  EXPECT_EQ(ranges->front().begin, 5);
  EXPECT_EQ(ranges->front().end, tap::kNoEnd);
  context.limits.capture_elements = 1;
  EXPECT_EQ(combine({}, stop, context).error().where, "stop_when");
}

}  // namespace
}  // namespace rudder::steer::capture
