#include "rudder/cpu/fast_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  EXPECT_EQ((*best)->kv_dtype(), tensor::DType::kBF16);
  const auto named = make_cpu_ops({tensor::DType::kF32, 1, Isa::kPortable});
  ASSERT_TRUE(named.has_value());
  EXPECT_EQ((*named)->name(), "cpu-portable-f32");
  EXPECT_EQ((*named)->linear_dtype(), tensor::DType::kF32);
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
