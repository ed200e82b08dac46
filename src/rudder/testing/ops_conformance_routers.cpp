// route_tapped(), of backends that have RouterTapOps: programs and captures at a router's points.
#include "rudder/testing/ops_conformance_routers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace rudder::testing {
namespace {

using tap::OpKind;
using tap::TapOp;
using tensor::DType;
using tensor::View;

std::vector<TappedRouter> tapped_routers() {
  using enum ops::RouterKind;
  return {{"softmax, then the largest", {.kind = kSoftmaxThenTop, .chosen = 4}},
          {"renormalised", {.kind = kSoftmaxThenTop, .renormalises = true, .chosen = 3}, 128},
          {"the largest, then softmax", {.kind = kTopThenSoftmax, .chosen = 4}, 37},
          {"sigmoid", {.kind = kSigmoid, .chosen = 2}, 32, true},
          {"sigmoid in groups",
           {.kind = kSigmoid,
            .renormalises = true,
            .scale = 2.53,
            .groups = 8,
            .kept_groups = 3,
            .chosen = 6},
           160,
           true}};
}

}  // namespace

TapOp OpsRouters::bias(int64_t experts, std::vector<float>& vectors) {
  TapOp op;
  op.kind = OpKind::kAdd;
  op.strength = 1.5f;
  op.v1 = add_vector(drawn(experts), vectors);
  return op;
}

TapOp OpsRouters::map(const TappedRouter& of, std::vector<float>& vectors) {
  TapOp op;
  op.kind = OpKind::kExperts;
  op.lo = of.router.kind == ops::RouterKind::kSigmoid ? 1.0f : 0.0f;
  Row wanted(static_cast<size_t>(of.experts));
  const auto last = std::ssize(wanted) - 1;
  for (int i = 0; i < 3; ++i) wanted[static_cast<size_t>(between(0, last))] = -1;
  for (int i = 0; i < 2; ++i) wanted[static_cast<size_t>(between(0, last))] = 1;
  op.v1 = add_vector(wanted, vectors);
  return op;
}

OpsRouters::Row OpsRouters::drawn(int64_t count) {
  const std::vector<float> values = random_values(count, 1);
  return {values.begin(), values.end()};
}

std::vector<tap::Program> OpsRouters::programs_of(const TappedRouter& of) {
  std::vector<tap::Program> programs(6);
  const auto add = [&](size_t i, const TapOp& op) { programs[i].ops.push_back({kLogits, op}); };
  add(0, bias(of.experts, programs[0].vectors));
  add(1, map(of, programs[1].vectors));
  add(2, bias(of.experts, programs[2].vectors));
  add(2, map(of, programs[2].vectors));
  TapOp windowed = map(of, programs[3].vectors);
  windowed.schedule = tap::ScheduleKind::kWindow;
  windowed.begin = 0;
  windowed.end = 2;
  add(3, windowed);
  TapOp gated = map(of, programs[4].vectors);
  gated.gate = tap::GateKind::kSoft;
  gated.threshold = 0.25f;
  gated.gate_vector = add_vector(drawn(of.experts), programs[4].vectors);
  add(4, gated);
  add(5, map(of, programs[5].vectors));
  add(5, map(of, programs[5].vectors));  // the later one decides
  return programs;
}

// g s of a map whose gate, if it has one, reads the logits `h`.
double share_of(const TapOp& op, const std::vector<float>& vectors, const std::vector<double>& h,
                int32_t n) {
  if (op.schedule == tap::ScheduleKind::kWindow && (n < op.begin || n >= op.end)) return 0;
  if (op.gate == tap::GateKind::kNone) return 1;
  double read = 0;
  for (size_t e = 0; e < h.size(); ++e) {
    read += h[e] * double{vectors[static_cast<size_t>(op.gate_vector) + e]};
  }
  return 1 / (1 + std::exp(-double{op.sharpness} * (read - double{op.threshold})));
}

// What the token chooses whose logits, behind their own ops, are `h`.
std::vector<ReferenceChoice> OpsRouters::choices_of(const TappedRouter& of,
                                                    const tap::Program* program, const Row& h,
                                                    const std::vector<double>& added, int32_t n) {
  return reference_route(h, added, of.router, [&](ReferenceScores& scores) {
    if (program == nullptr) return;
    for (const tap::ProgramOp& op : program->ops) {
      if (op.op.kind != OpKind::kExperts || op.op.lo <= 0) continue;
      const auto* const v1 = program->vectors.data() + op.op.v1;
      const Row to = reference_chosen_scores(scores, Row(v1, v1 + scores.size()));
      const double by = share_of(op.op, program->vectors, h, n);
      for (size_t e = 0; e < scores.size(); ++e) {
        scores[e] = by == 1 ? to[e] : scores[e] + by * (to[e] - scores[e]);
      }
    }
  });
}

void OpsRouters::make_layer(Scene& scene, const tap::Routing& routing,
                            std::vector<tap::Program> programs,
                            std::vector<tap::CapturePoint> points) {
  scene.geometry = {.num_layers = 1,
                    .hidden = 8,
                    .mlp_width = {0},
                    .heads = {{1, 8}},
                    .sites = {static_cast<uint16_t>(tap::kDenseSites | tap::kRouterSites)},
                    .dtype = act_,
                    .routing = {routing}};
  scene.programs = std::move(programs);
  scene.sets = {{std::move(points)}};
}

void OpsRouters::check_router(const TappedRouter& of) {
  constexpr int64_t kTokens = 42;
  const int64_t k = of.router.chosen;
  Scene scene;
  make_layer(scene,
             {.experts = static_cast<int32_t>(of.experts), .chosen = static_cast<int32_t>(k)},
             programs_of(of), {{kLogits, false}, {kLogits, true}, {kChosen, false}});
  const int64_t record = record_elements(scene.sets[0], scene.geometry);
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto row = static_cast<int32_t>(t % (std::ssize(scene.programs) + 1));
    scene.tokens.push_back({.row = row, .since_prompt = static_cast<int32_t>(t / 8) - 1});
    if (t % 3 == 2) continue;
    scene.tokens.back().capture_set = 0;
    scene.tokens.back().capture_begin = static_cast<int32_t>(t * record / tap::kCaptureAlign);
  }
  put_scene(scene, kTokens * record);

  const View logits = random({kTokens, of.experts}, 2);
  const Matrix before = read(logits);
  const std::vector<float> corrections = random_values(of.experts, 0.4);
  const View correction =
      of.corrects ? device_.put_as(std::span<const float>(corrections), DType::kF32, {of.experts})
                  : View{};
  const std::vector<double> added = of.corrects ? read(correction).values : std::vector<double>();
  struct Out {
    View chosen;
    View weights;
  };
  const auto route = [&](const View& rows) {
    const Out out{poisoned(DType::kI32, {rows.shape[0], k}),
                  poisoned(DType::kF32, {rows.shape[0], k})};
    return std::pair(out, ops::RouteArgs{.logits = rows,
                                         .correction = correction,
                                         .kind = of.router.kind,
                                         .renormalises = of.router.renormalises,
                                         .scale = static_cast<float>(of.router.scale),
                                         .groups = static_cast<int32_t>(of.router.groups),
                                         .kept_groups = static_cast<int32_t>(of.router.kept_groups),
                                         .chosen = out.chosen,
                                         .weights = out.weights});
  };
  const auto [plain, plain_args] = route(logits);
  ops_.expert_ops()->route(plain_args);
  const Row second = row_of(before, 1);
  const View alone_logits = device_.put(
      HostTensor(std::vector<float>(second.begin(), second.end()), act_, {1, of.experts}));
  const auto [tapped, tapped_args] = route(logits);
  ops_.expert_ops()->router_taps()->route_tapped(
      {tapped_args, scene.at(kLogits), scene.at(kChosen)});
  const auto ids = device_.values<int32_t>(tapped.chosen);
  const auto weights = device_.values<float>(tapped.weights);

  for (int64_t t = 0; t < kTokens; ++t) {
    SCOPED_TRACE("token " + std::to_string(t));
    const auto token = static_cast<size_t>(t);
    const TapToken& about = scene.tokens[token];
    const tap::Program* program =
        about.row == 0 ? nullptr : &scene.programs[static_cast<size_t>(about.row) - 1];
    const Row h = row_of(before, t);
    ReferenceLatches latches;
    const Row after = program == nullptr
                          ? h
                          : reference_program(*program, kLogits, h, about.since_prompt, latches);
    const auto choices = choices_of(of, program, after, added, about.since_prompt);
    for (int64_t j = 0; j < k; ++j) {
      const auto at = static_cast<size_t>(t * k + j);
      const ReferenceChoice& choice = choices[static_cast<size_t>(j)];
      ASSERT_EQ(ids[at], choice.expert) << j;
      ASSERT_NEAR(weights[at], choice.weight, 4e-6 * of.router.scale) << j;
    }
    if (about.row == 0) {
      EXPECT_EQ(device_.values<int32_t>(tapped.chosen.rows(t, 1)),
                device_.values<int32_t>(plain.chosen.rows(t, 1)));
      EXPECT_EQ(device_.values<float>(tapped.weights.rows(t, 1)),
                device_.values<float>(plain.weights.rows(t, 1)));
    }
    if (about.capture_set < 0) continue;
    const auto pre = captured_row<float>(scene, token, 0, of.experts, DType::kF32);
    const auto post = captured_row<float>(scene, token, 1, of.experts, DType::kF32);
    const auto named = captured_row<int16_t>(scene, token, 2, k, DType::kI16);
    for (size_t e = 0; e < h.size(); ++e) {
      ASSERT_EQ(pre[e], static_cast<float>(h[e])) << e;
      ASSERT_NEAR(post[e], after[e], 4e-6 * (1 + std::abs(after[e]))) << e;
    }
    for (size_t j = 0; j < named.size(); ++j) {
      EXPECT_EQ(named[j], ids[token * static_cast<size_t>(k) + j]);
    }
  }
  // A token alone has the bits that it has among others.
  const auto [alone, alone_args] = route(alone_logits);
  const ops::TapBatch batch = scene.batch.tokens(1, 1);
  ops_.expert_ops()->router_taps()->route_tapped({alone_args,
                                                  {&scene.table, &batch, kLogits.index()},
                                                  {&scene.table, &batch, kChosen.index()}});
  EXPECT_EQ(device_.values<int32_t>(alone.chosen),
            device_.values<int32_t>(tapped.chosen.rows(1, 1)));
  EXPECT_EQ(device_.values<float>(alone.weights), device_.values<float>(tapped.weights.rows(1, 1)));
}

TEST_P(OpsRouters, SteerAndCapture) {
  if (ops::router_taps_of(ops_.expert_ops()) == nullptr) GTEST_SKIP() << "it taps no routers";
  for (const TappedRouter& of : tapped_routers()) {
    SCOPED_TRACE(of.name);
    check_router(of);
    if (HasFatalFailure()) return;
  }
}

// The worked example of the formula (tap/tap_op.h): logits 1, 2, 3, 0; expert 3 activated, 2
// deactivated, two chosen.
TEST_P(OpsRouters, ChooseAsSteerMoE) {
  if (ops::router_taps_of(ops_.expert_ops()) == nullptr) GTEST_SKIP() << "it taps no routers";
  Scene scene;
  tap::Program program;
  TapOp op;
  op.kind = OpKind::kExperts;
  op.v1 = add_vector({0, 0, -1, 1}, program.vectors);
  program.ops.push_back({kLogits, op});
  make_layer(scene, {.experts = 4, .chosen = 2}, {program}, {{kLogits, true}});
  scene.tokens = {{.row = 1, .capture_set = 0}};
  put_scene(scene, 2 * tap::kCaptureAlign);
  const View logits = device_.put(HostTensor(std::vector<float>{1, 2, 3, 0}, act_, {1, 4}));
  const View chosen = poisoned(DType::kI32, {1, 2});
  const View weights = poisoned(DType::kF32, {1, 2});
  ops_.expert_ops()->router_taps()->route_tapped(
      {{.logits = logits, .renormalises = true, .chosen = chosen, .weights = weights},
       scene.at(kLogits),
       scene.at(kChosen)});
  EXPECT_EQ(device_.values<int32_t>(chosen), (std::vector<int32_t>{3, 1}));
  const auto shares = device_.values<float>(weights);
  EXPECT_NEAR(shares[0], 0.7330, 5e-5);
  EXPECT_NEAR(shares[1], 0.2670, 5e-5);
  const auto row = captured_row<float>(scene, 0, 0, 4, DType::kF32);
  const std::vector<double> expected = {-2.4401897, -1.4401897, -3.4501897, -0.4301897};
  for (size_t e = 0; e < row.size(); ++e) EXPECT_NEAR(row[e], expected[e], 5e-7) << e;
}

}  // namespace rudder::testing
