// Several rows at once against encode(), which takes one in double precision.
#include "rudder/features/batch_encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "rudder/steer/features/test_dictionary.h"

namespace rudder::steer {
namespace {

constexpr int32_t kFeatures = 37;

std::vector<float> normal_rows(int32_t count, int32_t width) {
  std::mt19937_64 engine(static_cast<uint64_t>(width));
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(count * width));
  for (float& value : rows) value = normal(engine);
  return rows;
}

// What is kept of a row of topk is tested where no two values are near each other.
TEST(BatchEncode, RowsHaveTheFeaturesOfTheirOwnEncode) {
  for (const int32_t width : {1, 8, 29, 520, 1031}) {
    for (const features::Activation activation :
         {features::Activation::kRelu, features::Activation::kJumpRelu, features::Activation::kTopK,
          features::Activation::kGated}) {
      for (const tap::FeatureNorm norm : {tap::FeatureNorm::kNone, tap::FeatureNorm::kLayerNorm}) {
        const features::Dictionary dictionary = random_dictionary({.width = width,
                                                                   .num_features = kFeatures,
                                                                   .activation = activation,
                                                                   .norm = norm,
                                                                   .subtracts_bias = true},
                                                                  7);
        for (const int32_t count : {1, 3, 4, 9}) {
          const std::vector<float> rows = normal_rows(count, width);
          std::vector<float> got(static_cast<size_t>(count) * kFeatures);
          features::encode_rows(dictionary, rows, got);
          for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
            const size_t size = static_cast<size_t>(width);
            std::vector<float> expected(kFeatures);
            encode(dictionary, std::span(rows).subspan(r * size, size), expected);
            for (size_t j = 0; j < expected.size(); ++j) {
              EXPECT_NEAR(got[r * kFeatures + j], expected[j], 1e-5 * (1 + std::abs(expected[j])))
                  << "width " << width << ", row " << r << " of " << count << ", feature " << j;
            }
          }
        }
      }
    }
  }
}

TEST(BatchEncode, ARowDoesNotDependOnItsBatch) {
  const features::Dictionary dictionary =
      random_dictionary({.width = 100, .num_features = kFeatures}, 3);
  const std::vector<float> rows = normal_rows(6, 100);
  std::vector<float> together(size_t{6} * kFeatures);
  features::encode_rows(dictionary, rows, together);
  for (size_t r = 0; r < 6; ++r) {
    std::vector<float> alone(kFeatures);
    features::encode_rows(dictionary, std::span(rows).subspan(r * 100, 100), alone);
    EXPECT_TRUE(std::ranges::equal(alone, std::span(together).subspan(r * kFeatures, kFeatures)));
  }
}

TEST(BatchEncode, ColumnsAreThoseOfTheWholeEncode) {
  const features::Dictionary dictionary = random_dictionary(
      {.width = 61, .num_features = kFeatures, .activation = features::Activation::kJumpRelu}, 5);
  const std::vector<float> rows = normal_rows(5, 61);
  std::vector<float> all(size_t{5} * kFeatures);
  features::encode_rows(dictionary, rows, all);
  const std::vector<int32_t> which = {36, 0, 12, 12};
  std::vector<float> some(5 * which.size());
  features::encode_columns(dictionary, rows, which, some);
  for (size_t r = 0; r < 5; ++r) {
    for (size_t i = 0; i < which.size(); ++i) {
      EXPECT_EQ(some[r * which.size() + i], all[r * kFeatures + static_cast<size_t>(which[i])]);
    }
  }
}

}  // namespace
}  // namespace rudder::steer
