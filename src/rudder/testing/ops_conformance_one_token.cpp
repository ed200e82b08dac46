// open_experts() and close_experts(), of backends that have fewer launches for a token.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

// Where a device has fewer launches for a token that is alone: what the ops that they stand for
// make, but for rounding, of which an activation that is quantised to another step is the most.
TEST_P(OpsConformance, OneTokensExpertsOpenedAndClosed) {
  ops::ExpertOps* const experts = ops_.expert_ops();
  if (experts == nullptr) GTEST_SKIP() << "it has no experts";
  struct Case {
    int64_t experts, chosen, in, width;
    bool has_bias, has_shared, chooses;
    ops::Activation activation;
  };
  using enum ops::Activation;
  bool opens = false;
  for (const Case& c : {Case{128, 8, 208, 96, false, false, true, kSilu},
                        Case{16, 4, 1040, 272, true, true, true, kClampedSwiglu},
                        Case{200, 10, 144, 48, false, true, true, kSilu},
                        Case{512, 12, 80, 64, false, false, false, kGeluTanh}}) {
    SCOPED_TRACE(std::to_string(c.chosen) + " of " + std::to_string(c.experts));
    const auto make = [&](int64_t in, int64_t out) {
      std::vector<std::vector<float>> memory;
      std::vector<ops::LinearPart> parts;
      for (int64_t e = 0; e < c.experts; ++e) {
        memory.push_back(random_values(in * out, 0.2));
        for (float& value : memory.back()) value = tensor::to_float(tensor::to_bf16(value));
        if (stores_fp8()) put_on_fp8_grid(memory.back(), in);
        parts.push_back(ops::wide_part({memory.back().data(), DType::kF32, {out, in}}));
        if (!c.has_bias) continue;
        memory.push_back(random_values(out));
        for (float& value : memory.back()) value = tensor::to_float(tensor::to_bf16(value));
        parts.back().bias = {memory.back().data(), DType::kF32, {out}};
      }
      return experts->make_experts(parts, c.experts);
    };
    const auto first_weight = make(c.in, 2 * c.width);
    const auto second_weight = make(c.width, c.in);
    ASSERT_TRUE(first_weight && second_weight);
    const Operand x = operand_of(random({1, c.in}), *first_weight);
    const View logits = random({1, c.experts}, 2);
    const View shared = c.has_shared ? random({1, c.in}) : View{};
    const View gate = c.has_shared ? random({1, 1}) : View{};
    struct Made {
      View chosen, weights, activated, out;
    };
    const auto run = [&](bool fewer) {
      const Made made{poisoned(DType::kI32, {1, c.chosen}), poisoned(DType::kF32, {1, c.chosen}),
                      poisoned(act_, {c.chosen, c.width}), poisoned(act_, {1, c.in})};
      const ops::RouteArgs route{
          .logits = logits, .renormalises = true, .chosen = made.chosen, .weights = made.weights};
      const ops::ExpertLinearArgs first{.x = x.x,
                                        .x_scale = x.scale,
                                        .chosen = made.chosen,
                                        .weight = &*first_weight,
                                        .activation = c.activation,
                                        .out = made.activated};
      if (!fewer || !c.chooses) experts->route(route);
      const bool opened =
          fewer &&
          experts->open_experts({.route = c.chooses ? route : ops::RouteArgs{}, .first = first});
      if (!opened && fewer) return Made{};
      if (!opened) experts->expert_linear(first);
      ops::ExpertLinearArgs second{
          .x = made.activated, .chosen = made.chosen, .weight = &*second_weight};
      ops::CombineExpertsArgs sum{
          .weights = made.weights, .shared = shared, .shared_gate = gate, .out = made.out};
      if (fewer) {
        EXPECT_TRUE(experts->close_experts({.second = second, .sum = sum}));
        return made;
      }
      const Operand rows = operand_of(made.activated, *second_weight);
      second.x = rows.x;
      second.x_scale = rows.scale;
      second.out = sum.x = poisoned(act_, {c.chosen, c.in});
      experts->expert_linear(second);
      experts->combine_experts(sum);
      return made;
    };
    const Made expected = run(false);
    const Made got = run(true);
    if (got.out.empty()) continue;
    opens = true;
    EXPECT_EQ(device_.values<int32_t>(got.chosen), device_.values<int32_t>(expected.chosen));
    EXPECT_EQ(device_.values<float>(got.weights), device_.values<float>(expected.weights));
    const auto near = [&](const View& made, const View& wanted, double part, const char* what) {
      const Matrix all = read(made);
      const Matrix wants = read(wanted);
      double most = 0;
      for (const double value : wants.values) most = std::max(most, std::abs(value));
      for (size_t i = 0; i < wants.values.size(); ++i) {
        ASSERT_NEAR(all.values[i], wants.values[i], part * most) << what << ", number " << i;
      }
    };
    near(got.activated, expected.activated, 0.01, "activated");
    near(got.out, expected.out, 0.02, "sums");
    const Made again = run(true);
    expect_same_rows(again.out, got.out, "again");
  }
  if (!opens) GTEST_SKIP() << "it has no fewer launches for a token";
}

}  // namespace
}  // namespace rudder::testing
