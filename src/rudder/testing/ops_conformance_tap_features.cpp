// Clamps of features whose result is known to the bit: thresholds, edits, and what a run reads. The
// random cases of ops_conformance_taps.cpp keep away from thresholds.
#include <algorithm>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance_taps.h"

namespace rudder::testing {
namespace {

using tap::FeatureEdit;
using tap::OpKind;
using tap::TapOp;
using tensor::View;

// f = h[0] where it is above `threshold`; written to h[1].
struct FeatureCase {
  std::string name;
  FeatureEdit edit;
  float value;
  float threshold;
  bool only_if_active;
  double read;   // h[0]
  double added;  // to h[1], which is 1 before
};
const FeatureCase kFeatureCases[] = {
    {"set an inactive one", FeatureEdit::kSet, 3, 0.5f, false, 0.25, 3},
    {"set an active one", FeatureEdit::kSet, 3, 0.5f, false, 0.75, 2.25},
    {"the threshold itself is not above it", FeatureEdit::kMultiply, 2, 0.5f, false, 0.5, 0},
    {"above it", FeatureEdit::kMultiply, 2, 0.5f, false, 0.5625, 0.5625},
    {"a negative value is none, whatever the threshold", FeatureEdit::kAdd, 1, -2, true, -1, 0},
    {"add where it is active", FeatureEdit::kAdd, 1, 0.5f, true, 0.75, 1},
    {"and not where it is not", FeatureEdit::kAdd, 1, 0.5f, true, 0.25, 0},
    {"at least", FeatureEdit::kMin, 2, 0, false, 0.5, 1.5},
    {"at least, and it is", FeatureEdit::kMin, 2, 0, false, 2.5, 0},
    {"at most", FeatureEdit::kMax, 2, 0, false, 2.5, -0.5},
    {"at most, and it is", FeatureEdit::kMax, 2, 0, false, 0.5, 0},
    {"ablated", FeatureEdit::kSet, 0, 0, false, 1.5, -1.5},
};

TEST_P(OpsTaps, AFeatureIsClampedWhereItsThresholdSays) {
  const int64_t width = wide(8);
  Scene scene;
  scene.geometry = geometry_of(width);
  std::vector<float> rows;
  for (const FeatureCase& each : kFeatureCases) {
    Row reads(static_cast<size_t>(width));
    Row writes = reads;
    reads[0] = writes[1] = 1;
    tap::Program program;
    TapOp op;
    op.kind = OpKind::kFeature;
    op.v1 = add_vector(writes, program.vectors);
    op.v2 = add_vector(reads, program.vectors);
    op.a = op.sum = 1;
    op.run = 1;
    op.lo = each.threshold;
    op.hi = each.only_if_active ? 1.0f : 0.0f;
    op.edit = each.edit;
    op.value = each.value;
    program.ops.push_back({kPost, op});
    scene.programs.push_back(std::move(program));
    TapToken token;
    token.row = static_cast<int32_t>(scene.programs.size());
    scene.tokens.push_back(token);
    rows.resize(rows.size() + static_cast<size_t>(width), 0);
    rows[rows.size() - static_cast<size_t>(width)] = static_cast<float>(each.read);
    rows[rows.size() - static_cast<size_t>(width) + 1] = 1;
  }
  put_scene(scene, 0);
  const auto count = static_cast<int64_t>(scene.tokens.size());
  ops::ResidualNormArgs args;
  args.x = device_.put(HostTensor(rows, act_, {count, width}));
  args.x_taps[0] = scene.at(kPost);
  ops_.residual_norm(args);
  const Matrix got = read(args.x);
  for (int64_t t = 0; t < count; ++t) {
    const FeatureCase& each = kFeatureCases[static_cast<size_t>(t)];
    EXPECT_EQ(got.at(t, 0), each.read) << each.name;
    EXPECT_EQ(got.at(t, 1), 1 + each.added) << each.name;
  }
}

// Each writes what the other reads; a run changes nothing of what is read, two runs do.
TEST_P(OpsTaps, TheFeaturesOfARunReadTheSameRow) {
  const int64_t width = wide(8);
  for (const bool is_one_run : {true, false}) {
    Scene scene;
    scene.geometry = geometry_of(width);
    Row first(static_cast<size_t>(width));
    Row second = first;
    first[0] = second[1] = 1;
    tap::Program program;
    TapOp op;
    op.kind = OpKind::kFeature;
    op.a = op.sum = 1;
    op.edit = FeatureEdit::kMultiply;
    op.value = 3;
    op.v1 = add_vector(second, program.vectors);
    op.v2 = add_vector(first, program.vectors);
    op.run = is_one_run ? 2 : 1;
    program.ops.push_back({kPost, op});
    std::swap(op.v1, op.v2);
    op.run = is_one_run ? 0 : 1;
    program.ops.push_back({kPost, op});
    scene.programs.push_back(std::move(program));
    TapToken token;
    token.row = 1;
    scene.tokens.push_back(token);
    put_scene(scene, 0);
    std::vector<float> row(static_cast<size_t>(width));
    row[0] = 1;
    row[1] = 2;
    ops::ResidualNormArgs args;
    args.x = device_.put(HostTensor(row, act_, {1, width}));
    args.x_taps[0] = scene.at(kPost);
    ops_.residual_norm(args);
    const Matrix got = read(args.x);
    EXPECT_EQ(got.at(0, 1), 4);                   // 2 + 2 * 1
    EXPECT_EQ(got.at(0, 0), is_one_run ? 5 : 9);  // 1 + 2 * 2, or 1 + 2 * 4
  }
}

// As many ops as a point can have, under every gate and schedule, on rows of every shape of kernel.
TEST_P(OpsTaps, ARunOfManyFeatures) {
  constexpr int kNumKinds = static_cast<int>(OpKind::kFeature) + 1;
  for (const int64_t asked : {31, 320, 4099, 8192}) {
    const int64_t width = wide(asked);
    for (const int count : {1, 33, int{tap::kMaxOpsPerPoint}}) {
      if (width > 4000 && count > 33) continue;
      Scene scene;
      scene.geometry = geometry_of(width);
      tap::Program program;
      for (const tap::Point point : {kPost, kNeurons}) {
        for (int i = 0; i < count; ++i) {
          const int kind = static_cast<int>(OpKind::kFeature) + kNumKinds * i;
          TapOp op = random_op(kind % kNumCombinations, width, point, program.vectors);
          op.run = i == 0 ? count : 0;
          program.ops.push_back({point, op});
        }
      }
      scene.programs = {std::move(program)};
      for (const int32_t since : {-2, -1, 0, 3}) {
        TapToken token;
        token.row = since == 0 ? 0 : 1;
        token.since_prompt = since;
        scene.tokens.push_back(token);
      }
      put_scene(scene, 0);
      fill_latches(scene.table);
      const auto rows = static_cast<int64_t>(scene.tokens.size());
      ops::ResidualNormArgs norm;
      norm.x = random({rows, width});
      norm.x_taps[0] = scene.at(kPost);
      const Matrix x = read(norm.x);
      ops_.residual_norm(norm);
      const View gate_up = random({rows, 2 * width}, 2);
      const Matrix acted = reference_gated_act(read(gate_up), ops::Activation::kSilu);
      const View out = poisoned(act_, {rows, width});
      ops_.gated_act({gate_up, ops::Activation::kSilu, out, {}, scene.at(kNeurons)});
      const Matrix got_x = read(norm.x);
      const Matrix got_out = read(out);
      for (int64_t t = 0; t < rows; ++t) {
        const auto token = static_cast<size_t>(t);
        const std::string what =
            std::to_string(count) + " of " + std::to_string(width) + ", row " + std::to_string(t);
        ReferenceLatches latches = latches_of(scene.tokens[token].slot);
        const double rounding = 1e-6 * count;  // of the sums that follow one another
        double tolerance = 2e-6 * (1 + most(row_of(x, t)));
        const Row h = tapped(scene, token, kPost, row_of(x, t), latches, tolerance);
        expect_row(row_of(got_x, t), h, tolerance + rounding, what + ", residual");
        tolerance = 2e-6 * (1 + most(row_of(acted, t)));
        const Row y = tapped(scene, token, kNeurons, row_of(acted, t), latches, tolerance);
        expect_row(row_of(got_out, t), y, tolerance + rounding, what + ", neurons");
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Backends may clamp features of few rows in another way than of many.
TEST_P(OpsTaps, ClampsOfFewRowsHaveTheBitsOfMany) {
  constexpr int kNumKinds = static_cast<int>(OpKind::kFeature) + 1;
  constexpr int64_t kMany = 150;
  for (const int64_t asked : {320, 2304, 4096}) {
    const int64_t width = wide(asked);
    for (const int count : {1, 2, 7, 8, 9, 40, 64, 65}) {
      tap::Program program;
      for (int i = 0; i < count; ++i) {
        const int kind = static_cast<int>(OpKind::kFeature) + kNumKinds * i;
        TapOp op = random_op(kind % kNumCombinations, width, kPost, program.vectors);
        const bool is_probe = op.gate == tap::GateKind::kHard || op.gate == tap::GateKind::kSoft;
        if (is_probe) op.gate = tap::GateKind::kNone;
        op.norm = tap::FeatureNorm::kNone;
        op.run = i == 0 ? count : 0;
        if (i % 5 == 3) {  // it leaves a relay
          op.v1 = tap::kNoVector;
          op.relay = i % tap::kNumRelays;
        }
        program.ops.push_back({kPost, op});
      }
      const View x = random({kMany, width});
      const auto clamped = [&](int64_t rows) {
        Scene scene;
        scene.geometry = geometry_of(width);
        scene.programs = {program};
        for (int64_t t = 0; t < rows; ++t) {
          TapToken token;
          token.row = t % 3 == 2 ? 0 : 1;
          token.since_prompt = static_cast<int32_t>(t % 4) - 1;
          scene.tokens.push_back(token);
        }
        put_scene(scene, 0);
        ops::ResidualNormArgs args;
        args.x = copy(x.rows(0, rows));
        args.x_taps[0] = scene.at(kPost);
        ops_.residual_norm(args);
        return device_.values<uint8_t>(args.x);
      };
      const std::vector<uint8_t> many = clamped(kMany);
      const std::vector<uint8_t> few = clamped(8);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()))
          << count << " features, width " << width;
    }
  }
}

// A feature that is read at one point is written at another of the same op, and of a later op whose
// rows lie in another order.
TEST_P(OpsTaps, AFeatureIsWrittenBehindWhereItIsRead) {
  for (const int64_t asked : {31, 320, 8192}) {
    const int64_t width = wide(asked);
    Scene scene;
    scene.geometry = geometry_of(width);
    for (int i = 0; i < 3; ++i) {
      tap::Program program;
      const auto add_feature = [&](tap::Point point, int32_t relay, bool reads) {
        const int kind = static_cast<int>(OpKind::kFeature);
        TapOp op = random_op(kind, width, point, program.vectors);
        (reads ? op.v1 : op.v2) = tap::kNoVector;
        if (!reads) op.norm = tap::FeatureNorm::kNone;
        op.relay = relay;
        program.ops.push_back({point, op});
      };
      const auto first = static_cast<int32_t>(between(0, tap::kNumRelays - 2));
      add_feature(kBranch, first, true);
      add_feature(kBranch, first + 1, true);
      program.ops[0].op.run = 2;
      program.ops[1].op.run = 0;
      add_feature(kPost, first, false);
      add_feature(kNormed, first + 1, false);
      add_feature(kNeurons, first, false);
      scene.programs.push_back(std::move(program));
    }
    constexpr int64_t kRows = 40;
    for (int32_t t = 0; t < kRows; ++t) {
      TapToken token;
      token.row = t % 4;
      scene.tokens.push_back(token);
    }
    put_scene(scene, 0);
    const View x = random({kRows, width});
    const View delta = random({kRows, width});
    ops::ResidualNormArgs read_args;
    read_args.x = device_.put(device_.get(x));
    read_args.delta = device_.put(device_.get(delta));
    read_args.delta_taps = scene.at(kBranch);
    read_args.x_taps[0] = scene.at(kPost);
    ops_.residual_norm(read_args);
    const Matrix got_x = read(read_args.x);

    const Matrix reference_x = read(x);
    const Matrix reference_delta = read(delta);
    std::vector<ReferenceRelays> relays(static_cast<size_t>(kRows));
    for (int64_t t = 0; t < kRows; ++t) {
      const auto token = static_cast<size_t>(t);
      const std::string what = "row " + std::to_string(t) + " of " + std::to_string(width);
      ReferenceLatches latches;
      const auto run = [&](tap::Point point, Row h) {
        if (scene.tokens[token].row == 0) return h;
        const auto program = static_cast<size_t>(scene.tokens[token].row - 1);
        return reference_program(scene.programs[program], point, std::move(h), 0, latches,
                                 &relays[token]);
      };
      Row h = run(kBranch, row_of(reference_delta, t));
      for (size_t i = 0; i < h.size(); ++i) h[i] += reference_x.at(t, static_cast<int64_t>(i));
      h = run(kPost, std::move(h));
      expect_row(row_of(got_x, t), h, 2e-5 * (1 + most(h)), what);
      if (HasFatalFailure()) return;
    }

    // The later op has every other token, as the last layer has those that are sampled.
    std::vector<TapToken> kept;
    std::vector<int32_t> of_token;
    for (int32_t t = kRows - 1; t >= 0; t -= 2) {
      kept.push_back(scene.tokens[static_cast<size_t>(t)]);
      of_token.push_back(device_.values<int32_t>(scene.batch.token)[static_cast<size_t>(t)]);
    }
    ops::TapBatch batch = put_tap_batch(device_, scene.table, kept);
    batch.token = device_.put(of_token);
    const auto rows = static_cast<int64_t>(kept.size());
    const View gate_up = random({rows, 2 * width}, 2);
    const View out = poisoned(act_, {rows, width});
    ops_.gated_act(
        {gate_up, ops::Activation::kSilu, out, {}, {&scene.table, &batch, kNeurons.index()}});
    const Matrix acted = reference_gated_act(read(gate_up), ops::Activation::kSilu);
    const Matrix got = read(out);
    for (int64_t r = 0; r < rows; ++r) {
      const auto token = static_cast<size_t>(kRows - 1 - 2 * r);
      ReferenceLatches latches;
      Row h = row_of(acted, r);
      if (scene.tokens[token].row > 0) {
        const auto program = static_cast<size_t>(scene.tokens[token].row - 1);
        h = reference_program(scene.programs[program], kNeurons, std::move(h), 0, latches,
                              &relays[token]);
      }
      expect_row(row_of(got, r), h, 2e-5 * (1 + most(h)), "neurons of " + std::to_string(token));
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace rudder::testing
