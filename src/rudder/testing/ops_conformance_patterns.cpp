// Attention patterns of captured tokens, behind qkv_prep as in a step.
#include <cmath>

#include "rudder/testing/ops_conformance_attention.h"
#include "rudder/testing/tap_table.h"

namespace rudder::testing {

// Of every second token of sequences with a history, and of some heads; every other round those of
// the second of two ranks, which has the second half of them.
TEST_P(OpsAttention, PatternsAgreeWithTheFormulas) {
  if (ops_.pattern_ops() == nullptr) GTEST_SKIP() << "this backend captures none";
  constexpr int64_t kLengths[] = {1, 7, 16, 17, 48, 65, 131, 160};
  for (int round = 0; round < 24; ++round) {
    Layer layer = make_layer(fuzzed_shape(), 3 * 160);
    const ops::Rank rank = round % 2 == 0 ? ops::Rank{} : ops::Rank{1, 2};
    const auto num_heads = static_cast<int32_t>(layer.shape.heads) * rank.count;
    const auto own_begin = static_cast<int32_t>(layer.shape.heads) * rank.index;
    tap::Geometry geometry;
    geometry.num_layers = 2;
    geometry.heads = {{1, 16}, {num_heads, static_cast<int32_t>(layer.shape.head_dim)}};
    tap::CapturePattern pattern{.layer = 1, .keys = 64 + 65 * (round % 3), .heads = {}};
    for (int32_t h = round % 3 == 0 ? num_heads - 1 : 0; h < num_heads; h += 1 + round % 4) {
      pattern.heads.push_back(h);
    }
    const std::vector<tap::CaptureSet> sets = {{}, {.points = {}, .patterns = {pattern}}};
    const int64_t record = tap::record_elements(sets[1], geometry);
    std::vector<Sequence> sequences;
    std::vector<int64_t> history, q_lens;
    std::vector<TapToken> tokens;
    for (int64_t count = between(1, 3); count > 0; --count) {
      const int64_t length = pick(kLengths);
      sequences.push_back(make_sequence(layer, length));
      q_lens.push_back(between(1, length));
      history.push_back(length - q_lens.back());
      for (int64_t i = 0; i < q_lens.back(); ++i) {
        const auto begin = static_cast<int32_t>(std::ssize(tokens) * record / tap::kCaptureAlign);
        const auto token = static_cast<int32_t>(tokens.size());
        tokens.push_back({.capture_set = token % 2 == 0 ? 1 : -token % 3, .capture_begin = begin});
      }
    }
    run_step(layer, sequences, history);
    run_step(layer, sequences, q_lens);
    const ops::TapTable table =
        put_tap_table(device_, geometry, {}, sets, 1, std::ssize(tokens) * record, rank);
    const ops::TapBatch batch = put_tap_batch(device_, table, tokens);
    ops_.pattern_ops()->patterns(
        {.attention = last_args_, .table = &table, .batch = &batch, .layer = 1});
    ops_.pattern_ops()->end_patterns(
        {.table = &table, .batch = &batch, .first_layer = 0, .end_layer = 2});
    const std::vector<double> ring = read(table.ring).values;
    size_t token = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      std::vector<Matrix> exact, twin;
      expected(layer, sequences[s], history[s], q_lens[s], {}, &exact);
      expected(layer, sequences[s], history[s], q_lens[s], {.low = true}, &twin);
      // Of all heads: one with a single key that it sees may have hit it by chance.
      double tolerance = 2e-6;
      for (size_t h = 0; h < exact.size(); ++h) {
        tolerance = std::max(tolerance, 2 * max_difference(twin[h], exact[h]) + 2e-6);
      }
      // A key's number that lies between two codes may become either.
      std::vector<std::vector<Matrix>> others;
      for (const double nudge : {-1e-6, 1e-6}) {
        if (!ops_.kv_format().has_codes()) break;
        expected(layer, sequences[s], history[s], q_lens[s], {.nudge = nudge},
                 &others.emplace_back());
      }
      for (int64_t r = 0; r < q_lens[s]; ++r, ++token) {
        const int64_t position = history[s] + r;
        const auto at = static_cast<int64_t>(token) * record;
        if (tokens[token].capture_set != 1) {
          EXPECT_TRUE(std::isnan(ring[static_cast<size_t>(at)])) << "token " << token;
          continue;
        }
        for (size_t h = 0; h < pattern.heads.size(); ++h) {
          const auto row = static_cast<size_t>(at) + h * static_cast<size_t>(pattern.keys);
          const auto head = static_cast<size_t>(pattern.heads[h] - own_begin);
          EXPECT_EQ(std::isnan(ring[row]), pattern.heads[h] < own_begin) << "of another rank";
          if (pattern.heads[h] < own_begin) continue;
          for (int64_t k = 0; k < pattern.keys; ++k) {
            const bool is_seen = position < pattern.keys && k < exact[head].cols;
            const double wanted = is_seen ? exact[head].at(r, k) : 0;
            double allowed = is_seen ? tolerance + 2 * act_unit() * std::abs(wanted) : 0;
            for (const std::vector<Matrix>& other : others) {
              if (is_seen) allowed += 2 * std::abs(other[head].at(r, k) - wanted);
            }
            ASSERT_NEAR(ring[row + static_cast<size_t>(k)], wanted, allowed)
                << "round " << round << ", position " << position << ", head " << head << ", key "
                << k << ", head_dim " << layer.shape.head_dim << ", window " << layer.shape.window
                << ", gate " << layer.shape.gate_length;
          }
        }
      }
    }
  }
}

}  // namespace rudder::testing
