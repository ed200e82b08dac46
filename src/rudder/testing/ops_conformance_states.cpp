// convolve(), recur() and gate_rows(), of backends that have StateOps.
#include "rudder/testing/ops_conformance_states.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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

std::vector<RecurCase> recur_cases() {
  return {{"gated delta", 2, 6, 16, 20, false, true, true, false},
          {"wide heads", 1, 2, 128, 128, false, true, true, false},
          {"a decay of each channel", 3, 3, 24, 33, true, true, true, false},
          {"a state space", 1, 4, 48, 12, false, false, false, true},
          {"a state space of wide heads", 1, 2, 128, 64, false, false, false, true},
          {"long keys", 1, 1, 200, 36, false, true, true, false},
          {"channels with a floor", 3, 3, 20, 28, true, true, true, false, -4.75f},
          {"narrow", 2, 2, 1, 1, false, true, true, false}};
}

TEST_P(OpsStates, RecurIsItsFormula) {
  ops::StateOps* const ops = ops_.state_ops();
  if (ops == nullptr) GTEST_SKIP() << "it keeps no states";
  for (const RecurCase& one : recur_cases()) {
    SCOPED_TRACE(one.name);
    if (one.decay_floor < 0 && !ops->state_limits().decay_floor) continue;
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
                        .b = {.begin = one.a_by_channel ? values + 2 * keys + 3
                                       : one.has_b      ? 1
                                                        : -1},
                        .key_heads = one.key_heads,
                        .value_heads = one.value_heads,
                        .key_dim = one.key_dim,
                        .value_dim = one.value_dim,
                        .a_by_channel = one.a_by_channel,
                        .rule = one.is_delta ? ops::RecurRule::kDelta : ops::RecurRule::kSum,
                        .limits = {.low = one.skips ? 0.1f : 0.0f,
                                   .high = one.skips ? 0.9f : kInfinity,
                                   .decay_floor = one.decay_floor},
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
      if (one.a_by_channel) now.b.rows = of.in;  // beside q, k and v
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
         .step_low = double{args.limits.low},
         .step_high = double{args.limits.high},
         .decay_floor = double{args.limits.decay_floor},
         .a_log = read(args.a_log),
         .step_bias = read(args.step_bias),
         .skip = read(args.skip)},
        qkv.slice(0, kTokens, args.q_begin, keys), qkv.slice(0, kTokens, args.k_begin, keys),
        qkv.slice(0, kTokens, 1, values), gates.slice(0, kTokens, args.a_begin, a_width),
        !one.has_b
            ? Matrix()
            : (one.a_by_channel ? qkv : gates).slice(0, kTokens, args.b.begin, one.value_heads));
    expect_close(read(args.out), expected, 2e-5 * std::max(1.0, max_abs(expected)), one.name);
  }
}

// Runs that are long enough to go by chunks where a backend has them: whole, in parts that end
// anywhere, beside short ones and behind drafts.
TEST_P(OpsStates, RecurOfLongRuns) {
  if (ops_.state_ops() == nullptr) GTEST_SKIP() << "it keeps no states";
  for (const RecurCase& one : {RecurCase{"gated delta", 2, 6, 128, 128, false, true, true, false},
                               {"narrow", 1, 2, 12, 20, false, true, true, false},
                               {"a state space", 1, 3, 128, 64, false, false, false, true},
                               {"a sum with steps", 2, 4, 48, 16, false, true, false, false}}) {
    SCOPED_TRACE(one.name);
    ASSERT_TRUE(ops_.prepare({.max_tokens = 2 * LongRun::kLength,
                              .max_rows = 8,
                              .max_seqs = 8,
                              .max_state_heads = one.value_heads}));
    const LongRun run = long_run(one);
    const ops::LayerState of = layer(run.args.state_floats(), run.args.kept_floats());
    const auto step = [&](const std::vector<StatePiece>& pieces) { expect_step(run, of, pieces); };
    step({{.count = LongRun::kLength}});
    step({{.count = 100},
          {.state = -1, .count = 1},
          {.state = 1, .count = 3},
          {.state = 2, .count = 64}});
    step({{.state = 1, .position = 3, .count = 1},
          {.position = 100, .count = 30},
          {.state = 2, .position = 64, .count = 129},
          {.state = -1, .count = 70}});
    step({{.position = 130, .count = 163},
          {.state = 1, .position = 4, .count = 65},
          {.state = 2, .position = 193, .count = 100}});
    // Two of the drafts were right, so that the state is moved over kept rows first.
    step({{.state = 1, .position = 69, .count = 1 + kDrafts, .drafts = kDrafts}});
    step({{.state = 1, .position = 72, .count = 100}});
    step({{.state = 1, .position = 172, .count = 121}});
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
              .b = {.begin = 1},
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

// Decays and steps from 0 to 1; some tokens are all alike.
OpsStates::LongRun OpsStates::long_run(const RecurCase& one) {
  constexpr int64_t kLength = LongRun::kLength;
  const int64_t keys = int64_t{one.key_heads} * one.key_dim;
  const int64_t values = int64_t{one.value_heads} * one.value_dim;
  const int64_t heads = one.value_heads;
  const auto drawn = [&](int64_t width, double scale) {
    std::vector<float> rows = random_values(kLength * width, scale);
    for (int64_t t = 71; t < 90; ++t) {
      std::copy_n(rows.begin() + 70 * width, width, rows.begin() + t * width);
    }
    return read(device_.put(HostTensor(rows, act_, {kLength, width})));
  };
  LongRun run{
      .args = {.state = {},
               .qkv = {},
               .q_begin = values,
               .k_begin = values + keys,
               .v_begin = 0,
               .gates = {},
               .a_begin = 0,
               .b = {.begin = one.has_b ? heads : -1},
               .key_heads = one.key_heads,
               .value_heads = one.value_heads,
               .key_dim = one.key_dim,
               .value_dim = one.value_dim,
               .rule = one.is_delta ? ops::RecurRule::kDelta : ops::RecurRule::kSum,
               .limits = {.low = one.skips ? 0.001f : 0.0f, .high = one.skips ? 0.9f : kInfinity},
               .a_log = floats(heads, 2, -1),
               .step_bias = floats(heads, 0.3),
               .skip = one.skips ? floats(heads, 1) : View{},
               .out = poisoned({1, values})},
      .qkv = drawn(values + 2 * keys, 1),
      .gates = drawn(2 * heads, 5),
      .expected = {}};
  const auto part = [&](const Matrix& rows, int64_t begin, int64_t count) {
    return rows.slice(0, kLength, begin, count);
  };
  run.expected = reference_recur({.key_heads = one.key_heads,
                                  .value_heads = one.value_heads,
                                  .key_dim = one.key_dim,
                                  .value_dim = one.value_dim,
                                  .is_delta = one.is_delta,
                                  .step_low = double{run.args.limits.low},
                                  .step_high = double{run.args.limits.high},
                                  .a_log = read(run.args.a_log),
                                  .step_bias = read(run.args.step_bias),
                                  .skip = read(run.args.skip)},
                                 part(run.qkv, values, keys), part(run.qkv, values + keys, keys),
                                 part(run.qkv, 0, values), part(run.gates, 0, heads),
                                 one.has_b ? part(run.gates, heads, heads) : Matrix());
  return run;
}

// A piece has the rows of its positions.
void OpsStates::expect_step(const LongRun& run, const ops::LayerState& of,
                            const std::vector<StatePiece>& pieces) {
  const auto joined = [&](const Matrix& rows) {
    Matrix all(0, rows.cols);
    for (const StatePiece& piece : pieces) {
      const Matrix part = rows.slice(piece.position, piece.count, 0, rows.cols);
      all.values.insert(all.values.end(), part.values.begin(), part.values.end());
      all.rows += part.rows;
    }
    const std::vector<float> values(all.values.begin(), all.values.end());
    return device_.put(HostTensor(values, act_, {all.rows, all.cols}));
  };
  ops::RecurArgs args = run.args;
  args.state = access(pieces, of);
  args.qkv = joined(run.qkv);
  args.gates = joined(run.gates);
  args.out = poisoned({args.qkv.num_rows(), run.expected.cols});
  ops_.state_ops()->recur(args);
  // By chunks what a token reads is a product of bf16.
  const double unit = GetParam().rows_are_exact ? 2e-5 : std::ldexp(1.0, -8);
  const double tolerance = unit * std::max(1.0, max_abs(run.expected));
  int64_t begin = 0;
  for (const StatePiece& piece : pieces) {
    if (piece.state >= 0) {
      expect_close(read(args.out.rows(begin, piece.count)),
                   run.expected.slice(piece.position, piece.count, 0, run.expected.cols), tolerance,
                   fmt::format("tokens from {} of state {}", piece.position, piece.state));
    }
    begin += piece.count;
  }
}

}  // namespace rudder::testing
