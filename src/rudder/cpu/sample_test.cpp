#include "rudder/cpu/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "rudder/base/philox.h"
#include "rudder/cpu/sample_kernels.h"

namespace rudder::cpu {
namespace {

// One row to sample with its lists and counts, still on the host.
struct Ask {
  ops::SampleRow params;
  std::vector<int32_t> stop_ids = {};
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  std::vector<int32_t> output_count = {};  // [vocab], or none
  std::vector<uint8_t> prompt_seen = {};
  std::vector<uint8_t> allowed = {};  // [vocab], or none: all are
};

// The memory of one call: row r is slot r, and row num_rows of the state is of padding.
class Call {
 public:
  Call(const std::vector<Ask>& asks, std::vector<float> logits)
      : num_rows_(static_cast<int64_t>(asks.size())),
        vocab_(static_cast<int64_t>(logits.size()) / num_rows_),
        logits_(std::move(logits)),
        sampled(asks.size()),
        carry(asks.size() + 1, -1),
        ended(asks.size() + 1) {
    for (size_t r = 0; r < asks.size(); ++r) {
      const Ask& ask = asks[r];
      ops::SampleRow row = ask.params;
      row.slot = static_cast<int32_t>(r);
      if (row.max_len == 0) row.max_len = std::numeric_limits<int32_t>::max();
      row.stop_begin = static_cast<int32_t>(lists_.size());
      row.num_stop_ids = static_cast<int32_t>(ask.stop_ids.size());
      lists_.insert(lists_.end(), ask.stop_ids.begin(), ask.stop_ids.end());
      row.bias_begin = static_cast<int32_t>(lists_.size());
      row.num_bias = static_cast<int32_t>(ask.logit_bias.size());
      for (const auto& [token, bias] : ask.logit_bias) {
        lists_.push_back(token);
        lists_.push_back(std::bit_cast<int32_t>(bias));
      }
      row.has_penalties = ask.output_count.empty() ? 0 : 1;
      output_count.insert(output_count.end(), ask.output_count.begin(), ask.output_count.end());
      output_count.resize((r + 1) * static_cast<size_t>(vocab_));
      prompt_seen_.insert(prompt_seen_.end(), ask.prompt_seen.begin(), ask.prompt_seen.end());
      prompt_seen_.resize((r + 1) * static_cast<size_t>(vocab_));
      if (!ask.allowed.empty()) row.mask_row = add_mask(ask.allowed);
      rows.push_back(row);
    }
    top.resize(asks.size() * kMaxLogprobs);
  }

  void run(ThreadPool* pool = nullptr) {
    const auto view = [](auto& values, tensor::DType dtype, tensor::Shape shape) {
      return tensor::View{values.data(), dtype, shape};
    };
    using tensor::DType;
    sample_rows({.logits = view(logits_, DType::kF32, {num_rows_, vocab_}),
                 .rows = view(rows, DType::kU8, {num_rows_, sizeof(ops::SampleRow)}),
                 .lists = tensor::host_view(lists_),
                 .masks = view(masks_, DType::kI32, {num_masks_, (vocab_ + 31) / 32}),
                 .state = {.carry = tensor::host_view(carry),
                           .ended = tensor::host_view(ended),
                           .block_table = {},
                           .output_count = view(output_count, DType::kI32, {num_rows_, vocab_}),
                           .prompt_seen = view(prompt_seen_, DType::kU8, {num_rows_, vocab_})},
                 .sampled = view(sampled, DType::kI32, {num_rows_, 4}),
                 .top = view(top, DType::kI32, {num_rows_, kMaxLogprobs, 2})},
                pool);
  }

  static constexpr int64_t kMaxLogprobs = 20;

 private:
  int32_t add_mask(const std::vector<uint8_t>& allowed) {
    const size_t begin = masks_.size();
    masks_.resize(begin + (allowed.size() + 31) / 32);
    for (size_t i = 0; i < allowed.size(); ++i) {
      masks_[begin + i / 32] |= uint32_t{allowed[i]} << (i % 32);
    }
    return num_masks_++;
  }

  const int64_t num_rows_;
  const int64_t vocab_;
  std::vector<float> logits_;
  std::vector<int32_t> lists_;
  std::vector<uint8_t> prompt_seen_;
  std::vector<uint32_t> masks_;
  int32_t num_masks_ = 0;

 public:
  std::vector<ops::SampleRow> rows;
  std::vector<ops::SampledToken> sampled;
  std::vector<ops::TopLogprob> top;
  std::vector<int32_t> carry;
  std::vector<int32_t> ended;
  std::vector<int32_t> output_count;
};

int32_t sampled_token(const Ask& ask, std::vector<float> logits) {
  Call call({ask}, std::move(logits));
  call.run();
  return call.sampled[0].token;
}

// The probabilities of the definition (step/sampling.h), in double, by sorting. `slack` moves the
// borders of top-p and min-p by a relative amount.
std::vector<double> naive_probabilities(const Ask& ask, std::vector<float> logits,
                                        double slack = 0) {
  const ops::SampleRow& row = ask.params;
  const size_t vocab = logits.size();
  for (size_t i = 0; i < ask.allowed.size(); ++i) {
    if (ask.allowed[i] == 0) logits[i] = -kInfinity;
  }
  for (const auto& [token, bias] : ask.logit_bias) logits[static_cast<size_t>(token)] += bias;
  if (row.position < row.stop_from) {
    for (const int32_t token : ask.stop_ids) logits[static_cast<size_t>(token)] = -kInfinity;
  }
  for (size_t i = 0; i < ask.output_count.size(); ++i) {
    float& x = logits[i];
    const int32_t count = ask.output_count[i];
    if (count > 0 || ask.prompt_seen[i] != 0) {
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
void expect_as_defined(const Ask& ask, const std::vector<float>& logits) {
  const ops::SampleRow& row = ask.params;
  const int32_t token = sampled_token(ask, logits);
  const double uniform = philox_uniform(row.seed, static_cast<uint64_t>(row.position));
  for (const double slack : {0.0, -1e-5, 1e-5}) {
    const std::vector<double> p = naive_probabilities(ask, logits, slack);
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
  std::mt19937 masks(2);
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
    Ask ask;
    ops::SampleRow& row = ask.params;
    row.temperature = pick(1e-5f, 0.3f, 1.0f, 2.0f);
    row.top_k = pick(0, 0, 1, 5, 40, 2000);
    row.top_p = pick(1.0f, 1.0f, 0.95f, 0.5f, 1e-6f);
    row.min_p = pick(0.0f, 0.0f, 0.05f, 1.0f);
    row.seed = engine();
    row.position = static_cast<int32_t>(engine() % 1000);
    if (engine() % 3 == 0) {
      ask.output_count.resize(vocab);
      ask.prompt_seen.resize(vocab);
      for (int32_t& c : ask.output_count) {
        c = engine() % 4 == 0 ? static_cast<int32_t>(engine() % 3) : 0;
      }
      for (uint8_t& s : ask.prompt_seen) s = engine() % 2;
      row.repetition_penalty = pick(0.8f, 1.0f, 1.5f);
      row.presence_penalty = pick(-1.0f, 0.0f, 1.0f);
      row.frequency_penalty = pick(-1.0f, 0.0f, 1.0f);
      ask.logit_bias.emplace_back(static_cast<int32_t>(engine() % vocab), pick(-100.0f, 3.0f));
    }
    if (i % 3 == 0) {
      ask.allowed.resize(vocab);
      const uint32_t one_in = std::array{1u, 2u, 40u}[masks() % 3];
      for (uint8_t& a : ask.allowed) a = masks() % one_in == 0;
      ask.allowed[masks() % vocab] = 1;
    }
    expect_as_defined(ask, logits);
  }
}

TEST(Sample, DrawsWhatTheDefinitionSaysAtFullVocabulary) {
  std::mt19937 engine(2);
  for (const float deviation : {0.0f, 0.5f, 3.0f}) {
    const std::vector<float> logits = random_logits(151936, deviation, engine);
    for (const float top_p : {1.0f, 0.9f}) {
      for (const int32_t top_k : {0, 20, 5000}) {
        Ask ask;
        ask.params.top_p = top_p;
        ask.params.top_k = top_k;
        ask.params.seed = engine();
        expect_as_defined(ask, logits);
      }
    }
  }
}

// Pearson's chi-square against the naive probabilities; 5 sigma above its mean fails.
void expect_distribution(Ask ask, const std::vector<float>& logits) {
  const std::vector<double> p = naive_probabilities(ask, logits);
  constexpr int kDraws = 40000;
  std::vector<int> seen(p.size());
  for (int i = 0; i < kDraws; ++i) {
    ask.params.seed = static_cast<uint64_t>(i % 200);
    ask.params.position = i / 200;
    ++seen[static_cast<size_t>(sampled_token(ask, logits))];
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
  Ask ask;
  ops::SampleRow& row = ask.params;
  expect_distribution(ask, logits);
  row.temperature = 0.6f;
  expect_distribution(ask, logits);
  row.top_k = 12;
  expect_distribution(ask, logits);
  row.top_p = 0.8f;
  expect_distribution(ask, logits);
  row.top_k = 0;
  row.temperature = 1.4f;
  expect_distribution(ask, logits);
  row.min_p = 0.2f;
  expect_distribution(ask, logits);
}

TEST(Sample, GreedyTakesTheFirstMaximum) {
  std::vector<float> logits(1000, -1.0f);
  logits[700] = 3;
  logits[300] = 3;
  Ask ask;
  ops::SampleRow& row = ask.params;
  row.temperature = 0;
  row.top_k = 5;  // without effect
  EXPECT_EQ(sampled_token(ask, logits), 300);
}

TEST(Sample, RowsThatAreNoNumbersGiveNoToken) {
  Ask ask;
  ops::SampleRow& row = ask.params;
  for (const float temperature : {0.0f, 1.0f}) {
    row.temperature = temperature;
    std::vector<float> logits(500, 0.5f);
    logits[499] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(sampled_token(ask, logits), -1);
    logits[499] = kInfinity;
    EXPECT_EQ(sampled_token(ask, logits), -1);
    std::fill(logits.begin(), logits.end(), -kInfinity);
    EXPECT_EQ(sampled_token(ask, logits), -1);
    logits[77] = -5;
    EXPECT_EQ(sampled_token(ask, logits), 77);
    ask.stop_ids = {77};
    row.stop_from = row.position + 1;
    EXPECT_EQ(sampled_token(ask, logits), -1);
    row.stop_from = 0;
  }
}

TEST(Sample, BannedStopIdsAreNeverDrawn) {
  const std::vector<float> logits = {5, 4, 1};
  Ask ask;
  ops::SampleRow& row = ask.params;
  ask.stop_ids = {0, 999999, -3};
  row.stop_from = row.position + 1;
  row.temperature = 0;
  EXPECT_EQ(sampled_token(ask, logits), 1);
  row.temperature = 2;
  for (row.seed = 0; row.seed < 200; ++row.seed) EXPECT_NE(sampled_token(ask, logits), 0);
}

TEST(Sample, OnlyWhatTheMaskAllowsIsDrawn) {
  Ask ask;
  ops::SampleRow& row = ask.params;
  const std::vector<float> logits = {5, 4, 1, 3};
  ask.allowed = {0, 1, 1, 0};
  ask.logit_bias = {{0, 100.0f}};  // lifts nothing off the mask
  for (const float temperature : {0.0f, 2.0f}) {
    row.temperature = temperature;
    for (row.seed = 0; row.seed < 100; ++row.seed) {
      const int32_t token = sampled_token(ask, logits);
      EXPECT_TRUE(token == 1 || (token == 2 && temperature > 0)) << token;
    }
  }
  ask.allowed = {0, 0, 0, 0};
  Call nothing({ask}, logits);
  nothing.run();
  EXPECT_EQ(nothing.sampled[0].token, -1);
  EXPECT_EQ(nothing.sampled[0].end, ops::SampleEnd::kNumerical);
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
  Ask ask;
  ask.params.temperature = 0.5f;
  ask.params.num_logprobs = 20;
  ask.logit_bias = {{unlikely, 100.0f}};
  Call call({ask}, logits);
  call.run();
  EXPECT_EQ(call.sampled[0].token, unlikely);
  EXPECT_EQ(call.sampled[0].rank, 2001);
  EXPECT_NEAR(call.sampled[0].logprob, logits[order[2000]] - std::log(sum), 2e-6);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(call.top[i].token, static_cast<int32_t>(order[i]));
    EXPECT_NEAR(call.top[i].logprob, logits[order[i]] - std::log(sum), 2e-6);
  }

  ask.logit_bias = {};
  ask.allowed.resize(logits.size());
  ask.allowed[static_cast<size_t>(unlikely)] = 1;
  Call masked({ask}, logits);
  masked.run();
  EXPECT_EQ(masked.sampled[0].token, unlikely);
  EXPECT_EQ(masked.sampled[0].rank, 2001);
  EXPECT_EQ(masked.sampled[0].logprob, call.sampled[0].logprob);
  EXPECT_EQ(masked.top[0].token, call.top[0].token);

  ask.allowed = {};
  ask.params.num_logprobs = 5;
  Call small({ask}, {1, 2, 3});
  small.run();
  EXPECT_GE(small.top[2].token, 0);
  EXPECT_EQ(small.top[3].token, -1);
  EXPECT_EQ(small.top[4].token, -1);
}

TEST(Sample, KeepsWhatTheNextStepNeeds) {
  Ask ask;
  ask.params.temperature = 0;
  ask.params.position = 7;
  ask.params.max_len = 20;
  ask.stop_ids = {4, 2};
  ask.output_count = {0, 0, 0, 5};
  ask.prompt_seen = {0, 0, 0, 0};
  const auto end_of = [](const Call& call) { return call.sampled[0].end; };

  Call goes_on({ask}, {0, 0, 0, 9});
  goes_on.run();
  EXPECT_EQ(end_of(goes_on), ops::SampleEnd::kNone);
  EXPECT_EQ(goes_on.carry[0], 3);
  EXPECT_EQ(goes_on.ended[0], 0);
  EXPECT_EQ(goes_on.output_count, (std::vector<int32_t>{0, 0, 0, 6}));

  Call stops({ask}, {0, 0, 9, 0});
  stops.run();
  EXPECT_EQ(end_of(stops), ops::SampleEnd::kStopId);
  EXPECT_EQ(stops.carry[0], 2);
  EXPECT_EQ(stops.ended[0], 1);
  stops.run();  // a late result
  EXPECT_EQ(end_of(stops), ops::SampleEnd::kMasked);
  EXPECT_EQ(stops.sampled[0].token, -1);
  EXPECT_EQ(stops.output_count[2], 1);

  Call is_long({ask}, {0, 0, 0, 9});
  is_long.rows[0].max_len = 8;
  is_long.run();
  EXPECT_EQ(end_of(is_long), ops::SampleEnd::kLength);
  EXPECT_EQ(is_long.sampled[0].token, 3);
  EXPECT_EQ(is_long.ended[0], 1);

  Call broken({ask}, {0, 0, kInfinity, 0});
  broken.run();
  EXPECT_EQ(end_of(broken), ops::SampleEnd::kNumerical);
  EXPECT_EQ(broken.sampled[0].token, -1);
  EXPECT_EQ(broken.carry[0], -1);
  EXPECT_EQ(broken.ended[0], 1);

  Call padding({ask}, {0, 0, 0, 9});
  padding.rows[0].slot = 1;  // of one sequence: the row behind the last slot
  padding.run();
  EXPECT_EQ(padding.carry, (std::vector<int32_t>{-1, -1}));
  EXPECT_EQ(padding.output_count[3], 5);
}

TEST(Sample, ARowDependsOnNothingElse) {
  std::mt19937 engine(5);
  constexpr int64_t kRows = 24;
  constexpr int64_t kVocab = 2000;
  std::vector<float> logits = random_logits(kRows * kVocab, 2, engine);
  std::vector<Ask> asks(kRows);
  std::vector<int32_t> alone;
  for (size_t r = 0; r < kRows; ++r) {
    ops::SampleRow& row = asks[r].params;
    row.seed = engine();
    row.top_p = r % 2 == 0 ? 0.9f : 1.0f;
    row.top_k = r % 3 == 0 ? 50 : 0;
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(r * kVocab);
    alone.push_back(sampled_token(asks[r], {begin, begin + kVocab}));
  }
  ThreadPool pool(4);
  Call together(asks, logits);
  together.run(&pool);
  for (size_t r = 0; r < kRows; ++r) EXPECT_EQ(together.sampled[r].token, alone[r]) << r;
}

}  // namespace
}  // namespace rudder::cpu
