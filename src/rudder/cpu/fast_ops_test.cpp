#include "rudder/cpu/fast_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "rudder/cpu/memory_bandwidth.h"
#include "rudder/cpu/ops_bench.h"

namespace rudder::cpu {
namespace {

TEST(FastOps, TakesTheBestInstructionSetUnlessOneIsNamed) {
  const auto best = make_cpu_ops({});
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ((*best)->name(), "cpu-" + std::string(isa_name(available_isas().back())));
  EXPECT_EQ((*best)->kv_format(), ops::KvFormat{tensor::DType::kBF16});
  const auto named = make_cpu_ops({tensor::DType::kF32, 1, Isa::kPortable});
  ASSERT_TRUE(named.has_value());
  EXPECT_EQ((*named)->name(), "cpu-portable-f32");
  EXPECT_EQ((*named)->stored_format({})->codes, ops::Codes::kF32);
}

TEST(FastOps, RefusesADtypeItDoesNotComputeIn) {
  const auto ops = make_cpu_ops({tensor::DType::kF16, 1, {}});
  ASSERT_FALSE(ops.has_value());
  EXPECT_EQ(ops.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(ops.error().where, "dtype");
}

TEST(FastOps, RefusesAnInstructionSetThatIsNotThere) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    const std::vector<Isa>& there = available_isas();
    const bool expected = std::find(there.begin(), there.end(), isa) != there.end();
    EXPECT_EQ(make_cpu_ops({tensor::DType::kBF16, 1, isa}).has_value(), expected);
  }
}

// The rows are more than there are addresses for: nothing of them is looked at.
TEST(FastOps, NoMemoryForScratchIsAFaultThatLaterEventsTell) {
  const auto ops = make_cpu_ops({tensor::DType::kF32, 2, {}}).value();
  std::vector<float> weight(size_t{32} * 64, 0.5f), x(64, 1.0f), out(32, -1.0f);
  const ops::LinearPart part = ops::wide_part({weight.data(), tensor::DType::kF32, {32, 64}});
  const ops::LinearWeight linear = ops->make_linear(std::span(&part, 1)).value();
  const auto multiply_rows = [&](int64_t rows) {
    ops->linear({.x = {x.data(), tensor::DType::kF32, {rows, 64}},
                 .x_scale = {},
                 .weight = &linear,
                 .out = {out.data(), tensor::DType::kF32, {rows, 32}}});
  };
  const auto before = ops->make_event();
  multiply_rows(1);
  ops->record(*before);
  EXPECT_EQ(out, std::vector<float>(32, 32.0f));
  multiply_rows(int64_t{1} << 42);
  const auto after = ops->make_event();
  ops->record(*after);
  EXPECT_TRUE(before->wait());
  EXPECT_FALSE(after->wait());
  EXPECT_EQ(ops->status().error().code, ErrorCode::kIo);
}

TEST(Isa, NamesParseBack) {
  for (const Isa isa : available_isas()) EXPECT_EQ(parse_isa(isa_name(isa)).value(), isa);
  const auto unknown = parse_isa("sse9");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().where, "cpu_isa");
}

TEST(Ceilings, AreMeasured) {
  ThreadPool pool(2);
  const Kernels& kernels = kernels_for(available_isas().back());
  EXPECT_GT(measure_read_bandwidth(pool, kernels, size_t{4} << 20).value(), 1e8);
  EXPECT_GT(measure_product_rate(pool, kernels, Element::kF32).value(), 1e8);
}

TEST(OpsBench, ReportsEveryOpOfEveryStepAndItsSum) {
  OpsBenchArgs args;
  args.shape = {64, 4, 2, 16, 96, 100, 2, true};
  args.steps = {{2, 1, 5}, {1, 9, 0}};
  args.repeats = 1;
  const auto report = bench_ops(args);
  ASSERT_TRUE(report.has_value());
  double seconds = 0;
  int steps = 0;
  for (const OpsBenchRow& row : report->rows) {
    if (row.op == "step") {
      EXPECT_NEAR(row.seconds, seconds, 1e-9);
      EXPECT_GT(row.flops, 0);
      seconds = 0;
      ++steps;
    } else {
      EXPECT_GT(row.bytes, 0) << row.op;
      seconds += row.seconds;
    }
  }
  EXPECT_EQ(steps, 2);
  EXPECT_NE(to_table(*report).find("tokens/s"), std::string::npos);
}

}  // namespace
}  // namespace rudder::cpu
