// route(), expert_linear() and combine_experts(), of backends that have ExpertOps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance.h"
#include "rudder/testing/ops_conformance_open_experts.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

struct Routing {
  std::string name;
  ReferenceRouter router;
  bool corrects = false;
  bool scales_experts = false;
  int64_t tokens = 9;
  int64_t experts = 32;
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
      {.name = "scales of experts",
       .router = {.kind = kSoftmaxThenTop, .renormalises = true, .chosen = 5},
       .scales_experts = true},
      {"groups of one", {.kind = kSigmoid, .groups = 32, .kept_groups = 5, .chosen = 5}, true},
  };
}

TEST_P(OpsConformance, RouteChoosesAndWeighs) {
  ops::ExpertOps* const experts = ops_.expert_ops();
  if (experts == nullptr) GTEST_SKIP() << "it has no experts";
  std::vector<Routing> all = routings();
  for (Routing more : routings()) {
    more.name += ", of many tokens";
    more.tokens = 300;
    more.experts = 160;
    all.push_back(more);
  }
  for (const Routing& routing : all) {
    SCOPED_TRACE(routing.name);
    const int64_t tokens = routing.tokens;
    const int64_t num_experts = routing.experts;
    ReferenceRouter router = routing.router;
    const View logits = random({tokens, num_experts}, 2);
    const std::vector<float> corrections = random_values(num_experts, 0.4);
    const View correction = routing.corrects ? device_.put_as(std::span<const float>(corrections),
                                                              DType::kF32, {num_experts})
                                             : View{};
    const std::vector<float> scales = random_values(num_experts, 0.7);
    const View expert_scales =
        routing.scales_experts
            ? device_.put_as(std::span<const float>(scales), DType::kF32, {num_experts})
            : View{};
    if (routing.scales_experts) router.expert_scales = read(expert_scales).values;
    const View chosen = poisoned(DType::kI32, {tokens, router.chosen});
    const View weights = poisoned(DType::kF32, {tokens, router.chosen});
    const auto route = [&](const View& of, const View& to, const View& shares) {
      experts->route({.logits = of,
                      .correction = correction,
                      .kind = router.kind,
                      .renormalises = router.renormalises,
                      .scale = static_cast<float>(router.scale),
                      .expert_scales = expert_scales,
                      .groups = static_cast<int32_t>(router.groups),
                      .kept_groups = static_cast<int32_t>(router.kept_groups),
                      .chosen = to,
                      .weights = shares});
    };
    route(logits, chosen, weights);
    const Matrix stored = read(logits);
    const std::vector<double> added =
        routing.corrects ? read(correction).values : std::vector<double>();
    Matrix expected(tokens, router.chosen);
    const std::vector<int32_t> ids = device_.values<int32_t>(chosen);
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<ReferenceChoice> choices =
          reference_route(stored.slice(t, 1, 0, num_experts).values, added, router);
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

// With a router's weight the op makes the logits.
TEST_P(OpsConformance, RouteMultiplies) {
  ops::ExpertOps* const experts = ops_.expert_ops();
  if (experts == nullptr) GTEST_SKIP() << "it has no experts";
  constexpr int64_t kChosen = 4;
  for (const auto& [num_experts, width] :
       {std::pair(int64_t{24}, int64_t{64}), std::pair(int64_t{128}, int64_t{328}),
        std::pair(int64_t{144}, int64_t{2048})}) {
    const int64_t in = wide(width);
    std::vector<float> values = random_values(num_experts * in, 0.1);
    for (float& value : values) value = tensor::to_float(tensor::to_bf16(value));
    ops::LinearPart part = ops::wide_part({values.data(), DType::kF32, {num_experts, in}});
    part.use = ops::ProductUse::kRouter;
    const auto router = ops_.make_linear({&part, 1});
    ASSERT_TRUE(router) << router.error().to_string();
    EXPECT_EQ(router->input, ops::InputForm::kAct);
    for (const int64_t tokens : {1, 2, 7, 8, 9, 40}) {
      SCOPED_TRACE(std::to_string(tokens) + " tokens of " + std::to_string(in));
      const View x = random({tokens, in});
      const View logits = poisoned(act_, {tokens, num_experts});
      const View chosen = poisoned(DType::kI32, {tokens, kChosen});
      const View weights = poisoned(DType::kF32, {tokens, kChosen});
      const auto route = [&](const View& of, const View& to, const View& choice,
                             const View& shares) {
        experts->route({.x = of,
                        .router = &*router,
                        .logits = to,
                        .renormalises = true,
                        .chosen = choice,
                        .weights = shares});
      };
      route(x, logits, chosen, weights);
      const Matrix rows = rounded(read(x), wide_dtype() == DType::kF32 ? act_ : DType::kBF16);
      const Matrix expected = reference_linear(rows, to_matrix(part.codes), {});
      const Matrix got = read(logits);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t e = 0; e < num_experts; ++e) {
          double magnitude = 0;
          for (int64_t i = 0; i < in; ++i) {
            magnitude += std::abs(rows.at(t, i) * double{values[static_cast<size_t>(e * in + i)]});
          }
          ASSERT_NEAR(got.at(t, e), expected.at(t, e),
                      product_tolerance(in, magnitude, expected.at(t, e), act_));
        }
      }
      // Of these logits as without a router.
      const View again = poisoned(DType::kI32, {tokens, kChosen});
      const View shares = poisoned(DType::kF32, {tokens, kChosen});
      experts->route({.logits = logits, .renormalises = true, .chosen = again, .weights = shares});
      EXPECT_EQ(device_.values<int32_t>(chosen), device_.values<int32_t>(again));
      EXPECT_EQ(device_.values<float>(weights), device_.values<float>(shares));
    }
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

// Products of pairs: how many experts there are and are chosen, by how many tokens, of widths
// before wide(). Tokens choose among `spread` of the experts, neighbours of the first; 1: all the
// same.
struct ExpertCase {
  int64_t experts;
  int64_t chosen;
  int64_t tokens;
  int64_t in;
  int64_t out;
  int64_t spread;
  std::optional<ops::Activation> activation = {};
  bool own_rows = false;  // a row for each pair
  bool has_bias = false;
};

std::vector<ExpertCase> expert_cases() {
  using enum ops::Activation;
  return {{8, 1, 1, 48, 48, 8},
          {8, 2, 7, 48, 32, 5, {}, true},
          {5, 3, 40, 48, 48, 5, {}, true, true},
          {5, 3, 40, 48, 96, 4, kSilu},
          {8, 8, 9, 272, 80, 8, kSilu, false, true},  // each token has all of them
          {16, 4, 33, 208, 160, 16, kClampedSwiglu, false, true},
          {16, 4, 128, 80, 96, 16, kGeluTanh},
          {8, 3, 21, 208, 96, 8, kLimitedSilu, false, true},
          {6, 2, 20, 80, 96, 6, kGelu},
          {128, 8, 3, 144, 48, 128, kSilu},
          {128, 8, 64, 64, 48, 128, {}, true},
          {16, 2, 70, 48, 64, 1, kSilu},  // all of them to the same
          {8, 2, 300, 80, 240, 8, kRelu},
          {8, 1, 512, 48, 208, 2, {}, true, true},
          {4, 2, 512, 80, 416, 4, kSilu}};
}

TEST_P(OpsConformance, ExpertLinear) {
  ops::ExpertOps* const experts = ops_.expert_ops();
  if (experts == nullptr) GTEST_SKIP() << "it has no experts";
  for (const ExpertCase& c : expert_cases()) {
    SCOPED_TRACE(std::to_string(c.tokens) + " tokens choose " + std::to_string(c.chosen) + " of " +
                 std::to_string(c.experts) + ", " + std::to_string(c.in) + " to " +
                 std::to_string(c.out));
    const int64_t in = wide(c.in);
    const int64_t half = c.activation ? wide(c.out / 2) : 0;
    const int64_t out = c.activation ? 2 * half : wide(c.out);
    std::vector<Matrix> matrices;
    std::vector<Matrix> biases;
    std::vector<std::vector<float>> memory;
    std::vector<ops::LinearPart> parts;
    for (int64_t e = 0; e < c.experts; ++e) {
      Matrix all(0, in);
      biases.emplace_back();
      const int64_t first = c.activation ? half : wide(out / 4);
      for (const int64_t rows : {first, out - first}) {
        memory.push_back(random_values(rows * in, 0.2));
        for (float& value : memory.back()) value = tensor::to_float(tensor::to_bf16(value));
        if (stores_fp8()) put_on_fp8_grid(memory.back(), in);
        ops::LinearPart part = ops::wide_part({memory.back().data(), DType::kF32, {rows, in}});
        const Matrix stored = to_matrix(part.codes);
        all.rows += rows;
        all.values.insert(all.values.end(), stored.values.begin(), stored.values.end());
        if (c.has_bias) {
          memory.push_back(random_values(rows));
          for (float& value : memory.back()) value = tensor::to_float(tensor::to_bf16(value));
          part.bias = {memory.back().data(), DType::kF32, {rows}};
          biases.back().rows = 1;
          biases.back().cols += rows;
          biases.back().values.insert(biases.back().values.end(), memory.back().begin(),
                                      memory.back().end());
        }
        parts.push_back(part);
      }
      matrices.push_back(std::move(all));
    }
    const auto weight = experts->make_experts(parts, c.experts);
    ASSERT_TRUE(weight) << weight.error().to_string();
    EXPECT_EQ(weight->in, in);
    EXPECT_EQ(weight->out, out);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < c.tokens; ++t) {
      const auto first = static_cast<int64_t>(random_() % static_cast<uint64_t>(c.spread));
      for (int64_t j = 0; j < c.chosen; ++j) {
        ids.push_back(static_cast<int32_t>((first + j * (c.experts / c.chosen)) % c.experts));
      }
    }
    const View chosen =
        device_.put_as(std::span<const int32_t>(ids), DType::kI32, {c.tokens, c.chosen});
    const int64_t pairs = c.tokens * c.chosen;
    const int64_t columns = c.activation ? half : out;
    const Operand x = operand_of(random({c.own_rows ? pairs : c.tokens, in}), *weight);
    const View made = poisoned(act_, {pairs, columns});
    experts->expert_linear({.x = x.x,
                            .x_scale = x.scale,
                            .chosen = chosen,
                            .weight = &*weight,
                            .activation = c.activation,
                            .out = made});
    const Matrix got = read(made);
    for (int64_t pair = 0; pair < pairs; pair += std::max<int64_t>(1, pairs / 60)) {
      const auto expert = static_cast<size_t>(ids[static_cast<size_t>(pair)]);
      const Matrix row = x.exact.slice(c.own_rows ? pair : pair / c.chosen, 1, 0, in);
      const Matrix sums = reference_linear(row, matrices[expert], biases[expert]);
      // Of one sum, which is rounded to `to`.
      const auto error_of = [&](int64_t n, DType to) {
        const double bias = c.has_bias ? biases[expert].at(0, n) : 0;
        double magnitude = std::abs(bias);
        for (int64_t i = 0; i < in; ++i)
          magnitude += std::abs(row.at(0, i) * matrices[expert].at(n, i));
        const double largest = std::max(std::abs(sums.at(0, n)), std::abs(sums.at(0, n) - bias));
        return product_tolerance(in, magnitude, largest, to);
      };
      const Matrix expected = c.activation ? reference_gated_act(sums, *c.activation) : sums;
      for (int64_t n = 0; n < columns; ++n) {
        double error = c.activation ? 0 : error_of(n, act_);
        if (c.activation) {
          const double slope = 1.2 * (std::abs(sums.at(0, half + n)) + 1);
          const double gate = std::abs(sums.at(0, n)) + 1;
          error = slope * error_of(n, DType::kF32) + gate * error_of(half + n, DType::kF32) +
                  6e-7 * gate * slope + act_unit() * std::abs(expected.at(0, n));
        }
        ASSERT_NEAR(got.at(pair, n), expected.at(0, n), error)
            << "pair " << pair << ", column " << n;
      }
    }
    const int64_t t = c.tokens - 1;
    const View alone = poisoned(act_, {c.chosen, columns});
    const int64_t first = c.own_rows ? t * c.chosen : t;
    const int64_t rows = c.own_rows ? c.chosen : 1;
    experts->expert_linear({.x = x.x.rows(first, rows),
                            .x_scale = x.scale.empty() ? View{} : x.scale.rows(first, rows),
                            .chosen = chosen.rows(t, 1),
                            .weight = &*weight,
                            .activation = c.activation,
                            .out = alone});
    expect_same_rows(alone, made.rows(t * c.chosen, c.chosen), "alone");
  }
}

// The list that route() makes serves both products behind it.
TEST_P(OpsConformance, RoutedRowsGoThroughTheirExperts) {
  ops::ExpertOps* const experts = ops_.expert_ops();
  if (experts == nullptr) GTEST_SKIP() << "it has no experts";
  constexpr int64_t kExperts = 24;
  constexpr int64_t kChosen = 4;
  const int64_t width = wide(64);
  std::vector<std::vector<float>> memory;
  std::vector<ops::LinearPart> parts;
  std::vector<Matrix> matrices;
  for (int64_t e = 0; e < kExperts; ++e) {
    memory.push_back(random_values(width * width, 0.2));
    for (float& value : memory.back()) value = tensor::to_float(tensor::to_bf16(value));
    if (stores_fp8()) put_on_fp8_grid(memory.back(), width);
    parts.push_back(ops::wide_part({memory.back().data(), DType::kF32, {width, width}}));
    matrices.push_back(to_matrix(parts.back().codes));
  }
  const auto weight = experts->make_experts(parts, kExperts);
  ASSERT_TRUE(weight) << weight.error().to_string();
  for (const int64_t tokens : {1, 6, 37, 260, 400}) {
    SCOPED_TRACE(std::to_string(tokens) + " tokens");
    const View chosen = poisoned(DType::kI32, {tokens, kChosen});
    const View weights = poisoned(DType::kF32, {tokens, kChosen});
    experts->route({.logits = random({tokens, kExperts}, 2), .chosen = chosen, .weights = weights});
    const std::vector<int32_t> ids = device_.values<int32_t>(chosen);
    for (const bool own_rows : {false, true}) {
      const Operand x = operand_of(random({own_rows ? tokens * kChosen : tokens, width}), *weight);
      const View made = poisoned(act_, {tokens * kChosen, width});
      experts->expert_linear(
          {.x = x.x, .x_scale = x.scale, .chosen = chosen, .weight = &*weight, .out = made});
      const Matrix got = read(made);
      for (int64_t pair = 0; pair < tokens * kChosen; pair += std::max<int64_t>(1, tokens / 12)) {
        const Matrix row = x.exact.slice(own_rows ? pair : pair / kChosen, 1, 0, width);
        const Matrix expected = reference_linear(
            row, matrices[static_cast<size_t>(ids[static_cast<size_t>(pair)])], {});
        for (int64_t n = 0; n < width; n += 7) {
          ASSERT_NEAR(got.at(pair, n), expected.at(0, n),
                      product_tolerance(width, 12, expected.at(0, n), act_))
              << "pair " << pair << ", column " << n;
        }
      }
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
    ops::CombineExpertsArgs one{.x = x.rows(2 * chosen, chosen),
                                .weights = weights.rows(2, 1),
                                .shared = shared.empty() ? View{} : shared.rows(2, 1),
                                .out = alone};
    experts->combine_experts(one);
    expect_same_rows(alone, out.rows(2, 1), "alone");
    if (shared.empty()) continue;
    one.out = one.shared;
    experts->combine_experts(one);
    expect_same_rows(shared.rows(2, 1), alone, "in place of what is shared");
  }
}

}  // namespace

Result<ops::LinearWeight> OpsOpenExperts::weight_of(const OpenCase& c, int64_t in, int64_t out,
                                                    int64_t experts) {
  std::list<std::vector<float>> memory;
  std::list<HostTensor> codes;
  std::vector<ops::LinearPart> parts;
  for (int64_t e = 0; e < experts; ++e) {
    if (c.is_coded) {
      parts.push_back(coded_part(in, out, codes));
    } else {
      std::vector<float>& values = memory.emplace_back(random_values(in * out, 0.2));
      for (float& value : values) value = tensor::to_float(tensor::to_bf16(value));
      if (stores_fp8()) put_on_fp8_grid(values, in);
      parts.push_back(ops::wide_part({values.data(), tensor::DType::kF32, {out, in}}));
    }
    if (!c.has_bias) continue;
    std::vector<float>& bias = memory.emplace_back(random_values(out));
    for (float& value : bias) value = tensor::to_float(tensor::to_bf16(value));
    parts.back().bias = {bias.data(), tensor::DType::kF32, {out}};
  }
  if (experts == 1) return ops_.make_linear(parts);
  return ops_.expert_ops()->make_experts(parts, experts);
}

}  // namespace rudder::testing
