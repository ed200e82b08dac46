// Rows are independent: the same row gives the same bits in any company and on any number of
// threads (ops/ops.h).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rudder/testing/ops_conformance_attention.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

constexpr int64_t kAll = 257;
constexpr int64_t kCounts[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 48, 64, 100, 255};

std::string place(int64_t count, int64_t first) {
  return std::to_string(count) + " rows from " + std::to_string(first);
}

TEST_P(OpsConformance, LinearRowsAreIndependent) {
  constexpr int64_t kShapes[][2] = {{896, 1152}, {100, 301}, {33, 16}, {4864, 48}, {1, 5}};
  for (const auto& [in_width, out_columns] : kShapes) {
    const int64_t in = wide(in_width);
    const int64_t out_width = wide(out_columns);
    const Linear linear = random_linear({&out_width, 1}, in, true);
    if (linear.weight.packed == nullptr) continue;
    const Operand x = operand_of(random({kAll, in}), linear.weight);
    const auto scales = [&](int64_t first, int64_t count) {
      return x.scale.empty() ? View{} : x.scale.rows(first, count);
    };
    const View all = poisoned({kAll, out_width});
    ops_.linear({x.x, x.scale, &linear.weight, all});
    for (const int64_t count : kCounts) {
      const int64_t first = between(0, kAll - count);
      const View out = poisoned({count, out_width});
      ops_.linear({x.x.rows(first, count), scales(first, count), &linear.weight, out});
      expect_same_rows(out, all.rows(first, count), place(count, first));
    }
  }
}

TEST_P(OpsConformance, SmallOpsRowsAreIndependent) {
  const int64_t hidden = wide(301);
  ops::ResidualNormArgs args;
  args.norm = random_norm(hidden);
  args.delta_norm = random_norm(hidden);
  const View x = random({kAll, hidden});
  const View delta = random({kAll, hidden});
  args.x = copy(x);
  args.delta = copy(delta);
  args.out = poisoned({kAll, hidden});
  ops_.residual_norm(args);
  const View gates = random({kAll, 2 * hidden});
  const View acted = poisoned({kAll, hidden});
  ops_.gated_act({gates, ops::Activation::kSilu, acted, {}});
  for (const int64_t count : kCounts) {
    const int64_t first = between(0, kAll - count);
    ops::ResidualNormArgs part = args;
    part.x = copy(x.rows(first, count));
    part.delta = copy(delta.rows(first, count));
    part.out = poisoned({count, hidden});
    ops_.residual_norm(part);
    expect_same_rows(part.x, args.x.rows(first, count), place(count, first));
    expect_same_rows(part.out, args.out.rows(first, count), place(count, first));
    const View out = poisoned({count, hidden});
    ops_.gated_act({gates.rows(first, count), ops::Activation::kSilu, out, {}});
    expect_same_rows(out, acted.rows(first, count), place(count, first));
  }
}

// A long prompt has more rows than a device has places for at once, and may have kernels of its
// own. Of many rows the same few in turn: to draw all takes longer than the ops.
std::vector<float> in_turn(const std::vector<float>& few, int64_t count) {
  std::vector<float> out;
  out.reserve(static_cast<size_t>(count));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) out.push_back(few[i % few.size()]);
  return out;
}
constexpr int64_t kFew = 97;
constexpr int64_t kPart = 200;

TEST_P(OpsConformance, ResidualNormOfManyRows) {
  const auto check = [&](int64_t rows, const ops::NormSpec& delta_norm, const ops::NormSpec& norm,
                         bool is_f8) {
    const int64_t hidden = norm.weight.shape[0];
    const auto many = [&] {
      const std::vector<float> values = in_turn(random_values(kFew * hidden), rows * hidden);
      return device_.put(HostTensor(values, act_, {rows, hidden}));
    };
    const View x = many();
    const View delta = many();
    ops::ResidualNormArgs args{.x = copy(x), .delta = copy(delta)};
    args.norm = norm;
    args.delta_norm = delta_norm;
    args.out = args.delta;
    const auto to_f8 = [&](ops::ResidualNormArgs& of, int64_t count) {
      of.out = poisoned(DType::kF8E4M3, {count, hidden});
      of.out_scale = poisoned(DType::kF32, {count});
    };
    if (is_f8) to_f8(args, rows);
    ops_.residual_norm(args);
    for (int64_t first = 0; first < rows; first += kPart) {
      const int64_t count = std::min(kPart, rows - first);
      ops::ResidualNormArgs part = args;
      part.x = copy(x.rows(first, count));
      part.delta = copy(delta.rows(first, count));
      part.out = poisoned({count, hidden});
      if (is_f8) to_f8(part, count);
      ops_.residual_norm(part);
      expect_same_rows(part.x, args.x.rows(first, count), place(count, first));
      expect_same_rows(part.out, args.out.rows(first, count), place(count, first));
      if (!is_f8) continue;
      expect_same_rows(part.out_scale, args.out_scale.rows(first, count), place(count, first));
    }
  };
  constexpr int64_t kShapes[][2] = {{1701, 1304}, {601, 4096}, {301, 8192}};
  for (const auto& [rows, width] : kShapes) {
    const int64_t hidden = wide(width);
    const auto norm = [&](bool clips) {
      ops::NormSpec drawn = random_norm(hidden);
      drawn.alpha = {};
      if (clips) drawn.alpha = random_norm(hidden).weight;
      return drawn;
    };
    check(rows, norm(false), norm(false), false);
    check(rows, {}, norm(false), false);
    if (width == kShapes[0][1]) check(rows, norm(true), norm(true), false);
    if (!writes_f8()) continue;
    check(rows, norm(false), norm(false), true);
    check(rows, {}, norm(false), true);
  }
}

TEST_P(OpsConformance, F8OfManyRows) {
  if (!writes_f8()) return;
  constexpr int64_t kRows = 1501;
  for (const int64_t width : {wide(1120), wide(2048)}) {
    const std::vector<float> values = in_turn(random_values(kFew * width, 4), 2 * kRows * width);
    const View gates = device_.put(HostTensor(values, act_, {kRows, 2 * width}));
    View x = gates;
    x.shape = {2 * kRows, width};
    const auto run = [&](bool acts, int64_t first, int64_t count) {
      const std::pair<View, View> out = {poisoned(DType::kF8E4M3, {count, width}),
                                         poisoned(DType::kF32, {count})};
      if (acts) {
        ops_.gated_act({gates.rows(first, count), ops::Activation::kSilu, out.first, out.second});
      } else {
        ops_.quantise({x.rows(first, count), out.first, out.second});
      }
      return out;
    };
    for (const bool acts : {true, false}) {
      const auto [all, scales] = run(acts, 0, kRows);
      for (int64_t first = 0; first < kRows; first += kPart) {
        const int64_t count = std::min(kPart, kRows - first);
        const auto [part, part_scales] = run(acts, first, count);
        expect_same_rows(part, all.rows(first, count), place(count, first));
        expect_same_rows(part_scales, scales.rows(first, count), place(count, first));
      }
    }
  }
}

TEST_P(OpsAttention, QkvPrepOfManyTokens) {
  // No norm, RMS, a clip, one of each.
  const auto check = [&](const AttentionShape& shape, int64_t tokens, int kind) {
    const Layer layer = make_layer(shape, tokens);
    const auto norm = [&](bool clips) {
      if (kind == 0) return ops::NormSpec{};
      ops::NormSpec norm = random_norm(shape.head_dim);
      norm.alpha = {};
      if (clips) norm.alpha = random_norm(shape.head_dim).weight;
      return norm;
    };
    ops::QkvPrepArgs args;
    args.num_heads = static_cast<int32_t>(shape.heads);
    args.q_norm = norm(kind >= 2);
    args.k_norm = norm(kind == 2);
    args.rope = layer.rope;
    args.kv = layer.kv;
    const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    const View qkv = device_.put(
        HostTensor(in_turn(random_values(kFew * width), tokens * width), act_, {tokens, width}));
    std::vector<int32_t> rope_row;
    std::vector<int32_t> slots;
    for (int32_t t = 0; t < tokens; ++t) {
      rope_row.push_back(static_cast<int32_t>(between(0, kMaxPositions - 1)));
      slots.push_back(t % 7 == 0 ? -1 : t);
    }
    const auto run = [&](int64_t first, int64_t count) {
      const auto part = [&](const std::vector<int32_t>& of) {
        return device_.put(std::vector<int32_t>(of.begin() + first, of.begin() + first + count));
      };
      args.qkv = copy(qkv.rows(first, count));
      args.rope_row = part(rope_row);
      args.kv_slot = part(slots);
      args.q_out = poisoned({count, shape.heads * shape.head_dim});
      ops_.qkv_prep(args);
      return args.q_out;
    };
    const View q = run(0, tokens);
    const HostTensor cache = device_.get(layer.kv.storage);
    const View scales = args.kv.token_scales;
    args.kv.storage = poisoned(layer.kv.storage.dtype, layer.kv.storage.shape);
    if (!scales.empty()) args.kv.token_scales = poisoned(DType::kF32, scales.shape);
    for (int64_t first = 0; first < tokens; first += kPart) {
      const int64_t count = std::min(kPart, tokens - first);
      expect_same_rows(run(first, count), q.rows(first, count), place(count, first));
    }
    // Elements that nobody wrote are NaN in both.
    EXPECT_TRUE(std::ranges::equal(device_.get(args.kv.storage).bytes(), cache.bytes()))
        << "norms of kind " << kind;
    if (scales.empty()) return;
    EXPECT_TRUE(
        std::ranges::equal(device_.get(args.kv.token_scales).bytes(), device_.get(scales).bytes()))
        << "norms of kind " << kind;
  };
  AttentionShape shape;
  shape.head_dim = shape.rotary = 64;
  for (const int kind : {0, 1, 2, 3}) check(shape, 1501, kind);
  check(shape, 6401, 1);
  shape.heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = shape.rotary = 128;
  check(shape, 2301, 1);
  shape.rotary = 64;
  check(shape, 601, 2);
}

TEST_P(OpsConformance, ThreadsDoNotChangeARow) {
  const int64_t in = 896;
  const int64_t out_width = 1200;
  const HostTensor x(random_values(70 * in), act_, {70, in});
  const HostTensor weight(random_values(out_width * in), DType::kF32, {out_width, in});
  const ops::LinearPart part = ops::wide_part(weight.view());
  const auto run = [&](int num_threads) {
    Device device(GetParam().make(num_threads));
    const ops::LinearWeight linear = device.ops().make_linear({&part, 1}).value();
    ops::LinearArgs args{device.put(x), {}, &linear, {}};
    if (linear.input == ops::InputForm::kF8Rows) {
      const ops::QuantiseArgs quantise{args.x,
                                       device.ops().allocate(DType::kF8E4M3, {70, in}).value(),
                                       device.ops().allocate(DType::kF32, {70}).value()};
      device.ops().quantise(quantise);
      args.x = quantise.out;
      args.x_scale = quantise.out_scale;
    }
    args.out = device.ops().allocate(act_, {70, out_width}).value();
    device.ops().linear(args);
    return device_.put(device.get(args.out));
  };
  const View one = run(1);
  for (const int num_threads : {2, 3, 7}) {
    expect_same_rows(run(num_threads), one, std::to_string(num_threads) + " threads");
  }
}

}  // namespace
}  // namespace rudder::testing
