#include "eval/divergence_of_texts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace rudder::apps {
namespace {

using Distributions = std::vector<std::vector<double>>;  // [positions, vocabulary]

Distributions random_distributions(uint32_t seed, size_t count, size_t vocab) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1.7);
  Distributions all(count, std::vector<double>(vocab));
  for (auto& row : all) {
    double sum = 0;
    for (double& p : row) sum += p = std::exp(normal(random));
    for (double& p : row) p /= sum;
  }
  return all;
}

Distributions perturbed(const Distributions& from, uint32_t seed, double deviation) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  Distributions all = from;
  for (auto& row : all) {
    double sum = 0;
    for (double& p : row) sum += p *= std::exp(normal(random));
    for (double& p : row) p /= sum;
  }
  return all;
}

// As a run that tells the `top` likeliest tokens; the text's tokens are i * 5 % vocab.
ScoredText scored(const Distributions& all, size_t top) {
  ScoredText text;
  text.tokens = {0};
  text.top = static_cast<int32_t>(top);
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t vocab = all[i].size();
    const size_t token = i * 5 % vocab;
    text.positions.push_back(static_cast<int32_t>(text.tokens.size()));
    text.tokens.push_back(static_cast<int32_t>(token));
    text.logprobs.push_back(static_cast<float>(std::log(all[i][token])));
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](int32_t a, int32_t b) {
      return all[i][static_cast<size_t>(a)] > all[i][static_cast<size_t>(b)];
    });
    for (size_t k = 0; k < top; ++k) {
      text.top_tokens.push_back(order[k]);
      text.top_logprobs.push_back(
          static_cast<float>(std::log(all[i][static_cast<size_t>(order[k])])));
    }
  }
  return text;
}

double exact_kl(const Distributions& p, const Distributions& q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    for (size_t k = 0; k < p[i].size(); ++k) sum += p[i][k] * std::log(p[i][k] / q[i][k]);
  }
  return sum / static_cast<double>(p.size());
}

TEST(DivergenceOfTexts, OfAllTokensItIsExact) {
  const Distributions p = random_distributions(3, 211, 37);
  const Distributions q = perturbed(p, 4, 0.3);
  const TextDivergence found = divergence_of(scored(p, 37), scored(q, 37));
  EXPECT_NEAR(found.kl.value, exact_kl(p, q), 1e-5);
  EXPECT_NEAR(found.kl_with_rest, exact_kl(p, q), 1e-5);
  EXPECT_LT(found.rest, 1e-5);
  double same = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    same += std::ranges::max_element(p[i]) - p[i].begin() ==
                    std::ranges::max_element(q[i]) - q[i].begin()
                ? 1
                : 0;
  }
  EXPECT_NEAR(found.first_choice.value, same / 211, 1e-12);
}

TEST(DivergenceOfTexts, OfSomeTokensItIsALowerBoundAndTheEstimateIsNear) {
  for (uint32_t seed = 10; seed < 30; ++seed) {
    const Distributions p = random_distributions(seed, 307, 131);
    const Distributions q = perturbed(p, seed + 1000, 0.07 * (seed % 5 + 1));
    const TextDivergence found = divergence_of(scored(p, 20), scored(q, 20));
    EXPECT_GT(found.kl.value, 0);
    EXPECT_LE(found.kl.value, exact_kl(p, q) + 1e-6);
    EXPECT_NEAR(found.kl_with_rest / exact_kl(p, q), 1, 0.2);
    EXPECT_GT(found.rest, 0.05);
  }
}

TEST(DivergenceOfTexts, MoreTokensGiveNoLess) {
  const Distributions p = random_distributions(5, 97, 53);
  const Distributions q = perturbed(p, 6, 0.2);
  double last = 0;
  for (const size_t top : {2, 5, 11, 29, 53}) {
    const double kl = divergence_of(scored(p, top), scored(q, 53)).kl.value;
    EXPECT_GE(kl, last - 1e-6);
    last = kl;
  }
}

TEST(DivergenceOfTexts, OfItselfItIsNothing) {
  const Distributions p = random_distributions(7, 41, 67);
  const TextDivergence found = divergence_of(scored(p, 13), scored(p, 13));
  EXPECT_LT(found.kl.value, 1e-9);
  EXPECT_EQ(found.first_choice.value, 1);
  EXPECT_EQ(found.perplexity_ratio.value, 1);
  EXPECT_EQ(found.perplexity_ratio.error, 0);
}

TEST(DivergenceOfTexts, PerplexityAndItsError) {
  ScoredText text;
  text.logprobs = {-1.25F, -0.5F, -3.75F, -2.125F, -0.625F};
  text.positions = {1, 2, 3, 4, 5};
  const Estimate found = perplexity_of(text);
  EXPECT_NEAR(found.value, std::exp(1.65), 1e-9);
  EXPECT_NEAR(found.error, std::exp(1.65) * std::sqrt(7.16875 / 4 / 5), 1e-9);
}

}  // namespace
}  // namespace rudder::apps
