// What the test of a token that is alone (ops_conformance_one_token.cpp) runs: its mixture, and
// what a backend makes of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <list>
#include <vector>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {

// What is added behind the chosen experts.
enum class SharedExpert : uint8_t {
  kNone,
  kMade,     // rows that another op has made, and their gate
  kJoins,    // its weights run with theirs
  kIsGated,  // likewise, and its gate
};

struct OpenCase {
  int64_t experts, chosen, in, width;
  bool has_bias, chooses, is_coded;
  SharedExpert shared;
  ops::Activation activation;

  bool joins() const { return shared >= SharedExpert::kJoins; }
  // Of the shared expert: another than that of the others.
  int64_t shared_width() const { return width + 32; }
};

// A mixture: its weights and rows, and what a backend makes of them.
class OpsOpenExperts : public OpsConformance {
 protected:
  struct Mixture {
    OpenCase shape;
    ops::LinearWeight first, second;
    ops::LinearWeight shared_first, shared_second, gate;  // of SharedExpert::kJoins
    tensor::View act;
    Operand x;
    tensor::View logits;
    tensor::View shared, shared_gate;  // of SharedExpert::kMade
  };
  struct Made {
    tensor::View chosen, weights, activated, out;
  };

  // A weight of experts, or of an expert alone: random numbers as a wide part, or MXFP4.
  Result<ops::LinearWeight> weight_of(const OpenCase& c, int64_t in, int64_t out, int64_t experts);

  Result<Mixture> make_mixture(const OpenCase& c) {
    Mixture made;
    made.shape = c;
    RUDDER_TRY(made.first, weight_of(c, c.in, 2 * c.width, c.experts));
    RUDDER_TRY(made.second, weight_of(c, c.width, c.in, c.experts));
    made.act = random({1, c.in});
    made.x = operand_of(made.act, made.first);
    made.logits = random({1, c.experts}, 2);
    if (c.shared == SharedExpert::kMade) {
      made.shared = random({1, c.in});
      made.shared_gate = random({1, 1});
    }
    if (!c.joins()) return made;
    RUDDER_TRY(made.shared_first, weight_of(c, c.in, 2 * c.shared_width(), 1));
    RUDDER_TRY(made.shared_second, weight_of(c, c.shared_width(), c.in, 1));
    std::vector<float> gate = random_values(c.in, 0.1);
    ops::LinearPart row = ops::wide_part({gate.data(), tensor::DType::kF32, {1, c.in}});
    row.use = ops::ProductUse::kRouter;
    RUDDER_TRY(made.gate, ops_.make_linear({&row, 1}));
    return made;
  }

  // By the ops that the two stand for.
  Made run_apart(const Mixture& mixture) {
    const OpenCase& c = mixture.shape;
    auto& experts = *ops_.expert_ops();
    const Made made = no_numbers(c);
    experts.route(route_of(mixture, made));
    experts.expert_linear(first_of(mixture, made));
    ops::CombineExpertsArgs sum{.weights = made.weights,
                                .shared = mixture.shared,
                                .shared_gate = mixture.shared_gate,
                                .out = made.out};
    if (c.joins()) {
      const tensor::View both = poisoned(act_, {1, 2 * c.shared_width()});
      ops_.linear({mixture.x.x, mixture.x.scale, &mixture.shared_first, both});
      const tensor::View act = poisoned(act_, {1, c.shared_width()});
      ops_.gated_act({.x = both, .activation = c.activation, .out = act, .out_scale = {}});
      const Operand rows = operand_of(act, mixture.shared_second);
      sum.shared = poisoned(act_, {1, c.in});
      ops_.linear({rows.x, rows.scale, &mixture.shared_second, sum.shared});
      if (c.shared == SharedExpert::kIsGated) {
        sum.shared_gate = poisoned(act_, {1, 1});
        ops_.linear({mixture.act, {}, &mixture.gate, sum.shared_gate});
      }
    }
    const Operand rows = operand_of(made.activated, mixture.second);
    sum.x = poisoned(act_, {c.chosen, c.in});
    experts.expert_linear({.x = rows.x,
                           .x_scale = rows.scale,
                           .chosen = made.chosen,
                           .weight = &mixture.second,
                           .out = sum.x});
    experts.combine_experts(sum);
    return made;
  }

  // By the two; empty where a backend has none for the shape.
  Made run_together(const Mixture& mixture) {
    const OpenCase& c = mixture.shape;
    auto& experts = *ops_.expert_ops();
    const Made made = no_numbers(c);
    const ops::RouteArgs route = route_of(mixture, made);
    if (!c.chooses) experts.route(route);
    ops::OpenExpertsArgs open{.route = c.chooses ? route : ops::RouteArgs{},
                              .first = first_of(mixture, made),
                              .next = &mixture.second};
    ops::CloseExpertsArgs close{
        .second = {.x = made.activated, .chosen = made.chosen, .weight = &mixture.second},
        .sum = {.weights = made.weights,
                .shared = mixture.shared,
                .shared_gate = mixture.shared_gate,
                .out = made.out}};
    if (c.joins()) {
      open.shared = {.weight = &mixture.shared_first,
                     .activation = c.activation,
                     .out = poisoned(act_, {1, c.shared_width()}),
                     .next = &mixture.shared_second};
      close.shared = {.x = open.shared.out, .weight = &mixture.shared_second};
      if (c.shared == SharedExpert::kIsGated) {
        close.shared.gate_x = mixture.act;
        close.shared.gate = &mixture.gate;
      }
    }
    if (!experts.open_experts(open)) return {};
    EXPECT_TRUE(experts.close_experts(close));
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
  Made no_numbers(const OpenCase& c) {
    return {poisoned(tensor::DType::kI32, {1, c.chosen}),
            poisoned(tensor::DType::kF32, {1, c.chosen}), poisoned(act_, {c.chosen, c.width}),
            poisoned(act_, {1, c.in})};
  }
  static ops::RouteArgs route_of(const Mixture& mixture, const Made& made) {
    return {.logits = mixture.logits,
            .renormalises = true,
            .chosen = made.chosen,
            .weights = made.weights};
  }
  static ops::ExpertLinearArgs first_of(const Mixture& mixture, const Made& made) {
    return {.x = mixture.x.x,
            .x_scale = mixture.x.scale,
            .chosen = made.chosen,
            .weight = &mixture.first,
            .activation = mixture.shape.activation,
            .out = made.activated};
  }

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
