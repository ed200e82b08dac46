// route(), expert_linear() and combine_experts(), of backends that have ExpertOps.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

struct Routing {
  std::string name;
  ReferenceRouter router;
  bool corrects = false;
};

std::vector<Routing> routings() {
  using enum ops::RouterKind;
  return {
      {"softmax, then the largest", {.kind = kSoftmaxThenTop, .chosen = 4}},
      {"renormalised", {.kind = kSoftmaxThenTop, .renormalises = true, .chosen = 8}},
      {"the largest, then softmax", {.kind = kTopThenSoftmax, .chosen = 4}},
      {"one", {.kind = kTopThenSoftmax, .chosen = 1}},
      {"sigmoid", {.kind = kSigmoid, .chosen = 2}, true},
      {"sigmoid in groups",
       {.kind = kSigmoid,
        .renormalises = true,
        .scale = 2.53,
        .groups = 8,
        .kept_groups = 3,
        .chosen = 6},
       true},
      {"sigmoid without a correction",
       {.kind = kSigmoid, .renormalises = true, .groups = 4, .kept_groups = 1, .chosen = 2}},
      {"groups of one", {.kind = kSigmoid, .groups = 32, .kept_groups = 5, .chosen = 5}, true},
  };
}

TEST_P(OpsConformance, RouteChoosesAndWeighs) {
  ops::ExpertOps* const experts = ops_.expert_ops();
  if (experts == nullptr) GTEST_SKIP() << "it has no experts";
  constexpr int64_t kTokens = 9;
  constexpr int64_t kExperts = 32;
  for (const Routing& routing : routings()) {
    SCOPED_TRACE(routing.name);
    const ReferenceRouter& router = routing.router;
    const View logits = random({kTokens, kExperts}, 2);
    const std::vector<float> corrections = random_values(kExperts, 0.4);
    const View correction = routing.corrects ? device_.put_as(std::span<const float>(corrections),
                                                              DType::kF32, {kExperts})
                                             : View{};
    const View chosen = poisoned(DType::kI32, {kTokens, router.chosen});
    const View weights = poisoned(DType::kF32, {kTokens, router.chosen});
    const auto route = [&](const View& of, const View& to, const View& shares) {
      experts->route({.logits = of,
                      .correction = correction,
                      .kind = router.kind,
                      .renormalises = router.renormalises,
                      .scale = static_cast<float>(router.scale),
                      .groups = static_cast<int32_t>(router.groups),
                      .kept_groups = static_cast<int32_t>(router.kept_groups),
                      .chosen = to,
                      .weights = shares});
    };
    route(logits, chosen, weights);
    const Matrix stored = read(logits);
    const std::vector<double> added =
        routing.corrects ? read(correction).values : std::vector<double>();
    Matrix expected(kTokens, router.chosen);
    const std::vector<int32_t> ids = device_.values<int32_t>(chosen);
    for (int64_t t = 0; t < kTokens; ++t) {
      const std::vector<ReferenceChoice> choices =
          reference_route(stored.slice(t, 1, 0, kExperts).values, added, router);
      for (int64_t j = 0; j < router.chosen; ++j) {
        const ReferenceChoice& choice = choices[static_cast<size_t>(j)];
        expected.at(t, j) = choice.weight;
        EXPECT_EQ(ids[static_cast<size_t>(t * router.chosen + j)], choice.expert) << t << ", " << j;
      }
    }
    EXPECT_LT(max_difference(read(weights), expected), 2e-6 * router.scale);
    const View alone = poisoned(DType::kI32, {1, router.chosen});
    const View alone_weights = poisoned(DType::kF32, {1, router.chosen});
    route(logits.rows(5, 1), alone, alone_weights);
    EXPECT_EQ(device_.values<int32_t>(alone), device_.values<int32_t>(chosen.rows(5, 1)));
    EXPECT_EQ(device_.values<float>(alone_weights), device_.values<float>(weights.rows(5, 1)));
  }
}

TEST_P(OpsConformance, RouteBreaksTiesByNumber) {
  ops::ExpertOps* const experts = ops_.expert_ops();
  if (experts == nullptr) GTEST_SKIP() << "it has no experts";
  std::vector<float> values(16, 0.5f);
  values[11] = 0.75f;
  const View logits = device_.put(HostTensor(values, act_, {1, 16}));
  for (const auto kind : {ops::RouterKind::kSoftmaxThenTop, ops::RouterKind::kTopThenSoftmax,
                          ops::RouterKind::kSigmoid}) {
    const View chosen = poisoned(DType::kI32, {1, 4});
    const View weights = poisoned(DType::kF32, {1, 4});
    experts->route({.logits = logits, .kind = kind, .chosen = chosen, .weights = weights});
    EXPECT_EQ(device_.values<int32_t>(chosen), (std::vector<int32_t>{11, 0, 1, 2}));
  }
}

TEST_P(OpsConformance, ExpertLinear) {
  ops::ExpertOps* const experts = ops_.expert_ops();
  if (experts == nullptr) GTEST_SKIP() << "it has no experts";
  constexpr int64_t kExperts = 5;
  for (const bool own_rows : {false, true}) {
    for (const int64_t tokens : {1, 7, 40}) {
      SCOPED_TRACE(std::to_string(tokens) + (own_rows ? " tokens, rows of pairs" : " tokens"));
      constexpr int64_t kChosen = 3;
      const int64_t in = wide(48);
      const int64_t out = wide(40);
      const bool has_bias = own_rows;  // as products of other models have none
      std::vector<Matrix> matrices;
      std::vector<Matrix> biases;
      std::vector<std::vector<float>> memory;
      std::vector<ops::LinearPart> parts;
      for (int64_t e = 0; e < kExperts; ++e) {
        for (const int64_t rows : {out / 4, out - out / 4}) {
          memory.push_back(random_values(rows * in, 0.2));
          for (float& value : memory.back()) value = tensor::to_float(tensor::to_bf16(value));
          parts.push_back(ops::wide_part({memory.back().data(), DType::kF32, {rows, in}}));
        }
        biases.emplace_back();
        if (!has_bias) continue;
        memory.push_back(random_values(out));
        for (float& value : memory.back()) value = tensor::to_float(tensor::to_bf16(value));
        biases.back() = to_matrix({memory.back().data(), DType::kF32, {1, out}});
        parts[parts.size() - 2].bias = {memory.back().data(), DType::kF32, {out / 4}};
        parts.back().bias = {memory.back().data() + out / 4, DType::kF32, {out - out / 4}};
      }
      const auto weight = experts->make_experts(parts, kExperts);
      ASSERT_TRUE(weight) << weight.error().to_string();
      EXPECT_EQ(weight->in, in);
      EXPECT_EQ(weight->out, out);
      for (int64_t e = 0; e < kExperts; ++e) {
        Matrix all(0, in);
        for (const size_t part : {static_cast<size_t>(2 * e), static_cast<size_t>(2 * e + 1)}) {
          const Matrix rows = to_matrix(parts[part].codes);
          all.rows += rows.rows;
          all.values.insert(all.values.end(), rows.values.begin(), rows.values.end());
        }
        matrices.push_back(std::move(all));
      }
      // The last expert is nobody's; a token may have one expert twice, which routers do not do.
      std::vector<int32_t> ids;
      for (int64_t pair = 0; pair < tokens * kChosen; ++pair) {
        ids.push_back(static_cast<int32_t>((pair * 7 + pair / 5) % (kExperts - 1)));
      }
      const View chosen =
          device_.put_as(std::span<const int32_t>(ids), DType::kI32, {tokens, kChosen});
      const View x = random({own_rows ? tokens * kChosen : tokens, in});
      const View made = poisoned(act_, {tokens * kChosen, out});
      experts->expert_linear({.x = x, .chosen = chosen, .weight = &*weight, .out = made});
      // An op in act multiplies in the dtype that its weight has.
      const Matrix stored = rounded(read(x), ops::stored_parts(weight->format, 1, 1).codes.dtype);
      const Matrix got = read(made);
      for (int64_t pair = 0; pair < tokens * kChosen; ++pair) {
        const auto expert = static_cast<size_t>(ids[static_cast<size_t>(pair)]);
        const Matrix& matrix = matrices[expert];
        const Matrix row = stored.slice(own_rows ? pair : pair / kChosen, 1, 0, in);
        const Matrix expected = reference_linear(row, matrix, biases[expert]);
        for (int64_t n = 0; n < out; ++n) {
          double magnitude = has_bias ? std::abs(biases[expert].at(0, n)) : 0;
          for (int64_t i = 0; i < in; ++i) magnitude += std::abs(row.at(0, i) * matrix.at(n, i));
          ASSERT_NEAR(got.at(pair, n), expected.at(0, n),
                      product_tolerance(in, magnitude, expected.at(0, n), act_))
              << "pair " << pair << ", column " << n;
        }
      }
      const int64_t t = tokens - 1;
      const View alone = poisoned(act_, {kChosen, out});
      experts->expert_linear({.x = own_rows ? x.rows(t * kChosen, kChosen) : x.rows(t, 1),
                              .chosen = chosen.rows(t, 1),
                              .weight = &*weight,
                              .out = alone});
      expect_same_rows(alone, made.rows(t * kChosen, kChosen), "alone");
    }
  }
}

TEST_P(OpsConformance, CombineExperts) {
  ops::ExpertOps* const experts = ops_.expert_ops();
  if (experts == nullptr) GTEST_SKIP() << "it has no experts";
  for (const int64_t chosen : {1, 4, 8}) {
    constexpr int64_t kTokens = 6;
    const int64_t hidden = wide(72);
    const View x = random({kTokens * chosen, hidden});
    const std::vector<float> shares = random_values(kTokens * chosen);
    const View weights =
        device_.put_as(std::span<const float>(shares), DType::kF32, {kTokens, chosen});
    const View out = poisoned(act_, {kTokens, hidden});
    const View shared = chosen == 1 ? View{} : random({kTokens, hidden});
    const Matrix rows = read(x);
    Matrix expected = shared.empty() ? Matrix(kTokens, hidden) : read(shared);
    experts->combine_experts({.x = x, .weights = weights, .shared = shared, .out = out});
    for (int64_t pair = 0; pair < kTokens * chosen; ++pair) {
      for (int64_t i = 0; i < hidden; ++i) {
        expected.at(pair / chosen, i) +=
            double{shares[static_cast<size_t>(pair)]} * rows.at(pair, i);
      }
    }
    expect_close(read(out), expected, 4e-6, "sums");
    const View alone = poisoned(act_, {1, hidden});
    ops::CombineExpertsArgs one{.x = x.rows(2 * chosen, chosen), .weights = weights.rows(2, 1)};
    if (!shared.empty()) one.shared = shared.rows(2, 1);
    one.out = alone;
    experts->combine_experts(one);
    expect_same_rows(alone, out.rows(2, 1), "alone");
    if (shared.empty()) continue;
    one.out = one.shared;
    experts->combine_experts(one);
    expect_same_rows(shared.rows(2, 1), alone, "in place of what is shared");
  }
}

}  // namespace
}  // namespace rudder::testing
