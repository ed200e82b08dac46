// convolve(), recur() and gate_rows(), of backends that have StateOps.
#include "rudder/testing/ops_conformance_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "rudder/testing/reference_recurrences.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

// A backend without states has no suite of them.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpsStates);

TEST_P(OpsStates, ConvolveIsItsFormula) {
  ops::StateOps* const ops = ops_.state_ops();
  if (ops == nullptr) GTEST_SKIP() << "it keeps no states";
  for (const auto& [length, bias, silu] :
       {std::tuple(4, false, true), {3, true, false}, {1, true, true}, {5, false, false}}) {
    SCOPED_TRACE("a filter of " + std::to_string(length));
    const int64_t channels = wide(61);
    const View x = random({kTokens, channels + wide(5)});
    const View weight = floats(channels * length, 0.6);
    const View added = bias ? floats(channels, 0.4) : View{};
    const StateRows rows{x, {}, poisoned({kTokens, channels})};
    const auto run = [&, length = length, silu = silu](const ops::StateAccess& state,
                                                       const StateRows& of) {
      ops->convolve({.state = state,
                     .x = of.in,
                     .weight = weight,
                     .bias = added,
                     .length = length,
                     .silu = silu,
                     .out = of.out});
    };
    expect_one_result(run, rows, layer((length - 1) * channels, channels));
    Matrix filters = read(weight);
    filters.rows = channels;
    filters.cols = length;
    const Matrix in = read(x);
    expect_close(read(rows.out),
                 reference_convolve(in.slice(0, in.rows, 0, channels), filters, read(added), silu),
                 4e-6, "what is convolved");
  }
}

struct RecurCase {
  std::string name;
  int32_t key_heads, value_heads, key_dim, value_dim;
  bool a_by_channel, has_b, is_delta, skips;
};

std::vector<RecurCase> recur_cases() {
  return {{"gated delta", 2, 6, 16, 20, false, true, true, false},
          {"wide heads", 1, 2, 128, 128, false, true, true, false},
          {"a decay of each channel", 3, 3, 24, 33, true, true, true, false},
          {"a state space", 1, 4, 48, 12, false, false, false, true},
          {"a state space of wide heads", 1, 2, 128, 64, false, false, false, true},
          {"long keys", 1, 1, 200, 36, false, true, true, false},
          {"narrow", 2, 2, 1, 1, false, true, true, false}};
}

TEST_P(OpsStates, RecurIsItsFormula) {
  ops::StateOps* const ops = ops_.state_ops();
  if (ops == nullptr) GTEST_SKIP() << "it keeps no states";
  for (const RecurCase& one : recur_cases()) {
    SCOPED_TRACE(one.name);
    const int64_t keys = int64_t{one.key_heads} * one.key_dim;
    const int64_t values = int64_t{one.value_heads} * one.value_dim;
    const int64_t a_width = int64_t{one.value_heads} * (one.a_by_channel ? one.key_dim : 1);
    ops::RecurArgs args{.state = {},
                        .qkv = random({kTokens, values + 2 * keys + 3 + one.value_heads}),
                        .q_begin = values + 1,
                        .k_begin = values + keys + 2,
                        .v_begin = 1,
                        .gates = random({kTokens, a_width + one.value_heads + 1}),
                        .a_begin = one.value_heads + 1,
                        .b_begin = one.a_by_channel ? values + 2 * keys + 3
                                   : one.has_b      ? 1
                                                    : -1,
                        .key_heads = one.key_heads,
                        .value_heads = one.value_heads,
                        .key_dim = one.key_dim,
                        .value_dim = one.value_dim,
                        .a_by_channel = one.a_by_channel,
                        .rule = one.is_delta ? ops::RecurRule::kDelta : ops::RecurRule::kSum,
                        .step_low = one.skips ? 0.1f : 0.0f,
                        .step_high = one.skips ? 0.9f : kInfinity,
                        .a_log = floats(one.value_heads, 0.5, -1),
                        .step_bias = floats(a_width, 0.3),
                        .skip = one.skips ? floats(one.value_heads, 1) : View{},
                        .out = poisoned({kTokens, values})};
    const StateRows rows{args.qkv, args.gates, args.out};
    const auto run = [&](const ops::StateAccess& state, const StateRows& of) {
      ops::RecurArgs now = args;
      now.state = state;
      now.qkv = of.in;
      now.gates = of.gates;
      if (one.a_by_channel) now.b = of.in;  // beside q, k and v
      now.out = of.out;
      ops->recur(now);
    };
    expect_one_result(run, rows, layer(args.state_floats(), args.kept_floats()));
    const Matrix qkv = read(args.qkv);
    const Matrix gates = read(args.gates);
    const Matrix expected = reference_recur(
        {.key_heads = one.key_heads,
         .value_heads = one.value_heads,
         .key_dim = one.key_dim,
         .value_dim = one.value_dim,
         .is_delta = one.is_delta,
         .step_low = double{args.step_low},
         .step_high = double{args.step_high},
         .a_log = read(args.a_log),
         .step_bias = read(args.step_bias),
         .skip = read(args.skip)},
        qkv.slice(0, kTokens, args.q_begin, keys), qkv.slice(0, kTokens, args.k_begin, keys),
        qkv.slice(0, kTokens, 1, values), gates.slice(0, kTokens, args.a_begin, a_width),
        !one.has_b
            ? Matrix()
            : (one.a_by_channel ? qkv : gates).slice(0, kTokens, args.b_begin, one.value_heads));
    expect_close(read(args.out), expected, 2e-5 * std::max(1.0, max_abs(expected)), one.name);
  }
}

// Two tokens of one head, computed by transformers' torch_recurrent_gated_delta_rule; and, with a
// decay of each channel, by its chunked form.
TEST_P(OpsStates, RecurOfAGolden) {
  ops::StateOps* const ops = ops_.state_ops();
  if (ops == nullptr || act_ != DType::kF32) GTEST_SKIP() << "it keeps no states of such rows";
  const auto put = [&](const std::vector<float>& values, tensor::Shape shape) {
    return device_.put_as(std::span<const float>(values), DType::kF32, shape);
  };
  const auto logit = [](float p) { return std::log(p / (1 - p)); };
  const View out = poisoned({2, 2});
  const ops::LayerState of = layer(4, 8);
  ops->recur({.state = access({{.count = 2}}, of),
              .qkv = put({1, 2, .5f, -1, 1, 3, -1, .5f, 2, 1, -2, .5f}, {2, 6}),
              .q_begin = 0,
              .k_begin = 2,
              .v_begin = 4,
              .gates = put({.2f, logit(.5f), -.4f, logit(.8f)}, {2, 2}),
              .a_begin = 0,
              .b_begin = 1,
              .key_dim = 2,
              .value_dim = 2,
              .a_log = put({.3f}, {1}),
              .step_bias = put({.1f}, {1}),
              .out = out});
  Matrix expected(2, 2);
  expected.values = {-.2121319, -.6363958, .5449897, -.5712031};
  expect_close(read(out), expected, 5e-7, "what is read");
}

TEST_P(OpsConformance, GateRows) {
  ops::StateOps* const ops = ops_.state_ops();
  if (ops == nullptr) GTEST_SKIP() << "it gates no rows";
  using enum ops::GateFunction;
  struct Case {
    ops::GateFunction function;
    int64_t run;  // 0: no norm
    bool whole_weight, gates_first;
  };
  for (const Case& one : {Case{kSigmoid, 0, false, false}, Case{kSilu, 20, false, false},
                          Case{kSigmoid, 15, true, false}, Case{kSilu, 30, true, true},
                          Case{kItself, 0, false, false}}) {
    SCOPED_TRACE("a run of " + std::to_string(one.run));
    constexpr int64_t kWidth = 60;
    const View x = random({9, kWidth});
    const View gate = random({9, kWidth + 7});
    std::vector<float> weights = random_values(one.whole_weight ? kWidth : one.run, 0.2);
    for (float& weight : weights) weight += 1;
    ops::GateRowsArgs args{.x = x,
                           .gate = gate,
                           .gate_begin = 3,
                           .function = one.function,
                           .norm = {},
                           .run = one.run,
                           .gates_first = one.gates_first,
                           .out = poisoned({9, kWidth})};
    if (one.run > 0) {
      args.norm = {.weight = device_.put_as(std::span<const float>(weights), DType::kF32,
                                            {std::ssize(weights)}),
                   .eps = 1e-4f};
    }
    ops->gate_rows(args);
    const Matrix expected = reference_gate_rows({.function = one.function,
                                                 .norm = read(args.norm.weight),
                                                 .run = one.run,
                                                 .eps = double{1e-4f},
                                                 .gates_first = one.gates_first},
                                                read(x), read(gate).slice(0, 9, 3, kWidth));
    expect_close(read(args.out), expected, 4e-6, "what is gated");
    ops::GateRowsArgs alone = args;
    alone.x = copy(x.rows(4, 1));
    alone.gate = gate.rows(4, 1);
    alone.out = alone.x;  // in place
    ops->gate_rows(alone);
    expect_same_rows(alone.out, args.out.rows(4, 1), "alone, in place");
  }
}

}  // namespace
}  // namespace rudder::testing
