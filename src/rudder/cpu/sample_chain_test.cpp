// Rows chained by drafts: each is sampled as if the tokens before it had come one by one, and what
// is rejected changes nothing (step.I11, step.I12).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "rudder/cpu/sample.h"

namespace rudder::cpu {
namespace {

constexpr int64_t kChainVocab = 8;

// Three positions of slot 0, the first at position 10; greedy. Row r prefers token `best[r]`.
struct Chain {
  std::vector<float> logits = std::vector<float>(3 * kChainVocab, 0.0f);
  std::vector<ops::SampleRow> rows = std::vector<ops::SampleRow>(3);
  std::vector<int32_t> lists = {6};  // a stop id
  std::vector<ops::SampledToken> sampled = std::vector<ops::SampledToken>(3);
  std::vector<int32_t> carry = {-1, -1}, carry_position = {-1, -1}, ended = {0, 0};
  std::vector<int32_t> output_count = std::vector<int32_t>(2 * kChainVocab);
  std::vector<uint8_t> prompt_seen = std::vector<uint8_t>(2 * kChainVocab);

  Chain(std::vector<int32_t> best, std::vector<int32_t> drafts) {
    for (int32_t r = 0; r < 3; ++r) {
      const auto index = static_cast<size_t>(r);
      logits[index * kChainVocab + static_cast<size_t>(best[index])] = 2.0f;
      ops::SampleRow& row = rows[index];
      row.position = 10 + r;
      row.temperature = 0;
      row.num_stop_ids = 1;
      row.max_len = 100;
      row.draft = r < 2 ? drafts[index] : -1;
      row.num_behind = r;
    }
  }

  std::vector<int32_t> run() {
    const auto view = [](auto& values, tensor::DType dtype, tensor::Shape shape) {
      return tensor::View{values.data(), dtype, shape};
    };
    using tensor::DType;
    sample_rows({.logits = view(logits, DType::kF32, {3, kChainVocab}),
                 .rows = view(rows, DType::kU8, {3, sizeof(ops::SampleRow)}),
                 .lists = tensor::host_view(lists),
                 .state = {.carry = tensor::host_view(carry),
                           .carry_position = tensor::host_view(carry_position),
                           .ended = tensor::host_view(ended),
                           .block_table = {},
                           .output_count = view(output_count, DType::kI32, {2, kChainVocab}),
                           .prompt_seen = view(prompt_seen, DType::kU8, {2, kChainVocab})},
                 .sampled = view(sampled, DType::kI32, {3, 4}),
                 .top = {}},
                nullptr);
    std::vector<int32_t> tokens;
    for (const ops::SampledToken& token : sampled) {
      if (token.end != ops::SampleEnd::kRejected) tokens.push_back(token.token);
    }
    return tokens;
  }
};

TEST(SampleChain, StopsBehindTheFirstWrongDraft) {
  Chain chain({3, 4, 5}, {3, 7});
  EXPECT_EQ(chain.run(), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(chain.sampled[2].end, ops::SampleEnd::kRejected);
  EXPECT_EQ(chain.sampled[2].token, -1);
  EXPECT_EQ(chain.carry[0], 4);
  EXPECT_EQ(chain.carry_position[0], 11);
  EXPECT_EQ(chain.ended[0], 0);
  EXPECT_EQ(Chain({3, 4, 5}, {3, 4}).run(), (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(Chain({3, 4, 5}, {2, 4}).run(), (std::vector<int32_t>{3}));
}

TEST(SampleChain, PenaltiesCountWhatWasAcceptedAlone) {
  const auto penalised = [](std::vector<int32_t> drafts) {
    Chain chain({3, 3, 3}, std::move(drafts));
    for (ops::SampleRow& row : chain.rows) {
      row.has_penalties = 1;
      row.presence_penalty = 5;
    }
    return chain;
  };
  Chain right = penalised({3, 0});
  EXPECT_EQ(right.run(), (std::vector<int32_t>{3, 0, 1}));  // each token once
  EXPECT_EQ(right.output_count[3], 1);
  EXPECT_EQ(right.output_count[0], 1);
  Chain wrong = penalised({5, 0});
  EXPECT_EQ(wrong.run(), (std::vector<int32_t>{3}));
  EXPECT_EQ(wrong.output_count[5], 0);
  EXPECT_EQ(wrong.output_count[0], 0);
}

TEST(SampleChain, EndsInsideTheAcceptedRun) {
  Chain stopped({3, 6, 5}, {3, 6});
  EXPECT_EQ(stopped.run(), (std::vector<int32_t>{3, 6}));
  EXPECT_EQ(stopped.sampled[1].end, ops::SampleEnd::kStopId);
  EXPECT_EQ(stopped.ended[0], 1);
  Chain full({3, 4, 5}, {3, 4});
  for (ops::SampleRow& row : full.rows) row.max_len = 12;
  EXPECT_EQ(full.run(), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(full.sampled[1].end, ops::SampleEnd::kLength);
  // min_tokens: the stop id is banned at the first two positions.
  Chain banned({6, 6, 6}, {0, 0});
  for (ops::SampleRow& row : banned.rows) row.stop_from = 12;
  EXPECT_EQ(banned.run(), (std::vector<int32_t>{0, 0, 6}));
  EXPECT_EQ(banned.sampled[2].end, ops::SampleEnd::kStopId);
}

TEST(SampleChain, BadLogitsCountWhereTheyAreReached) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Chain behind({3, 4, 5}, {3, 7});
  behind.logits[2 * kChainVocab] = nan;
  EXPECT_EQ(behind.run(), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(behind.ended[0], 0);
  Chain reached({3, 4, 5}, {3, 4});
  reached.logits[1 * kChainVocab] = nan;
  EXPECT_EQ(reached.run(), (std::vector<int32_t>{3, -1}));
  EXPECT_EQ(reached.sampled[1].end, ops::SampleEnd::kNumerical);
  EXPECT_EQ(reached.ended[0], 1);
}

// exp(logit / temperature), normalised.
std::vector<double> softmax_of(std::span<const float> logits, double temperature) {
  std::vector<double> p;
  double sum = 0;
  for (const float logit : logits) sum += p.emplace_back(std::exp(logit / temperature));
  for (double& each : p) each /= sum;
  return p;
}

// Pearson's; 5 sigma above its mean fails.
void expect_drawn_from(const std::vector<double>& p, const std::vector<int>& seen) {
  const double total = std::accumulate(seen.begin(), seen.end(), 0.0);
  double chi_square = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * total;
    ASSERT_GT(expected, 8) << i;
    chi_square += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  const auto freedom = static_cast<double>(p.size() - 1);
  EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom));
}

// A draft is one token x of certainty 1. Rejection sampling accepts it with probability
// min(1, p(x) / 1), and else draws from p without x: so the first token is of p, it is x as often
// as p says, and the second, behind an accepted draft, is of that position's own p. Accepting where
// the position's own draw is x does the same.
TEST(SampleChain, ADraftOfOneTokenIsAcceptedAsByRejectionSampling) {
  constexpr int kDraws = 20'000;
  const std::vector<float> first = {0.4f, 1.5f, -0.6f, 0.9f, 0.0f, -1.0f, 1.1f, 0.3f};
  const std::vector<float> second = {-0.2f, 0.2f, 0.8f, 0.0f, 0.5f, -0.3f, 0.4f, 0.6f};
  for (const float temperature : {0.7f, 1.0f}) {
    const std::vector<double> p = softmax_of(first, temperature);
    const std::vector<double> behind = softmax_of(second, temperature);
    for (const int32_t draft : {1, 0, 2}) {  // the likeliest, one between, one that is rare
      std::vector<int> seen(kChainVocab), seen_behind(kChainVocab);
      int accepted = 0;
      for (int i = 0; i < kDraws; ++i) {
        Chain chain({0, 0, 0}, {draft, 0});
        std::ranges::copy(first, chain.logits.begin());
        std::ranges::copy(second, chain.logits.begin() + kChainVocab);
        for (ops::SampleRow& row : chain.rows) {
          row.temperature = temperature;
          row.seed = static_cast<uint64_t>(i);
          row.num_stop_ids = 0;
        }
        const std::vector<int32_t> tokens = chain.run();
        ++seen[static_cast<size_t>(tokens[0])];
        EXPECT_EQ(tokens.size() > 1, tokens[0] == draft);
        if (tokens.size() == 1) continue;
        ++accepted;
        ++seen_behind[static_cast<size_t>(tokens[1])];
      }
      expect_drawn_from(p, seen);
      expect_drawn_from(behind, seen_behind);
      const double odds = p[static_cast<size_t>(draft)];
      EXPECT_NEAR(accepted, kDraws * odds, 5 * std::sqrt(kDraws * odds * (1 - odds)));
    }
  }
}

TEST(SampleChain, OfASlotThatHasEndedNothingIsSampled) {
  Chain chain({3, 4, 5}, {3, 4});
  chain.ended[0] = 1;
  EXPECT_EQ(chain.run(), (std::vector<int32_t>{-1}));
  EXPECT_EQ(chain.sampled[0].end, ops::SampleEnd::kMasked);
  EXPECT_EQ(chain.carry[0], -1);
}

}  // namespace
}  // namespace rudder::cpu
