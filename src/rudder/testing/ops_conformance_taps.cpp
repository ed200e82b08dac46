// Taps: programs and captures inside residual_norm and gated_act, token by token, against their
// formulas in double precision (reference_taps.h).
#include "rudder/testing/ops_conformance_taps.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rudder/tap/passage.h"

namespace rudder::testing {

using tap::GateKind;
using tap::OpKind;
using tap::Point;
using tap::ScheduleKind;
using tap::TapOp;
using tensor::DType;
using tensor::View;

namespace {

constexpr int64_t kResidualWidths[] = {1, 2, 17, 31, 64, 127, 257, 1031, 4099, 16384};
constexpr int kResidualRounds = 2 * static_cast<int>(std::size(kResidualWidths));

constexpr int kNumKinds = static_cast<int>(OpKind::kFeature) + 1;
constexpr int kNumGates = static_cast<int>(GateKind::kControl) + 1;
constexpr int kNumSchedules = static_cast<int>(ScheduleKind::kWindow) + 1;

}  // namespace

tap::Geometry OpsTaps::geometry_of(int64_t width) {
  tap::Geometry geometry;
  geometry.num_layers = 2;
  geometry.hidden = static_cast<int32_t>(width);
  geometry.mlp_width.assign(2, geometry.hidden);
  geometry.heads.assign(2, {1, geometry.hidden});
  geometry.sites.assign(2, tap::kDenseSites);
  return geometry;
}

double OpsTaps::uniform(double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random_);
}

// Orthogonal to `other`, of length 1; zeros where a row has no room for it.
OpsTaps::Row OpsTaps::unit_row(int64_t width, const Row& other) {
  Row row(static_cast<size_t>(width));
  if (width == 1 && !other.empty()) return row;
  std::normal_distribution<double> normal;
  for (double& value : row) value = normal(random_);
  double along = 0;
  for (size_t i = 0; i < other.size(); ++i) along += other[i] * row[i];
  double squares = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    if (!other.empty()) row[i] -= along * other[i];
    squares += row[i] * row[i];
  }
  for (double& value : row) value /= std::sqrt(squares);
  return row;
}

int32_t OpsTaps::add_vector(const Row& row, std::vector<float>& vectors) {
  const size_t begin = (vectors.size() + 15) / 16 * 16;
  vectors.resize(begin);
  vectors.insert(vectors.end(), row.begin(), row.end());
  return static_cast<int32_t>(begin);
}

TapOp OpsTaps::random_op(int combination, int64_t width, Point point, std::vector<float>& vectors) {
  TapOp op;
  op.kind = static_cast<OpKind>(combination % kNumKinds);
  op.gate = static_cast<GateKind>(combination / kNumKinds % kNumGates);
  op.schedule = static_cast<ScheduleKind>(combination / kNumKinds / kNumGates % kNumSchedules);
  const Row v1 = unit_row(width, {});
  op.v1 = add_vector(v1, vectors);
  for (int64_t i = 0; i < width; ++i) {
    const float v = vectors[static_cast<size_t>(op.v1 + i)];
    op.sum += v * v;
  }
  if (op.kind == OpKind::kSwap || op.kind == OpKind::kRotate) {
    op.v2 = add_vector(unit_row(width, v1), vectors);
  }
  if (op.kind == OpKind::kFeature) set_feature(op, width, vectors);
  choose_some(op, v1, vectors);
  op.strength = static_cast<float>(uniform(-1.5, 1.5));
  op.latch = op.kind == OpKind::kScore       ? kSampled
             : op.gate == GateKind::kControl ? kRead
                                             : static_cast<int32_t>(between(0, kRead - 1));
  set_constants(op, point);
  if (op.gate == GateKind::kHard || op.gate == GateKind::kSoft) {
    op.gate_vector = add_vector(unit_row(width, {}), vectors);
  }
  op.threshold = static_cast<float>(between(0, 1) == 0 ? -2.5 : 2.5);
  op.sharpness = static_cast<float>(uniform(0.5, 4));
  op.begin = static_cast<int32_t>(between(-3, 3));
  op.end = op.begin + static_cast<int32_t>(between(1, 4));
  op.from = static_cast<float>(uniform(-1, 1));
  op.to = static_cast<float>(uniform(-1, 1));
  return op;
}

// Every other op that can is for some elements alone.
void OpsTaps::choose_some(TapOp& op, const Row& v1, std::vector<float>& vectors) {
  const bool can =
      op.kind == OpKind::kPatch || op.kind == OpKind::kAddNorm || op.kind == OpKind::kAddRenorm;
  if (!can || between(0, 1) == 0) return;
  Row chosen(v1.size());
  Row part = v1;
  double squares = 0;
  for (size_t i = 0; i < v1.size(); ++i) {
    chosen[i] = between(0, 2) == 0 ? 0 : 1;
    part[i] *= chosen[i];
    squares += part[i] * part[i];
  }
  if (squares == 0) return;
  for (double& value : part) value /= std::sqrt(squares);
  op.v1 = add_vector(part, vectors);
  op.sum = 0;
  for (size_t i = 0; i < part.size(); ++i) {
    const float v = vectors[static_cast<size_t>(op.v1) + i];
    op.sum += v * v;
  }
  op.v2 = add_vector(chosen, vectors);
}

void OpsTaps::set_constants(TapOp& op, Point point) {
  if (op.kind == OpKind::kAxis) {
    const bool clips = between(0, 1) == 1;
    const float limit = clips ? 0.5f : kInfinity;
    op.lo = -limit;
    op.hi = limit;
    op.a = clips ? 1.0f : static_cast<float>(uniform(-1, 2));
    op.b = clips ? 0.0f : static_cast<float>(uniform(-1, 1));
  } else if (op.kind == OpKind::kRotate) {
    const double angle = uniform(-3, 3);
    op.a = static_cast<float>(std::cos(angle));
    op.b = static_cast<float>(std::sin(angle));
    // The normed row is known only to the rounding of act, which may carry p across 0.
    op.lo = static_cast<float>(point == kNormed ? 0 : between(0, 1));
  } else if (op.kind == OpKind::kAddRenorm) {
    op.lo = static_cast<float>(between(0, 1));
  }
}

// A run of one. The thresholds of y and of f lie where no row reaches them.
void OpsTaps::set_feature(TapOp& op, int64_t width, std::vector<float>& vectors) {
  op.v2 = add_vector(unit_row(width, {}), vectors);
  op.sum = 0;
  for (int64_t i = 0; i < width; ++i) op.sum += vectors[static_cast<size_t>(op.v2 + i)];
  op.run = 1;
  op.norm = static_cast<tap::FeatureNorm>(between(0, 2));
  op.edit = static_cast<tap::FeatureEdit>(between(0, 4));
  op.value = static_cast<float>(uniform(-1.5, 1.5));
  op.a = static_cast<float>(uniform(0.3, 0.8));
  op.b = static_cast<float>(uniform(-1, 1));
  constexpr float kBeyond = 1e4f;
  op.lo = between(0, 3) == 0 ? kBeyond : between(0, 1) == 0 ? -kBeyond : -kInfinity;
  if (between(0, 2) == 0) {
    op.hi = 1;
    op.b = between(0, 1) == 0 ? -kBeyond : 20;
  }
}

// Ops at every point, as many as `most` at each.
tap::Program OpsTaps::random_program(int64_t width, int64_t most, int& combination) {
  tap::Program program;
  for (const Point point : kPoints) {
    if (only_adds_ && !tap::is_residual(point.site)) continue;
    for (int64_t i = between(0, only_adds_ ? 1 : most); i > 0; --i) {
      const int next =
          only_adds_ ? static_cast<int>(OpKind::kAdd) : combination++ % kNumCombinations;
      program.ops.push_back({point, random_op(next, width, point, program.vectors)});
      if (program.ops.back().op.kind != OpKind::kFeature) continue;
      const size_t first = program.ops.size() - 1;
      for (int64_t more = between(0, 2); more > 0; --more) {
        TapOp op = random_op(next, width, point, program.vectors);
        op.run = 0;
        program.ops.push_back({point, op});
        ++program.ops[first].op.run;
      }
    }
  }
  return program;
}

void OpsTaps::fill_latches(const ops::TapTable& table) {
  std::vector<int64_t> values((kSlots + 1) * tap::kNumLatches * 2);
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    for (int32_t latch = 0; latch < kRead && slot != 2; ++latch) {
      const auto at = static_cast<size_t>((int64_t{slot} * tap::kNumLatches + latch) * 2);
      values[at] = ops::latch_sample(static_cast<float>(uniform(-12, 12)));
      values[at + 1] = between(1, 4);
    }
    for (int64_t n = between(-1, 3), end = n + 2; n < end && slot != 2; ++n) {
      const auto at = static_cast<size_t>((slot * tap::kNumLatches + kRead) * 2 + (n & 1));
      values[at] = ops::latch_reading(static_cast<int32_t>(n), static_cast<float>(uniform(-3, 3)));
    }
  }
  device_.write(table.latches, std::as_bytes(std::span(values)));
  latches_ = values;
}

ReferenceLatches OpsTaps::latches_of(int32_t slot) const {
  ReferenceLatches latches;
  for (int32_t latch = 0; latch < tap::kNumLatches; ++latch) {
    const auto at = static_cast<size_t>((int64_t{slot} * tap::kNumLatches + latch) * 2);
    if (latch == kRead) {
      for (int32_t n = -1; n < 8; ++n) {
        const int64_t word = latches_[at + static_cast<size_t>(n & 1)];
        if (!ops::is_reading_of(word, n)) continue;
        latches[kRead].insert(latches[kRead].end(), {double(n), ops::reading_value(word)});
      }
      continue;
    }
    const auto count = static_cast<double>(latches_[at + 1]);
    if (count == 0) continue;
    latches[static_cast<size_t>(latch)] = {
        std::ldexp(static_cast<double>(latches_[at]), -ops::kLatchBits) / count};
  }
  return latches;
}

void OpsTaps::make_scene(Scene& scene, int64_t width, int64_t num_tokens, int64_t num_programs,
                         int& combination) {
  scene.geometry = geometry_of(width);
  for (int64_t i = 0; i < num_programs; ++i) {
    scene.programs.push_back(random_program(width, 3, combination));
  }
  tap::CaptureSet before;
  tap::CaptureSet both;
  for (const Point point : kPoints) {
    if (only_adds_ && !tap::is_residual(point.site)) continue;
    before.points.push_back({point, false});
    both.points.push_back({point, false});
    both.points.push_back({point, true});
  }
  scene.sets = {before, {{{kPre, true}}}, both};
  int64_t begin = kGuard / tap::kCaptureAlign;
  for (int64_t t = 0; t < num_tokens; ++t) {
    TapToken token;
    token.slot = static_cast<int32_t>(between(0, kSlots - 1));
    token.since_prompt = static_cast<int32_t>(between(-3, 5));
    if (t % 4 != 3) {
      token.row = static_cast<int32_t>(between(0, num_programs));
      token.capture_set = static_cast<int32_t>(between(-1, 2));
    }
    if (token.capture_set >= 0) {
      token.capture_begin = static_cast<int32_t>(begin);
      begin += record_elements(scene.sets[static_cast<size_t>(token.capture_set)], scene.geometry) /
               tap::kCaptureAlign;
    }
    scene.tokens.push_back(token);
  }
  put_scene(scene, begin * tap::kCaptureAlign + kGuard);
  fill_latches(scene.table);
}

void OpsTaps::put_scene(Scene& scene, int64_t ring_elements) {
  scene.table =
      put_tap_table(device_, scene.geometry, scene.programs, scene.sets, kSlots, ring_elements);
  scene.batch = put_tap_batch(device_, scene.table, scene.tokens);
}

OpsTaps::Row OpsTaps::tapped(const Scene& scene, size_t t, Point point, Row h,
                             ReferenceLatches& latches, double& tolerance) {
  const TapToken& token = scene.tokens[t];
  const auto capture = [&](bool after) {
    if (token.capture_set < 0) return;
    const tap::CaptureSet& set = scene.sets[static_cast<size_t>(token.capture_set)];
    std::vector<int64_t> offsets;
    record_elements(set, scene.geometry, &offsets);
    for (size_t i = 0; i < set.points.size(); ++i) {
      if (set.points[i] != tap::CapturePoint{point, after}) continue;
      captured_.push_back({token.capture_begin * tap::kCaptureAlign + offsets[i], h, tolerance});
    }
  };
  capture(false);
  if (token.row > 0) {
    const tap::Program& program = scene.programs[static_cast<size_t>(token.row - 1)];
    h = reference_program(program, point, std::move(h), token.since_prompt, latches);
    tolerance = 4 * tolerance + 4e-6 * (1 + most(h));
  }
  capture(true);
  return h;
}

double OpsTaps::most(const Row& row) {
  double highest = 0;
  for (const double value : row) highest = std::max(highest, std::abs(value));
  return highest;
}

void OpsTaps::expect_row(const Row& got, const Row& expected, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance + act_unit() * std::abs(expected[i]))
        << what << ", at " << i << " of " << got.size();
  }
}

void OpsTaps::expect_captured(const Scene& scene, const std::string& what) {
  const Matrix ring = read(scene.table.ring);
  for (const Captured& captured : captured_) {
    const Row got = ring.slice(0, 1, captured.at, static_cast<int64_t>(captured.row.size())).values;
    expect_row(got, captured.row, captured.tolerance, what + ", captured");
  }
  captured_.clear();
  for (int64_t i = 0; i < kGuard; ++i) {
    ASSERT_TRUE(std::isnan(ring.at(0, i))) << what;
    ASSERT_TRUE(std::isnan(ring.at(0, ring.cols - 1 - i))) << what;
  }
}

void OpsTaps::expect_latches(const Scene& scene, const std::vector<ReferenceLatches>& expected,
                             const std::string& what) {
  const auto got = device_.values<int64_t>(scene.table.latches);
  for (int32_t slot = 0; slot <= kSlots; ++slot) {
    for (int32_t latch = 0; latch < tap::kNumLatches; ++latch) {
      const auto at = static_cast<size_t>((int64_t{slot} * tap::kNumLatches + latch) * 2);
      if (latch != kSampled) {
        EXPECT_EQ(got[at], latches_[at]) << what;
        EXPECT_EQ(got[at + 1], latches_[at + 1]) << what;
        continue;
      }
      double sum = 0;
      int64_t count = 0;
      for (size_t t = 0; t < scene.tokens.size(); ++t) {
        if (scene.tokens[t].slot != slot) continue;
        for (const double sample : expected[t][kSampled]) sum += sample;
        count += static_cast<int64_t>(expected[t][kSampled].size());
      }
      EXPECT_EQ(got[at + 1], count) << what << ", slot " << slot;
      EXPECT_NEAR(std::ldexp(static_cast<double>(got[at]), -ops::kLatchBits), sum,
                  (1e-4 + 4 * act_unit()) * (1 + std::abs(sum) + static_cast<double>(count)))
          << what << ", slot " << slot;
    }
  }
}

namespace {

// What a change of x can change in its norm, at most and about.
double steepness(const ReferenceNorm& norm, std::span<const double> x) {
  if (!norm.alpha.values.empty()) return max_abs(norm.alpha) * max_abs(norm.weight);
  double squares = 0;
  for (const double value : x) squares += value * value;
  return max_abs(norm.weight) / std::sqrt(squares / static_cast<double>(x.size()) + norm.eps);
}

}  // namespace

void OpsTaps::check_residual_norm(int round, int& combination) {
  const int64_t width = wide(kResidualWidths[static_cast<size_t>(round) / 2]);
  const int64_t rows = width > 4000 ? 9 : 40;
  const std::string what = std::to_string(rows) + " x " + std::to_string(width);
  Scene scene;
  make_scene(scene, width, rows, width > 4000 ? 3 : 12, combination);
  ASSERT_TRUE(scene.batch.only_adds || !only_adds_);
  const bool quantises = writes_f8() && round % 2 == 1;
  ops::ResidualNormArgs args;
  args.x = random({rows, width});
  args.delta = random({rows, width});
  if (round % 4 < 2) args.delta_norm = random_norm(width);
  args.norm = random_norm(width);
  if (round % 3 == 1) args.delta_scale = 0.22f;
  if (round % 3 == 2) args.sum_scale = 0.75f;
  args.out = poisoned(quantises ? DType::kF8E4M3 : act_, {rows, width});
  if (quantises) args.out_scale = poisoned(DType::kF32, {rows});
  if (quantises && round % 4 == 1) args.out_act = poisoned({rows, width});
  args.delta_taps = scene.at(kBranch);
  args.x_taps[0] = scene.at(kPost);
  args.x_taps[1] = scene.at(kPre);
  args.out_taps = scene.at(kNormed);
  const Matrix x = read(args.x);
  Matrix branch = reference_norm(read(args.delta), read(args.delta_norm));
  for (double& value : branch.values) value *= double{args.delta_scale};
  const ReferenceNorm norm = read(args.norm);
  ops_.residual_norm(args);

  const Matrix got_x = read(args.x);
  const Matrix got_out = read(args.out);
  std::vector<ReferenceLatches> latches;
  for (int64_t t = 0; t < rows; ++t) {
    const auto token = static_cast<size_t>(t);
    latches.push_back(latches_of(scene.tokens[token].slot));
    double tolerance = 2e-6 * (1 + most(row_of(branch, t)));
    Row h = tapped(scene, token, kBranch, row_of(branch, t), latches.back(), tolerance);
    for (size_t i = 0; i < h.size(); ++i) {
      h[i] = (h[i] + x.at(t, static_cast<int64_t>(i))) * double{args.sum_scale};
    }
    tolerance += 1e-6 * most(h);
    h = tapped(scene, token, kPost, std::move(h), latches.back(), tolerance);
    h = tapped(scene, token, kPre, std::move(h), latches.back(), tolerance);
    expect_row(row_of(got_x, t), h, tolerance, what + ", x of " + std::to_string(t));
    // The norm may read the sum before or after it is rounded to act.
    tolerance = 2 * (tolerance + act_unit() * most(h)) * steepness(norm, h);
    Matrix sum(1, width);
    sum.values = std::move(h);
    h = reference_norm(sum, norm).values;
    h = tapped(scene, token, kNormed, std::move(h), latches.back(), tolerance);
    if (quantises) {
      Matrix expected(1, width);
      expected.values = h;
      expect_quantised(args.out.rows(t, 1), args.out_scale.rows(t, 1), expected, tolerance, what);
      if (!args.out_act.empty()) {
        expect_row(row_of(read(args.out_act), t), h, tolerance, what + ", act");
      }
    } else {
      expect_row(row_of(got_out, t), h, tolerance, what + ", out of " + std::to_string(t));
    }
    if (HasFatalFailure()) return;
  }
  expect_captured(scene, what);
  expect_latches(scene, latches, what);
}

namespace {

// Every op under every gate and schedule comes several times, at every point.
TEST_P(OpsTaps, ResidualNorm) {
  int combination = 0;
  for (int round = 0; round < kResidualRounds; ++round) {
    check_residual_norm(round, combination);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(combination, 3 * kNumCombinations);
}

TEST_P(OpsTaps, ResidualNormOfPlainAdds) {
  only_adds_ = true;
  int combination = 0;
  for (int round = 0; round < kResidualRounds; ++round) {
    check_residual_norm(round, combination);
    if (HasFatalFailure()) return;
  }
}

TEST_P(OpsTaps, GatedAct) {
  constexpr int64_t kWidths[] = {1, 3, 31, 64, 257, 2053, 16384};
  int combination = 7;
  for (int round = 0; round < 14; ++round) {
    const int64_t width = wide(kWidths[round / 2]);
    const int64_t rows = width > 4000 ? 5 : 33;
    const std::string what = std::to_string(rows) + " x " + std::to_string(width);
    Scene scene;
    make_scene(scene, width, rows, width > 4000 ? 4 : 16, combination);
    const View x = random({rows, 2 * width}, 2);
    const Matrix acted = reference_gated_act(read(x), ops::Activation::kSilu);
    const bool quantises = writes_f8() && round % 2 == 1;
    const View out = poisoned(quantises ? DType::kF8E4M3 : act_, {rows, width});
    const View scale = quantises ? poisoned(DType::kF32, {rows}) : View{};
    ops_.gated_act({x, ops::Activation::kSilu, out, scale, scene.at(kNeurons)});
    const Matrix got = read(out);
    std::vector<ReferenceLatches> latches;
    for (int64_t t = 0; t < rows; ++t) {
      const auto token = static_cast<size_t>(t);
      latches.push_back(latches_of(scene.tokens[token].slot));
      double tolerance = 2e-6 * (1 + most(row_of(acted, t)));
      const Row h = tapped(scene, token, kNeurons, row_of(acted, t), latches.back(), tolerance);
      if (quantises) {
        Matrix expected(1, width);
        expected.values = h;
        expect_quantised(out.rows(t, 1), scale.rows(t, 1), expected, tolerance, what);
      } else {
        expect_row(row_of(got, t), h, tolerance, what + ", row " + std::to_string(t));
      }
      if (HasFatalFailure()) return;
    }
    expect_captured(scene, what);
    expect_latches(scene, latches, what);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace rudder::testing
