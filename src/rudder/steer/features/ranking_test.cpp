#include "rudder/steer/features/ranking.h"

#include <gtest/gtest.h>

#include <random>

#include "rudder/features/top_features.h"

namespace rudder::steer {
namespace {

// Every pair counted.
double naive_auroc(const std::vector<float>& positive, const std::vector<float>& negative) {
  double sum = 0;
  for (const float p : positive) {
    for (const float n : negative) sum += p > n ? 1 : p == n ? 0.5 : 0;
  }
  return sum / static_cast<double>(positive.size() * negative.size());
}

TEST(Ranking, AurocIsTheShareOfPairsInOrder) {
  EXPECT_EQ(auroc(std::vector<float>{2, 3}, std::vector<float>{0, 1}), 1);
  EXPECT_EQ(auroc(std::vector<float>{0, 1}, std::vector<float>{2, 3}), 0);
  EXPECT_EQ(auroc(std::vector<float>{0, 0}, std::vector<float>{0, 0}), 0.5);
  EXPECT_EQ(auroc(std::vector<float>{}, std::vector<float>{1}), 0.5);
  std::mt19937 random(5);
  std::uniform_int_distribution<int> few(0, 4);  // many ties
  for (int round = 0; round < 50; ++round) {
    std::vector<float> positive(1 + static_cast<size_t>(few(random)) * 3);
    std::vector<float> negative(1 + static_cast<size_t>(few(random)) * 2);
    for (float& value : positive) value = static_cast<float>(few(random));
    for (float& value : negative) value = static_cast<float>(few(random));
    EXPECT_NEAR(auroc(positive, negative), naive_auroc(positive, negative), 1e-12);
  }
}

TEST(Ranking, TheLargestDifferenceComesFirst) {
  const RowSet positive{3, {0, 5, 1, 0, 7, 1}};
  const RowSet negative{3, {4, 0, 1, 0, 0, 1, 4, 0, 1}};
  const std::vector<FeatureRank> ranks = rank_features(positive, negative);
  ASSERT_EQ(ranks.size(), 3u);
  EXPECT_EQ(ranks[0].feature, 1);
  EXPECT_EQ(ranks[0].positive, 6);
  EXPECT_EQ(ranks[0].negative, 0);
  EXPECT_EQ(ranks[0].auroc, 1);
  EXPECT_EQ(ranks[1].feature, 2);
  EXPECT_EQ(ranks[1].difference(), 0);
  EXPECT_EQ(ranks[1].auroc, 0.5);
  EXPECT_EQ(ranks[2].feature, 0);
  EXPECT_NEAR(ranks[2].difference(), -8.0 / 3, 1e-6);
}

TEST(TopFeatures, TheLargestAboveZeroInOrder) {
  const std::vector<float> features = {0, 2, 5, 0, 2, 1};
  const auto numbers = [&](int32_t count) {
    std::vector<int32_t> found;
    for (const features::FeatureValue& one : features::top_features(features, count))
      found.push_back(one.feature);
    return found;
  };
  EXPECT_EQ(numbers(3), (std::vector<int32_t>{2, 1, 4}));
  EXPECT_EQ(numbers(100), (std::vector<int32_t>{2, 1, 4, 5}));
  EXPECT_EQ(features::top_features(features, 1).front().value, 5);
  EXPECT_TRUE(features::top_features(std::vector<float>{0, 0}, 2).empty());
}

}  // namespace
}  // namespace rudder::steer
