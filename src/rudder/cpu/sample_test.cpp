#include "rudder/cpu/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "rudder/base/philox.h"

namespace rudder::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int32_t sample_one(const ops::SampleRow& row, std::vector<float> logits,
                   ops::SampleLogprobs* logprobs = nullptr) {
  int32_t token = -2;
  ops::SampleLogprobs unused;
  const tensor::View view{
      logits.data(), tensor::DType::kF32, {1, static_cast<int64_t>(logits.size())}};
  sample_rows({.logits = view,
               .rows = {&row, 1},
               .tokens = {&token, 1},
               .logprobs = {logprobs != nullptr ? logprobs : &unused, 1}});
  return token;
}

// The probabilities of the definition (step/sampling.h), in double, by sorting. `slack` moves the
// borders of top-p and min-p by a relative amount.
std::vector<double> naive_probabilities(const ops::SampleRow& row, std::vector<float> logits,
                                        double slack = 0) {
  const size_t vocab = logits.size();
  for (const auto& [token, bias] : row.logit_bias) logits[static_cast<size_t>(token)] += bias;
  if (row.ban_stop_ids) {
    for (const int32_t token : row.stop_ids) logits[static_cast<size_t>(token)] = -kInfinity;
  }
  for (size_t i = 0; row.output_count != nullptr && i < vocab; ++i) {
    float& x = logits[i];
    const int32_t count = row.output_count[i];
    if (count > 0 || row.prompt_seen[i] != 0) {
      x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
    }
    x = x - row.frequency_penalty * static_cast<float>(count) -
        (count > 0 ? row.presence_penalty : 0.0f);
  }
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const double max = logits[order[0]];
  std::vector<double> p(vocab);
  for (size_t i = 0; i < vocab; ++i) p[i] = std::exp((logits[i] - max) / row.temperature);
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < vocab) {
    const float kth = logits[order[static_cast<size_t>(row.top_k) - 1]];
    for (size_t i = 0; i < vocab; ++i) p[i] = logits[i] < kth ? 0 : p[i];
  }
  if (row.top_p < 1) {
    const double mass = row.top_p * (1 + slack) * std::accumulate(p.begin(), p.end(), 0.0);
    double before = 0;
    for (const size_t i : order) {
      const double weight = p[i];
      if (before >= mass) p[i] = 0;
      before += weight;
    }
  }
  for (double& weight : p) weight = weight < row.min_p * (1 + slack) ? 0 : weight;
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& weight : p) weight /= total;
  return p;
}

// The token that the uniform number falls on, or where `shift` moves it.
int32_t naive_draw(const std::vector<double>& p, double uniform, double shift) {
  double sum = 0;
  int32_t last = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) continue;
    sum += p[i];
    last = static_cast<int32_t>(i);
    if (sum > uniform + shift) break;
  }
  return last;
}

// The same token as the definition gives, borders of rounding aside.
void expect_as_defined(const ops::SampleRow& row, const std::vector<float>& logits) {
  const int32_t token = sample_one(row, logits);
  const double uniform = philox_uniform(row.seed, static_cast<uint64_t>(row.position));
  for (const double slack : {0.0, -1e-5, 1e-5}) {
    const std::vector<double> p = naive_probabilities(row, logits, slack);
    for (const double shift : {0.0, -1e-5, 1e-5}) {
      if (token == naive_draw(p, uniform, shift)) return;
    }
  }
  ADD_FAILURE() << "token " << token << ", seed " << row.seed << ", vocab " << logits.size()
                << ", temperature " << row.temperature << ", top_k " << row.top_k << ", top_p "
                << row.top_p << ", min_p " << row.min_p;
}

std::vector<float> random_logits(size_t vocab, float deviation, std::mt19937& engine) {
  std::normal_distribution<float> normal;
  std::vector<float> logits(vocab);
  for (float& x : logits) x = deviation * normal(engine);
  return logits;
}

TEST(Sample, DrawsWhatTheDefinitionSays) {
  std::mt19937 engine(1);
  const auto pick = [&](auto... options) {
    const std::array values = {options...};
    return values[engine() % values.size()];
  };
  for (int i = 0; i < 1500; ++i) {
    const size_t vocab =
        pick(size_t{1}, size_t{2}, size_t{17}, size_t{256}, size_t{1000}, size_t{5003});
    std::vector<float> logits = random_logits(vocab, pick(0.01f, 1.0f, 4.0f, 20.0f), engine);
    if (engine() % 3 == 0) {
      // As from a bf16 head: many ties.
      for (float& x : logits) x = std::round(x * 4) / 4;
    }
    ops::SampleRow row;
    row.temperature = pick(1e-5f, 0.3f, 1.0f, 2.0f);
    row.top_k = pick(0, 0, 1, 5, 40, 2000);
    row.top_p = pick(1.0f, 1.0f, 0.95f, 0.5f, 1e-6f);
    row.min_p = pick(0.0f, 0.0f, 0.05f, 1.0f);
    row.seed = engine();
    row.position = static_cast<int32_t>(engine() % 1000);
    std::vector<int32_t> count(vocab);
    std::vector<uint8_t> seen(vocab);
    std::vector<std::pair<int32_t, float>> bias;
    if (engine() % 3 == 0) {
      for (int32_t& c : count) c = engine() % 4 == 0 ? static_cast<int32_t>(engine() % 3) : 0;
      for (uint8_t& s : seen) s = engine() % 2;
      row.output_count = count.data();
      row.prompt_seen = seen.data();
      row.repetition_penalty = pick(0.8f, 1.0f, 1.5f);
      row.presence_penalty = pick(-1.0f, 0.0f, 1.0f);
      row.frequency_penalty = pick(-1.0f, 0.0f, 1.0f);
      bias.emplace_back(static_cast<int32_t>(engine() % vocab), pick(-100.0f, 3.0f));
      row.logit_bias = bias;
    }
    expect_as_defined(row, logits);
  }
}

TEST(Sample, DrawsWhatTheDefinitionSaysAtFullVocabulary) {
  std::mt19937 engine(2);
  for (const float deviation : {0.0f, 0.5f, 3.0f}) {
    const std::vector<float> logits = random_logits(151936, deviation, engine);
    for (const float top_p : {1.0f, 0.9f}) {
      for (const int32_t top_k : {0, 20, 5000}) {
        ops::SampleRow row;
        row.top_p = top_p;
        row.top_k = top_k;
        row.seed = engine();
        expect_as_defined(row, logits);
      }
    }
  }
}

// Pearson's chi-square against the naive probabilities; 5 sigma above its mean fails.
void expect_distribution(ops::SampleRow row, const std::vector<float>& logits) {
  const std::vector<double> p = naive_probabilities(row, logits);
  constexpr int kDraws = 40000;
  std::vector<int> seen(p.size());
  for (int i = 0; i < kDraws; ++i) {
    row.seed = static_cast<uint64_t>(i % 200);
    row.position = i / 200;
    ++seen[static_cast<size_t>(sample_one(row, logits))];
  }
  double chi_square = 0;
  double freedom = -1;
  double rest_expected = 0;
  double rest_seen = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * kDraws;
    if (expected == 0) {
      EXPECT_EQ(seen[i], 0) << i;
    } else if (expected < 8) {
      rest_expected += expected;
      rest_seen += seen[i];
    } else {
      chi_square += (seen[i] - expected) * (seen[i] - expected) / expected;
      ++freedom;
    }
  }
  if (rest_expected >= 8) {
    chi_square += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++freedom;
  }
  EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * std::max(freedom, 1.0)));
}

TEST(Sample, DistributionIsTheSoftmax) {
  std::mt19937 engine(3);
  const std::vector<float> logits = random_logits(60, 1.5f, engine);
  ops::SampleRow row;
  expect_distribution(row, logits);
  row.temperature = 0.6f;
  expect_distribution(row, logits);
  row.top_k = 12;
  expect_distribution(row, logits);
  row.top_p = 0.8f;
  expect_distribution(row, logits);
  row.top_k = 0;
  row.temperature = 1.4f;
  expect_distribution(row, logits);
  row.min_p = 0.2f;
  expect_distribution(row, logits);
}

TEST(Sample, GreedyTakesTheFirstMaximum) {
  std::vector<float> logits(1000, -1.0f);
  logits[700] = 3;
  logits[300] = 3;
  ops::SampleRow row;
  row.temperature = 0;
  row.top_k = 5;  // without effect
  EXPECT_EQ(sample_one(row, logits), 300);
}

TEST(Sample, RowsThatAreNoNumbersGiveNoToken) {
  ops::SampleRow row;
  for (const float temperature : {0.0f, 1.0f}) {
    row.temperature = temperature;
    std::vector<float> logits(500, 0.5f);
    logits[499] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(sample_one(row, logits), -1);
    logits[499] = kInfinity;
    EXPECT_EQ(sample_one(row, logits), -1);
    std::fill(logits.begin(), logits.end(), -kInfinity);
    EXPECT_EQ(sample_one(row, logits), -1);
    logits[77] = -5;
    EXPECT_EQ(sample_one(row, logits), 77);
    const std::vector<int32_t> stop_ids = {77};
    row.stop_ids = stop_ids;
    row.ban_stop_ids = true;
    EXPECT_EQ(sample_one(row, logits), -1);
    row.ban_stop_ids = false;
  }
}

TEST(Sample, BannedStopIdsAreNeverDrawn) {
  const std::vector<float> logits = {5, 4, 1};
  const std::vector<int32_t> stop_ids = {0, 999999, -3};
  ops::SampleRow row;
  row.stop_ids = stop_ids;
  row.ban_stop_ids = true;
  row.temperature = 0;
  EXPECT_EQ(sample_one(row, logits), 1);
  row.temperature = 2;
  for (row.seed = 0; row.seed < 200; ++row.seed) EXPECT_NE(sample_one(row, logits), 0);
}

TEST(Sample, LogprobsAreOfTheRawLogits) {
  std::mt19937 engine(4);
  const std::vector<float> logits = random_logits(3000, 3, engine);
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x});
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });

  // The bias makes an unlikely token win; its logprob does not know of it.
  const auto unlikely = static_cast<int32_t>(order[2000]);
  const std::vector<std::pair<int32_t, float>> bias = {{unlikely, 100.0f}};
  ops::SampleRow row;
  row.temperature = 0.5f;
  row.logit_bias = bias;
  row.num_logprobs = 20;
  std::vector<std::pair<int32_t, float>> top(20);
  ops::SampleLogprobs logprobs;
  logprobs.top = top;
  EXPECT_EQ(sample_one(row, logits, &logprobs), unlikely);
  EXPECT_EQ(logprobs.rank, 2001);
  EXPECT_NEAR(logprobs.logprob, logits[order[2000]] - std::log(sum), 2e-6);
  ASSERT_EQ(logprobs.top.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(logprobs.top[i].first, static_cast<int32_t>(order[i]));
    EXPECT_NEAR(logprobs.top[i].second, logits[order[i]] - std::log(sum), 2e-6);
  }

  row.logit_bias = {};
  row.num_logprobs = 5;
  logprobs.top = std::span(top).first(5);
  sample_one(row, {1, 2, 3}, &logprobs);
  EXPECT_EQ(logprobs.top.size(), 3u);
}

TEST(Sample, ARowDependsOnNothingElse) {
  std::mt19937 engine(5);
  constexpr int64_t kRows = 24;
  constexpr int64_t kVocab = 2000;
  std::vector<float> logits = random_logits(kRows * kVocab, 2, engine);
  std::vector<ops::SampleRow> rows(kRows);
  std::vector<int32_t> alone;
  for (size_t r = 0; r < kRows; ++r) {
    rows[r].seed = engine();
    rows[r].top_p = r % 2 == 0 ? 0.9f : 1.0f;
    rows[r].top_k = r % 3 == 0 ? 50 : 0;
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(r * kVocab);
    alone.push_back(sample_one(rows[r], {begin, begin + kVocab}));
  }
  ThreadPool pool(4);
  std::vector<int32_t> together(kRows);
  sample_rows({.logits = {logits.data(), tensor::DType::kF32, {kRows, kVocab}},
               .rows = rows,
               .tokens = together,
               .logprobs = {}},
              &pool);
  EXPECT_EQ(together, alone);
}

}  // namespace
}  // namespace rudder::cpu
