#include "metamorphic/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "metamorphic/harness.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/isa.h"
#include "rudder/cpu/reference_ops.h"

namespace rudder::metamorphic {

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = [] {
    std::vector<Backend> found = {{"reference", cpu::make_reference_ops}};
    const auto add = [&](tensor::DType dtype, cpu::Isa isa, std::optional<ops::KvFormat> kv) {
      std::string name = fmt::format("{}_{}", cpu::isa_name(isa), dtype_name(dtype));
      if (kv) name += fmt::format("_{}_kv", dtype_name(kv->dtype));
      std::replace(name.begin(), name.end(), '-', '_');
      const cpu::CpuOpsSettings settings{dtype, 2, isa, nullptr, kv};
      found.push_back({name, [=] { return value_of(cpu::make_cpu_ops(settings)); }});
    };
    // Sets between the first and the best differ in kernels, which the conformance suite covers.
    const cpu::Isa best = cpu::available_isas().back();
    add(tensor::DType::kBF16, cpu::Isa::kPortable, {});
    if (best != cpu::Isa::kPortable) add(tensor::DType::kBF16, best, {});
    add(tensor::DType::kBF16, best, ops::kInt8TokenKv);
    add(tensor::DType::kF32, best, ops::kFp8TokenKv);
    add(tensor::DType::kF32, best, {});
    return found;
  }();
  return all;
}

std::vector<size_t> all_backends() {
  std::vector<size_t> all;
  while (all.size() < backends().size()) all.push_back(all.size());
  return all;
}

std::vector<testing::TinyArch> all_archs() {
  std::vector<testing::TinyArch> all;
  for (const testing::TinyArch arch : testing::kTinyArchs) all.push_back(arch);
  for (const testing::TinyArch arch : testing::kOtherTinyArchs) all.push_back(arch);
  return all;
}

bool runs_in_stages(testing::TinyArch arch) {
  const model::ModelSpec spec = testing::tiny_spec(arch);
  return !spec.layer_embedding.exists() && !model::shares_kv(spec) &&
         !model::is_delayed(spec.residual);
}

std::vector<Pair> daily_pairs(const std::vector<size_t>& among, Turn turn) {
  std::vector<Pair> pairs;
  size_t model = 0;
  for (const testing::TinyArch arch : all_archs()) {
    if (turn == Turn::kAlways || model % 3 == static_cast<size_t>(turn)) {
      pairs.emplace_back(among[pairs.size() % among.size()], arch);
    }
    ++model;
  }
  return pairs;
}

std::vector<Pair> other_pairs(const std::vector<size_t>& among, Turn turn) {
  const std::vector<Pair> daily = daily_pairs(among, turn);
  std::vector<Pair> pairs;
  for (const size_t backend : among) {
    for (const testing::TinyArch arch : all_archs()) {
      const Pair pair(backend, arch);
      if (std::ranges::find(daily, pair) == daily.end()) pairs.push_back(pair);
    }
  }
  return pairs;
}

std::string pair_name(const ::testing::TestParamInfo<Pair>& test) {
  return backends()[std::get<0>(test.param)].name + "_" +
         std::string(testing::tiny_arch_name(std::get<1>(test.param)));
}

}  // namespace rudder::metamorphic
