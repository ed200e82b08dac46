// Taps: what they leave alone, and single cases whose result is known.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance_taps.h"

namespace rudder::testing {
namespace {

using tap::OpKind;
using tap::TapOp;
using tensor::DType;
using tensor::View;

// tap.T1
TEST_P(OpsTaps, OtherRowsKeepTheirBits) {
  for (const int64_t width : {wide(1), wide(33), wide(1031), wide(4096)}) {
    for (const bool quantises : {false, true}) {
      if (quantises && !writes_f8()) continue;
      constexpr int64_t kRows = 24;
      int combination = 0;
      Scene scene;
      make_scene(scene, width, kRows, 5, combination);
      ops::ResidualNormArgs args;
      const View x = random({kRows, width});
      const View delta = random({kRows, width});
      const View gates = random({kRows, 2 * width});
      args.norm = random_norm(width);
      const auto output = [&] {
        return poisoned(quantises ? DType::kF8E4M3 : act_, {kRows, width});
      };
      const auto scales = [&] { return quantises ? poisoned(DType::kF32, {kRows}) : View{}; };
      struct Result {
        View x, out, out_scale, acted, acted_scale;
      };
      const auto run = [&](bool has_taps) {
        args.x = copy(x);
        args.delta = copy(delta);
        args.out = output();
        args.out_scale = scales();
        ops::GatedActArgs act{gates, ops::Activation::kGeluTanh, output(), scales()};
        if (has_taps) {
          args.delta_taps = scene.at(kBranch);
          args.x_taps[0] = scene.at(kPost);
          args.x_taps[1] = scene.at(kPre);
          args.out_taps = scene.at(kNormed);
          act.taps = scene.at(kNeurons);
        }
        ops_.residual_norm(args);
        ops_.gated_act(act);
        return Result{args.x, args.out, args.out_scale, act.out, act.out_scale};
      };
      const Result plain = run(false);
      const Result tapped = run(true);
      int64_t num_same = 0;
      for (int64_t t = 0; t < kRows; ++t) {
        if (scene.tokens[static_cast<size_t>(t)].row != 0) continue;
        ++num_same;
        for (View Result::*part :
             {&Result::x, &Result::out, &Result::out_scale, &Result::acted, &Result::acted_scale}) {
          if ((plain.*part).empty()) continue;
          EXPECT_TRUE(std::ranges::equal(device_.get((plain.*part).rows(t, 1)).bytes(),
                                         device_.get((tapped.*part).rows(t, 1)).bytes()))
              << "row " << t << " of width " << width;
        }
      }
      EXPECT_GE(num_same, kRows / 4);
    }
  }
}

// Without a delta, a norm or an output there is still the residual to tap.
TEST_P(OpsTaps, TheResidualAlone) {
  const int64_t width = wide(96);
  int combination = 0;
  Scene scene;
  make_scene(scene, width, 16, 6, combination);
  ops::ResidualNormArgs args;
  args.x = random({16, width});
  args.x_taps[0] = scene.at(kPre);
  const Matrix x = read(args.x);
  ops_.residual_norm(args);
  const Matrix got = read(args.x);
  for (int64_t t = 0; t < 16; ++t) {
    ReferenceLatches latches = latches_of(scene.tokens[static_cast<size_t>(t)].slot);
    double tolerance = 1e-6;
    const Row h = tapped(scene, static_cast<size_t>(t), kPre, row_of(x, t), latches, tolerance);
    expect_row(row_of(got, t), h, tolerance, "row " + std::to_string(t));
  }
  expect_captured(scene, "the residual alone");
}

// A strength or a gate of 0 is no op at all, also where the op itself would round.
TEST_P(OpsTaps, ClosedOpsKeepTheBits) {
  const int64_t width = wide(301);
  Scene scene;
  scene.geometry = geometry_of(width);
  for (int combination = 0; combination < kNumCombinations; ++combination) {
    tap::Program program;
    TapOp op = random_op(combination, width, kPost, program.vectors);
    op.latch = 0;  // empty, but for what prompts add: there are none here
    if (op.gate == tap::GateKind::kNone || op.gate == tap::GateKind::kSoft) {
      op.strength = 0;
    } else {
      op.threshold = 1e30f;
    }
    program.ops.push_back({kPost, op});
    scene.programs.push_back(std::move(program));
    TapToken token;
    token.row = combination + 1;
    token.since_prompt = static_cast<int32_t>(between(0, 5));
    scene.tokens.push_back(token);
  }
  put_scene(scene, 0);
  ops::ResidualNormArgs args;
  const View x = random({kNumCombinations, width});
  args.x = copy(x);
  args.x_taps[1] = scene.at(kPost);
  ops_.residual_norm(args);
  for (int64_t t = 0; t < kNumCombinations; ++t) {
    EXPECT_TRUE(std::ranges::equal(device_.get(args.x.rows(t, 1)).bytes(),
                                   device_.get(x.rows(t, 1)).bytes()))
        << "combination " << t;
  }
}

// tap.T8
TEST_P(OpsTaps, LatchesAreExactInAnyOrder) {
  const int64_t width = wide(33);
  Scene scene;
  scene.geometry = geometry_of(width);
  tap::Program program;
  for (const int32_t latch : {1, 3}) {
    // Whole numbers: the score is exact in every dtype and order of summation.
    Row axis(static_cast<size_t>(width));
    for (int64_t i = 0; i < std::min<int64_t>(width, 4); ++i) {
      axis[static_cast<size_t>(i)] = static_cast<double>(i + latch);
    }
    TapOp op;
    op.kind = OpKind::kScore;
    op.latch = latch;
    op.v1 = add_vector(axis, program.vectors);
    program.ops.push_back({kPost, op});
  }
  scene.programs.push_back(program);
  constexpr int64_t kRows = 200;
  std::vector<float> values(static_cast<size_t>(kRows * width));
  for (float& value : values) value = static_cast<float>(between(-8, 8)) / 4;
  std::vector<std::vector<int64_t>> expected(kSlots + 1, std::vector<int64_t>(8));
  for (int64_t t = 0; t < kRows; ++t) {
    TapToken token;
    token.row = t % 5 == 0 ? 0 : 1;
    token.slot = static_cast<int32_t>(between(0, kSlots));
    token.since_prompt = static_cast<int32_t>(between(-20, 1));
    scene.tokens.push_back(token);
    if (token.row == 0 || token.since_prompt >= 0) continue;
    std::vector<int64_t>& latches = expected[static_cast<size_t>(token.slot)];
    for (const int32_t latch : {1, 3}) {
      double score = 0;
      for (int64_t i = 0; i < std::min<int64_t>(width, 4); ++i) {
        score +=
            double{values[static_cast<size_t>(t * width + i)]} * static_cast<double>(i + latch);
      }
      latches[2 * static_cast<size_t>(latch)] += std::llrint(std::ldexp(score, ops::kLatchBits));
      ++latches[2 * static_cast<size_t>(latch) + 1];
    }
  }
  std::vector<int64_t> flat;
  for (const auto& slot : expected) flat.insert(flat.end(), slot.begin(), slot.end());

  // As they are, then back to front and in two steps.
  for (const bool reversed : {false, true}) {
    if (reversed) {
      std::ranges::reverse(scene.tokens);
      std::vector<float> turned(values.size());
      for (int64_t t = 0; t < kRows; ++t) {
        std::copy_n(values.begin() + t * width, width, turned.end() - (t + 1) * width);
      }
      values = turned;
    }
    put_scene(scene, 0);
    const View x = device_.put(HostTensor(values, act_, {kRows, width}));
    ops::TapBatch parts[2] = {scene.batch, {}};
    if (reversed) {
      parts[0] = put_tap_batch(device_, scene.table, std::span(scene.tokens).first(77));
      parts[1] = put_tap_batch(device_, scene.table, std::span(scene.tokens).subspan(77));
    }
    for (int64_t part = 0, begin = 0; part < (reversed ? 2 : 1); ++part) {
      const int64_t count = parts[part].num_tokens();
      ops::ResidualNormArgs args;
      args.x = x.rows(begin, count);
      args.x_taps[0] = {&scene.table, &parts[part], kPost.index()};
      ops_.residual_norm(args);
      begin += count;
    }
    EXPECT_EQ(device_.values<int64_t>(scene.table.latches), flat) << reversed;
  }
}

// What a token leaves goes to the token behind it alone, wherever its kSense stands: `gates_first`
// has the op that reads it in front, at an earlier point. Whole numbers, which are exact.
TEST_P(OpsTaps, ControlsFollowTheTokenBefore) {
  const int64_t width = wide(33);
  for (const bool gates_first : {false, true}) {
    for (const bool of_feature : {false, true}) {
      Scene scene;
      scene.geometry = geometry_of(width);
      tap::Program program;
      Row axis(static_cast<size_t>(width));
      axis[0] = 1;
      TapOp sense;
      sense.kind = OpKind::kSense;
      sense.latch = 1;
      sense.v1 = add_vector(axis, program.vectors);
      sense.hi = of_feature ? 1.0f : 0.0f;
      sense.a = 2;
      sense.b = -3;
      sense.lo = 2;
      TapOp steer;
      steer.gate = tap::GateKind::kControl;
      steer.latch = 1;
      axis[0] = 0;
      axis[static_cast<size_t>(width) - 1] = 1;
      steer.v1 = add_vector(axis, program.vectors);
      steer.strength = 2;
      steer.threshold = 4;
      steer.sharpness = 0.5f;
      steer.from = -1;
      steer.to = 1.5f;
      program.ops = {{kPost, sense}, {kPre, steer}};
      if (gates_first) program.ops = {{kPost, steer}, {kPre, sense}};
      scene.programs.push_back(program);
      put_scene(scene, 0);
      // Two slots in turn; the tokens of slot 1 are one step behind. Slot 2 misses a token.
      const std::vector<float> read = {1, 9, -4, 3, 2, 5};
      const auto reading = [&](int32_t n) {
        const double p = read[static_cast<size_t>(int64_t{n} + 2)];
        return of_feature ? (p > 2 ? std::max(2 * p - 3, 0.0) : 0.0) : p;
      };
      for (int32_t step = 0; step < 6; ++step) {
        std::vector<TapToken> tokens;
        for (const int32_t slot : {0, 1, 2}) {
          const int32_t n = step - 2 - (slot == 1 ? 1 : 0);
          if (slot == 2 && step == 3) continue;
          if (n >= -2) tokens.push_back({1, n, slot});
        }
        const auto count = std::ssize(tokens);
        std::vector<float> values(static_cast<size_t>(count * width));
        for (int64_t t = 0; t < count; ++t) {
          const int32_t n = tokens[static_cast<size_t>(t)].since_prompt;
          values[static_cast<size_t>(int64_t{t} * width)] =
              read[static_cast<size_t>(int64_t{n} + 2)];
        }
        const ops::TapBatch batch = put_tap_batch(device_, scene.table, tokens);
        ops::ResidualNormArgs args;
        args.x = device_.put(HostTensor(values, act_, {count, width}));
        args.x_taps[0] = {&scene.table, &batch, kPost.index()};
        args.x_taps[1] = {&scene.table, &batch, kPre.index()};
        ops_.residual_norm(args);
        const Matrix got = this->read(args.x);
        for (int64_t t = 0; t < count; ++t) {
          const TapToken& token = tokens[static_cast<size_t>(t)];
          const int32_t n = token.since_prompt;
          const bool has_reading = n >= 0 && !(token.slot == 2 && step == 4);
          const double g = has_reading ? std::clamp(0.5 * (4 - reading(n - 1)), -1.0, 1.5) : 0.0;
          EXPECT_EQ(got.at(t, width - 1), 2 * g) << "slot " << token.slot << ", token " << n;
          EXPECT_EQ(got.at(t, 0), read[static_cast<size_t>(n + 2)]);
        }
      }
    }
  }
}

TEST_P(OpsTaps, LatchesClipWhatCouldOverflowThem) {
  const int64_t width = wide(1);
  Scene scene;
  scene.geometry = geometry_of(width);
  tap::Program program;
  Row axis(static_cast<size_t>(width));
  axis[0] = 1e6;
  TapOp op;
  op.kind = OpKind::kScore;
  op.v1 = add_vector(axis, program.vectors);
  program.ops.push_back({kPost, op});
  scene.programs.push_back(program);
  scene.tokens = {{1, -3, 0}, {1, -2, 1}, {1, -1, 2}};
  put_scene(scene, 0);
  std::vector<float> values(static_cast<size_t>(3 * width));
  values[0] = 1e4f;
  values[static_cast<size_t>(width)] = -1e4f;
  values[static_cast<size_t>(2 * width)] = std::numeric_limits<float>::quiet_NaN();
  ops::ResidualNormArgs args;
  args.x = device_.put(HostTensor(values, act_, {3, width}));
  args.x_taps[0] = scene.at(kPost);
  ops_.residual_norm(args);
  const auto latches = device_.values<int64_t>(scene.table.latches);
  constexpr size_t kSlot = size_t{tap::kNumLatches} * 2;
  EXPECT_EQ(latches[0], int64_t{1} << (18 + ops::kLatchBits));
  EXPECT_EQ(latches[kSlot], -(int64_t{1} << (18 + ops::kLatchBits)));
  EXPECT_EQ(latches[2 * kSlot], 0);
  for (const size_t slot : {0, 1, 2}) {
    const int64_t tally = latches[slot * kSlot + 1];
    EXPECT_EQ(ops::latch_samples(tally), 1);
    EXPECT_EQ(ops::latch_clipped(tally), slot == 2 ? 0 : 1);
  }
}

// What an independent implementation in float64 gives, to the digits of float32.
constexpr std::array<double, 8> kH = {-0.677, -0.4142, -0.2455, -1.1745,
                                      0.3772, -0.2833, -0.0734, -0.7158};
constexpr std::array<double, 8> kV = {-0.6716, 2.1536, 0.8995, 0.9223,
                                      0.1054,  0.0262, 0.5842, -0.3881};
constexpr std::array<double, 8> kT = {-0.2297, -0.5542, 1.4291,  -0.0937,
                                      1.3067,  -1.9097, -0.3986, -0.2147};
constexpr std::array<double, 8> kMean = {-1.1113, 0.8526, -0.207,  -1.4652,
                                         0.9507,  0.933,  -0.2879, -0.1259};
constexpr std::array<double, 8> kProbe = {-0.24938326, 0.79968998, 0.33400870, 0.34247496,
                                          0.03913788,  0.00972877, 0.21692928, -0.14411204};

using Case = std::array<double, 8>;

Case unit(Case v) {
  const double norm = std::sqrt(inner(v, v));
  for (double& value : v) value /= norm;
  return v;
}

struct Golden {
  std::string name;
  TapOp op;
  Case v1;
  Case v2;  // used where the op takes two
  Case expected;
};

// Of the ops along one axis, of length 1.
std::vector<Golden> axis_goldens(const Case& axis) {
  const auto axis_op = [](float s, float a, double b, float lo = -kInfinity, float hi = kInfinity) {
    TapOp op;
    op.kind = OpKind::kAxis;
    op.strength = s;
    op.a = a;
    op.b = static_cast<float>(b);
    op.lo = lo;
    op.hi = hi;
    return op;
  };
  return {
      {"ablate",
       axis_op(1, 0, 0),
       axis,
       {},
       {-0.81351132, 0.02354683, -0.06266509, -0.98703069, 0.3986239, -0.27797451, 0.04534614,
        -0.79468630}},
      {"ablate_half",
       axis_op(0.5f, 0, 0),
       axis,
       {},
       {-0.74525566, -0.19532659, -0.15408255, -1.08076535, 0.38791195, -0.28063726, -0.01402693,
        -0.75524315}},
      {"mean_ablate",
       axis_op(1, 0, inner(kMean, axis)),
       axis,
       {},
       {-0.91076986, 0.33542294, 0.06759706, -0.85346674, 0.41388753, -0.27418033, 0.12994775,
        -0.85088946}},
      {"orthogonal",
       axis_op(1, 1.75f, 0),
       axis,
       {},
       {-0.57461651, -0.74251012, -0.38262619, -1.31510198, 0.36113207, -0.28729411, -0.16245961,
        -0.65663527}},
      {"set",
       axis_op(1, 1, 0, 3, 3),
       axis,
       {},
       {-1.5616611, 2.42261678, 0.93936102, 0.04039418, 0.51603752, -0.24878821, 0.69613397,
        -1.22702241}},
      {"clamp_half",
       axis_op(0.5f, 1, 0, -0.1f, 0.1f),
       axis,
       {},
       {-0.7327865, -0.23531108, -0.17078298, -1.09788909, 0.38595506, -0.2811237, -0.02487339,
        -0.74803755}},
  };
}

std::vector<Golden> goldens() {
  const Case axis = unit(kV);
  Case other = kT;  // orthonormal to the axis
  for (size_t i = 0; i < other.size(); ++i) other[i] -= inner(kT, axis) * axis[i];
  other = unit(other);
  const auto norm_squared = static_cast<float>(inner(kV, kV));
  const auto plain = [&](OpKind kind, float s, float lo = 0) {
    TapOp op;
    op.kind = kind;
    op.strength = s;
    op.lo = lo;
    op.sum = norm_squared;
    return op;
  };
  const auto rotate = [&](float lo) {
    TapOp op = plain(OpKind::kRotate, 1, lo);
    op.a = static_cast<float>(std::cos(200 * std::numbers::pi / 180));
    op.b = static_cast<float>(std::sin(200 * std::numbers::pi / 180));
    return op;
  };
  TapOp gated = plain(OpKind::kAdd, 2.5f);
  gated.gate = tap::GateKind::kSoft;
  gated.threshold = 0.3f;
  gated.sharpness = 4;
  Case after_gate = kH;
  for (size_t i = 0; i < 8; ++i) after_gate[i] += 0.03262262332847586 * 2.5 * kV[i];
  std::vector<Golden> all = axis_goldens(axis);
  const std::vector<Golden> others = {
      {"add",
       plain(OpKind::kAdd, 2.5f),
       kV,
       {},
       {-2.356, 4.9698, 2.00325, 1.13125, 0.6407, -0.2178, 1.3871, -1.68605}},
      {"add_norm",
       plain(OpKind::kAddNorm, 0.1f),
       axis,
       {},
       {-0.71880356, -0.28014975, -0.18951086, -1.11709168, 0.38376059, -0.28166919, -0.03703663,
        -0.73995718}},
      {"add_renorm",
       plain(OpKind::kAddRenorm, 2.5f),
       kV,
       {},
       {-0.61853773, 1.30475757, 0.52592772, 0.29699525, 0.16820761, -0.05718061, 0.3641654,
        -0.44265091}},
      {"add_renorm_if_grew",
       plain(OpKind::kAddRenorm, -0.2f, 1),
       kV,
       {},
       {-0.47358288, -0.73733996, -0.37123564, -1.18592945, 0.31077677, -0.25180144, -0.16601756,
        -0.55692327}},
      {"swap",
       plain(OpKind::kSwap, 1),
       axis,
       unit(kT),
       {-0.76897409, 0.1310021, -0.33975698, -0.96886296, 0.14526446, 0.09230216, 0.12263173,
        -0.75305757}},
      {"rotate",
       rotate(0),
       axis,
       other,
       {-0.58361058, -0.37517235, -0.66467418, -1.19545509, 0.02932345, 0.2162133, 0.00229255,
        -0.64033859}},
      {"rotate_adaptive", rotate(1), axis, other, kH},
      {"gate", gated, kV, {}, after_gate},
  };
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

TEST_P(OpsTaps, KnownResults) {
  const int64_t width = wide(8);
  const auto widened = [&](const Case& row) {
    Row out(row.begin(), row.end());
    out.resize(static_cast<size_t>(width));
    return out;
  };
  for (const Golden& golden : goldens()) {
    Scene scene;
    scene.geometry = geometry_of(width);
    tap::Program program;
    TapOp op = golden.op;
    op.v1 = add_vector(widened(golden.v1), program.vectors);
    if (op.kind == OpKind::kSwap || op.kind == OpKind::kRotate) {
      op.v2 = add_vector(widened(golden.v2), program.vectors);
    }
    op.gate_vector = add_vector(widened(kProbe), program.vectors);
    program.ops.push_back({kPost, op});
    scene.programs.push_back(program);
    scene.tokens = {{1, 0, 0}};
    put_scene(scene, 0);
    const Row h = widened(kH);
    const std::vector<float> values(h.begin(), h.end());
    ops::ResidualNormArgs args;
    args.x = device_.put(HostTensor(values, act_, {1, width}));
    args.x_taps[0] = scene.at(kPost);
    ops_.residual_norm(args);
    // A row that is rounded on its way in is off by that along every axis.
    expect_row(row_of(read(args.x), 0), widened(golden.expected), 1e-6 + 8 * act_unit(),
               golden.name);
  }
}

}  // namespace
}  // namespace rudder::testing
