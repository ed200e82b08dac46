// Rows are independent: the same row gives the same bits in any company and on any number of
// threads (ops/ops.h).
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {
namespace {

using tensor::View;

constexpr int64_t kAll = 257;
constexpr int64_t kCounts[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 48, 64, 100, 255};

std::string place(int64_t count, int64_t first) {
  return std::to_string(count) + " rows from " + std::to_string(first);
}

TEST_P(OpsConformance, LinearRowsAreIndependent) {
  constexpr int64_t kShapes[][2] = {{896, 1152}, {100, 301}, {33, 16}, {4864, 48}, {1, 5}};
  for (const auto& [in, out_width] : kShapes) {
    const int64_t outs[] = {out_width};
    const Linear linear = random_linear(outs, in, true);
    const View x = random({kAll, in});
    const View all = poisoned({kAll, out_width});
    ops_->linear({x, {}, &linear.weight, all});
    for (const int64_t count : kCounts) {
      const int64_t first = between(0, kAll - count);
      const View out = poisoned({count, out_width});
      ops_->linear({x.rows(first, count), {}, &linear.weight, out});
      expect_same_bits(out, all.rows(first, count), place(count, first));
    }
  }
}

TEST_P(OpsConformance, SmallOpsRowsAreIndependent) {
  const int64_t hidden = 301;
  ops::ResidualNormArgs args;
  args.norm = random_norm(hidden);
  args.delta_norm = random_norm(hidden);
  const View x = random({kAll, hidden});
  const View delta = random({kAll, hidden});
  args.x = copy(x);
  args.delta = copy(delta);
  args.out = poisoned({kAll, hidden});
  ops_->residual_norm(args);
  const View gates = random({kAll, 2 * hidden});
  const View acted = poisoned({kAll, hidden});
  ops_->gated_act({gates, ops::Activation::kSilu, acted, {}});
  for (const int64_t count : kCounts) {
    const int64_t first = between(0, kAll - count);
    ops::ResidualNormArgs part = args;
    part.x = copy(x.rows(first, count));
    part.delta = copy(delta.rows(first, count));
    part.out = poisoned({count, hidden});
    ops_->residual_norm(part);
    expect_same_bits(part.x, args.x.rows(first, count), place(count, first));
    expect_same_bits(part.out, args.out.rows(first, count), place(count, first));
    const View out = poisoned({count, hidden});
    ops_->gated_act({gates.rows(first, count), ops::Activation::kSilu, out, {}});
    expect_same_bits(out, acted.rows(first, count), place(count, first));
  }
}

TEST_P(OpsConformance, ThreadsDoNotChangeARow) {
  const int64_t in = 896;
  const int64_t out_width = 1200;
  const View x = random({70, in});
  const View weight = random({out_width, in});
  const ops::LinearPart part{weight, {}};
  const auto run = [&](int num_threads) {
    const auto ops = GetParam().make(num_threads);
    const ops::LinearWeight linear = ops->make_linear({&part, 1}).value();
    const View out = poisoned({70, out_width});
    ops->linear({x, {}, &linear, out});
    return out;
  };
  const View one = run(1);
  for (const int num_threads : {2, 3, 7}) {
    expect_same_bits(run(num_threads), one, std::to_string(num_threads) + " threads");
  }
}

}  // namespace
}  // namespace rudder::testing
