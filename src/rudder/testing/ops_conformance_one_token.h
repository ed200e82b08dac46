// What the test of a token that is alone (ops_conformance_one_token.cpp) runs: its mixture, and
// what a backend makes of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <list>
#include <vector>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {

struct OneTokenCase {
  int64_t experts, chosen, in, width;
  bool has_bias, has_shared, chooses, is_coded;
  ops::Activation activation;
};

// A token's mixture: its weights and rows, and what a backend makes of them.
class OpsOneToken : public OpsConformance {
 protected:
  struct Mixture {
    OneTokenCase shape;
    ops::LinearWeight first, second;
    Operand x;
    tensor::View logits, shared, gate;
  };
  struct Made {
    tensor::View chosen, weights, activated, out;
  };

  // Weights of all experts: random numbers as a wide part, or MXFP4.
  Result<ops::LinearWeight> make_experts(const OneTokenCase& c, int64_t in, int64_t out) {
    std::list<std::vector<float>> memory;
    std::list<HostTensor> codes;
    std::vector<ops::LinearPart> parts;
    for (int64_t e = 0; e < c.experts; ++e) {
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
    return ops_.expert_ops()->make_experts(parts, c.experts);
  }

  Result<Mixture> make_mixture(const OneTokenCase& c) {
    Mixture made;
    made.shape = c;
    RUDDER_TRY(made.first, make_experts(c, c.in, 2 * c.width));
    RUDDER_TRY(made.second, make_experts(c, c.width, c.in));
    made.x = operand_of(random({1, c.in}), made.first);
    made.logits = random({1, c.experts}, 2);
    if (!c.has_shared) return made;
    made.shared = random({1, c.in});
    made.gate = random({1, 1});
    return made;
  }

  // By the ops that the two stand for; with `fewer` by these two, empty where there are none.
  Made run(const Mixture& mixture, bool fewer) {
    const OneTokenCase& c = mixture.shape;
    ops::ExpertOps& experts = *ops_.expert_ops();
    const Made made{poisoned(tensor::DType::kI32, {1, c.chosen}),
                    poisoned(tensor::DType::kF32, {1, c.chosen}),
                    poisoned(act_, {c.chosen, c.width}), poisoned(act_, {1, c.in})};
    const ops::RouteArgs route{.logits = mixture.logits,
                               .renormalises = true,
                               .chosen = made.chosen,
                               .weights = made.weights};
    const ops::ExpertLinearArgs first{.x = mixture.x.x,
                                      .x_scale = mixture.x.scale,
                                      .chosen = made.chosen,
                                      .weight = &mixture.first,
                                      .activation = c.activation,
                                      .out = made.activated};
    ops::ExpertLinearArgs second{
        .x = made.activated, .chosen = made.chosen, .weight = &mixture.second};
    ops::CombineExpertsArgs sum{.weights = made.weights,
                                .shared = mixture.shared,
                                .shared_gate = mixture.gate,
                                .out = made.out};
    if (!fewer || !c.chooses) experts.route(route);
    if (fewer) {
      const bool opened = experts.open_experts(
          {.route = c.chooses ? route : ops::RouteArgs{}, .first = first, .next = &mixture.second});
      if (!opened) return {};
      EXPECT_TRUE(experts.close_experts({.second = second, .sum = sum}));
      return made;
    }
    experts.expert_linear(first);
    const Operand rows = operand_of(made.activated, mixture.second);
    second.x = rows.x;
    second.x_scale = rows.scale;
    second.out = sum.x = poisoned(act_, {c.chosen, c.in});
    experts.expert_linear(second);
    experts.combine_experts(sum);
    return made;
  }

  // But for a part of the largest number that was wanted.
  void expect_near(const tensor::View& got, const tensor::View& expected, double part,
                   const char* what) {
    const Matrix all = read(got);
    const Matrix wants = read(expected);
    double most = 0;
    for (const double value : wants.values) most = std::max(most, std::abs(value));
    for (size_t i = 0; i < wants.values.size(); ++i) {
      ASSERT_NEAR(all.values[i], wants.values[i], part * most) << what << ", number " << i;
    }
  }

 private:
  ops::LinearPart coded_part(int64_t in, int64_t out, std::list<HostTensor>& memory) {
    const ops::StoredParts shapes = ops::stored_parts(ops::kMxfp4, out, in);
    const auto draw = [&](const ops::StoredPart& part, int64_t low, int64_t high) {
      HostTensor& bytes =
          memory.emplace_back(tensor::DType::kU8, tensor::Shape{part.rows, part.columns});
      for (uint8_t& byte : bytes.values<uint8_t>()) byte = static_cast<uint8_t>(between(low, high));
      return bytes.view();
    };
    return {.format = ops::kMxfp4,
            .codes = draw(shapes.codes, 0, 255),
            .scales = draw(shapes.scales, 122, 126)};
  }
};

}  // namespace rudder::testing
