// Rows are independent: the same row gives the same bits in any company and on any number of
// threads (ops/ops.h).
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance.h"

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

TEST_P(OpsConformance, ThreadsDoNotChangeARow) {
  const int64_t in = 896;
  const int64_t out_width = 1200;
  const HostTensor x(random_values(70 * in), act_, {70, in});
  const HostTensor weight(random_values(out_width * in), DType::kF32, {out_width, in});
  const ops::LinearPart part{weight.view(), {}};
  const auto run = [&](int num_threads) {
    Device device(GetParam().make(num_threads));
    const ops::LinearWeight linear = device.ops().make_linear({&part, 1}).value();
    ops::LinearArgs args{device.put(x), {}, &linear, {}};
    if (linear.x_dtype == DType::kF8E4M3) {
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
