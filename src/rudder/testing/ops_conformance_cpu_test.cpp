// The CPU's backends in the conformance suite: the reference, and the fast one on every
// instruction set that this machine runs, in both dtypes. And one with the dtypes of a GPU, which
// shows that the suite's tolerances fit them. Each instruction set has one of the dtypes in the
// daily run and the other in the full one, so that both dtypes and all sets are in either.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/testing/low_precision_ops.h"
#include "rudder/testing/ops_conformance_attention.h"
#include "rudder/testing/ops_conformance_encode.h"
#include "rudder/testing/ops_conformance_features.h"
#include "rudder/testing/ops_conformance_latent.h"
#include "rudder/testing/ops_conformance_routers.h"
#include "rudder/testing/ops_conformance_states.h"
#include "rudder/testing/ops_conformance_streams.h"
#include "rudder/testing/ops_conformance_taps.h"
#include "rudder/testing/ops_conformance_trees.h"

namespace rudder::testing {
namespace {

TEST(AddAsFp8, KeepsThirteenBitsBelowTheLargest) {
  const std::vector<double> parts = {1.5, std::ldexp(1.0, -13), std::ldexp(-1.9, -14)};
  EXPECT_EQ(add_as_fp8(0, parts), 1.5 + std::ldexp(1.0, -13));
  EXPECT_EQ(add_as_fp8(2, parts), 3.5);
  EXPECT_EQ(add_as_fp8(-1.5, std::vector<double>{1.5, std::ldexp(1.0, -14)}), 0);
  EXPECT_EQ(add_as_fp8(0, std::vector<double>{}), 0);
  EXPECT_TRUE(std::isnan(add_as_fp8(0, std::vector<double>{kInfinity})));
}

enum class Run { kDaily, kFull };

std::vector<Backend> reference_backends() {
  std::vector<Backend> backends(1);
  backends[0].name = "reference";
  backends[0].make = [](int) { return cpu::make_reference_ops(); };
  backends[0].writes_f8 = true;
  const auto add_low = [&](const std::string& name, tensor::DType linear, ops::KvFormat kv) {
    Backend low;
    low.name = "low_precision_" + name;
    low.make = [=](int) { return make_low_precision_ops({.linear = linear, .kv = kv}); };
    low.width_unit = 8;
    low.head_dims = {64, 96, 128, 256, 512};
    low.block_sizes = {16};
    low.writes_f8 = true;
    backends.push_back(low);
  };
  add_low("BF16", tensor::DType::kBF16, {tensor::DType::kBF16});
  add_low("F8_E4M3", tensor::DType::kF8E4M3, {tensor::DType::kF8E4M3});
  return backends;
}

std::vector<Backend> cpu_backends(Run run) {
  std::vector<Backend> backends;
  if (run == Run::kDaily) backends = reference_backends();
  bool is_daily = false;
  for (const cpu::Isa isa : cpu::available_isas()) {
    is_daily = !is_daily;
    for (const auto dtype : {tensor::DType::kBF16, tensor::DType::kF32}) {
      if (((dtype == tensor::DType::kBF16) == is_daily) != (run == Run::kDaily)) continue;
      Backend backend;
      backend.name = std::string(cpu::isa_name(isa)) + "_" + std::string(dtype_name(dtype));
      std::replace(backend.name.begin(), backend.name.end(), '-', '_');
      backend.make = [isa, dtype](int num_threads) {
        return cpu::make_cpu_ops({.dtype = dtype, .num_threads = num_threads, .isa = isa}).value();
      };
      backends.push_back(backend);
    }
  }
  return backends;
}

std::string name_of(const ::testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

// KV caches of codes: as a GPU has them, and the fast backend.
std::vector<Backend> code_backends(Run run) {
  std::vector<Backend> backends;
  const auto name_kv = [](const ops::KvFormat& kv) {
    return std::string(dtype_name(kv.dtype)) + (kv.scales_tokens ? "_tokens" : "");
  };
  for (const ops::KvFormat kv : {ops::kFp8TokenKv, ops::kInt8TokenKv}) {
    if (run == Run::kFull) break;
    Backend low = reference_backends()[1];
    low.name += "_" + name_kv(kv);
    low.make = [kv](int) {
      return make_low_precision_ops({.linear = tensor::DType::kBF16, .kv = kv});
    };
    backends.push_back(low);
  }
  bool is_daily = false;
  for (const auto dtype : {tensor::DType::kBF16, tensor::DType::kF32}) {
    for (const ops::KvFormat kv :
         {ops::KvFormat{tensor::DType::kF8E4M3}, ops::kFp8TokenKv, ops::kInt8TokenKv}) {
      is_daily = !is_daily;
      if (is_daily != (run == Run::kDaily)) continue;
      Backend fast;
      fast.name = "fast_" + std::string(dtype_name(dtype)) + "_" + name_kv(kv);
      fast.make = [dtype, kv](int num_threads) {
        return cpu::make_cpu_ops({dtype, num_threads, {}, nullptr, kv}).value();
      };
      backends.push_back(fast);
    }
  }
  return backends;
}

// As a GPU does over a cache of F8E4M3: the suite accepts rounded queries.
Backend query_rounding_backend() {
  Backend backend = reference_backends()[2];
  backend.name += "_queries";
  backend.head_dims = {64, 128};
  backend.make = [](int) {
    return make_low_precision_ops({.kv = {tensor::DType::kF8E4M3}, .rounds_queries = true});
  };
  backend.rounds_queries = true;
  return backend;
}

INSTANTIATE_TEST_SUITE_P(Cpu, OpsConformance, ::testing::ValuesIn(cpu_backends(Run::kDaily)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FullCpu, OpsConformance, ::testing::ValuesIn(cpu_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cpu, OpsAttention, ::testing::ValuesIn(cpu_backends(Run::kDaily)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FullCpu, OpsAttention, ::testing::ValuesIn(cpu_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cpu, OpsTrees, ::testing::ValuesIn(cpu_backends(Run::kDaily)), name_of);
INSTANTIATE_TEST_SUITE_P(FullCpu, OpsTrees, ::testing::ValuesIn(cpu_backends(Run::kFull)), name_of);
INSTANTIATE_TEST_SUITE_P(Cpu, OpsTaps, ::testing::ValuesIn(cpu_backends(Run::kDaily)), name_of);
INSTANTIATE_TEST_SUITE_P(FullCpu, OpsTaps, ::testing::ValuesIn(cpu_backends(Run::kFull)), name_of);
INSTANTIATE_TEST_SUITE_P(Cpu, OpsRouters, ::testing::ValuesIn(cpu_backends(Run::kDaily)), name_of);
INSTANTIATE_TEST_SUITE_P(FullCpu, OpsRouters, ::testing::ValuesIn(cpu_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cpu, OpsEncode, ::testing::ValuesIn(cpu_backends(Run::kDaily)), name_of);
INSTANTIATE_TEST_SUITE_P(FullCpu, OpsEncode, ::testing::ValuesIn(cpu_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cpu, OpsFeatures, ::testing::ValuesIn(cpu_backends(Run::kDaily)), name_of);
INSTANTIATE_TEST_SUITE_P(FullCpu, OpsFeatures, ::testing::ValuesIn(cpu_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cpu, OpsLatent, ::testing::ValuesIn(cpu_backends(Run::kDaily)), name_of);
INSTANTIATE_TEST_SUITE_P(FullCpu, OpsLatent, ::testing::ValuesIn(cpu_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cpu, OpsStates, ::testing::ValuesIn(cpu_backends(Run::kDaily)), name_of);
INSTANTIATE_TEST_SUITE_P(FullCpu, OpsStates, ::testing::ValuesIn(cpu_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cpu, OpsStreamTaps, ::testing::ValuesIn(cpu_backends(Run::kDaily)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FullCpu, OpsStreamTaps, ::testing::ValuesIn(cpu_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(CpuCodes, OpsAttention, ::testing::ValuesIn(code_backends(Run::kDaily)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FullCpuCodes, OpsAttention, ::testing::ValuesIn(code_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(CpuCodes, OpsTrees, ::testing::ValuesIn(code_backends(Run::kDaily)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FullCpuCodes, OpsTrees, ::testing::ValuesIn(code_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(CpuCodes, OpsLatent, ::testing::ValuesIn(code_backends(Run::kDaily)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FullCpuCodes, OpsLatent, ::testing::ValuesIn(code_backends(Run::kFull)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(CpuQueries, OpsAttention, ::testing::Values(query_rounding_backend()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(CpuQueries, OpsTrees, ::testing::Values(query_rounding_backend()),
                         name_of);

}  // namespace
}  // namespace rudder::testing
