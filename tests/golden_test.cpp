// The CPU's backends in the golden suite, and those with a GPU's precision: what they are held to
// is what a GPU is held to (golden_cuda_test.cpp).
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "golden_suite.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/model/loader.h"
#include "rudder/testing/low_precision_ops.h"

namespace rudder::golden {
namespace {

using tensor::DType;

MakeOps fast(DType dtype) {
  return [dtype] {
    auto ops = cpu::make_cpu_ops({.dtype = dtype, .num_threads = 2, .isa = {}});
    if (!ops) throw std::runtime_error(ops.error().to_string());
    return std::move(*ops);
  };
}

MakeOps low(DType linear, DType kv) {
  return [=] { return testing::make_low_precision_ops({.linear = linear, .kv = {kv}}); };
}

std::vector<Backend> cpu_backends() {
  return {{"reference", cpu::make_reference_ops, kF32Limits, kF32Limits, true},
          {"fast_f32", fast(DType::kF32), kF32Limits, kF32Limits, true},
          {"fast_bf16", fast(DType::kBF16), kBf16Limits, kBf16Limits, true},
          {"low_bf16", low(DType::kBF16, DType::kBF16), kBf16Limits, kFp8Limits, true},
          {"low_fp8", low(DType::kF8E4M3, DType::kF8E4M3), kFp8Limits, kFp8Limits, true}};
}

GOLDEN_BACKENDS(Cpu, checkpoint_names(), cpu_backends());

// bf16 products of two implementations, with activations rounded between them or not.
std::vector<Twins> cpu_twins() {
  const MakeOps low_bf16 = [] {
    return testing::make_low_precision_ops(
        {.linear = DType::kBF16, .kv = {DType::kBF16}, .keeps_fp8 = false});
  };
  return {{"fast_bf16", fast(DType::kBF16), low_bf16, kBf16Limits, kBf16Limits}};
}

GOLDEN_TWINS(Cpu, checkpoint_names(), cpu_twins());

// Of families without a trained model yet: random weights show their mathematics.
std::vector<std::string> untrained_names() {
  std::vector<std::string> names;
  for (const char* name :
       {"bamba", "deepseek-v2-lite", "deepseek-v3", "deepseek-v3-halves", "falcon-h1",
        "glm4-moe-lite", "glm5-next", "hy-v4", "kimi-linear", "mistral4", "nemotron-h"}) {
    names.push_back(std::string("../untrained/") + name);
  }
  return names;
}

std::vector<Backend> untrained_backends() {
  const std::vector<Backend> all = cpu_backends();
  return {all[0],
          all[1],
          {"fast_bf16", fast(DType::kBF16), kUntrainedBf16Limits, kUntrainedBf16Limits, true}};
}

GOLDEN_BACKENDS(Untrained, untrained_names(), untrained_backends());

// A backend that quantises weights leaves routers as they are; the memory budget knows.
TEST(Experts, RoutersStayWide) {
  const auto checkpoint =
      weights::Checkpoint::open_folder(std::string(RUDDER_SOURCE_DIR) + "/tests/golden/mixtral")
          .value();
  const model::ModelSpec spec = model::read_spec(*checkpoint).value();
  const auto ops = testing::make_low_precision_ops();
  const model::Weights loaded = model::load_weights(*checkpoint, spec, *ops, {}).value();
  for (const model::LayerWeights& layer : loaded.layers) {
    const auto& mlp = std::get<model::Experts::Weights>(layer.mlp);
    EXPECT_EQ(mlp.router.format, ops::wide_format(DType::kBF16));
    EXPECT_EQ(mlp.router.input, ops::InputForm::kAct);
    EXPECT_EQ(mlp.gate_up.format, ops::kFp8Rows);
    EXPECT_EQ(mlp.down.format, ops::kFp8Rows);
  }
  const model::WeightBudget budget = model::budget_weights(*checkpoint, spec, *ops).value();
  EXPECT_EQ(budget.bytes, loaded.bytes);
  EXPECT_EQ(budget.formats, "F8_E4M3, BF16");
}

// What precision costs on a trained model, part by part: KV alone, then everything.
TEST(DemoModel, LowPrecisionPredictsWhatTheExactModelDoes) {
  const DemoText& text = demo_text();
  const KvScaleTable calibrated = calibrated_kv_scales(DemoText::kFolder, text.ids);
  KvScaleTable clipping = calibrated;  // at an eighth of the largest
  for (auto* part : {&clipping.k, &clipping.v}) {
    for (std::vector<float>& heads : *part) {
      for (float& scale : heads) scale /= 8;
    }
  }
  const auto kl_of = [&](DType linear, DType kv, const KvScaleTable* scales, const char* what) {
    const std::vector<float> got =
        prompt_logits(DemoText::kFolder, low(linear, kv)(), text.ids, scales);
    const Distance found = distance(text.logits, got, DemoText::kVocab);
    fmt::print("  demo model, {}: mean KL {:.2e}, same token {:.1f} %\n", what, found.mean_kl,
               100 * found.agreement);
    return found;
  };
  const auto expect_within = [](const Distance& found, const Limits& limits) {
    EXPECT_LE(found.mean_kl, limits.mean_kl);
    EXPECT_GE(found.agreement, limits.agreement);
  };
  const DType bf16 = DType::kBF16;
  const DType fp8 = DType::kF8E4M3;
  const Distance exact_kv = kl_of(bf16, bf16, nullptr, "bf16");
  expect_within(exact_kv, kBf16Limits);
  const Distance plain_kv = kl_of(bf16, fp8, nullptr, "bf16, fp8 KV as it is");
  expect_within(plain_kv, kBf16Limits);
  const Distance scaled_kv = kl_of(bf16, fp8, &calibrated, "bf16, fp8 KV by calibrated scales");
  expect_within(scaled_kv, kBf16Limits);
  expect_within(kl_of(fp8, fp8, nullptr, "fp8, fp8 KV as it is"), kFp8Limits);
  expect_within(kl_of(fp8, fp8, &calibrated, "fp8, fp8 KV by calibrated scales"), kFp8Limits);
  // The scales are used: those that do not fit cost what they must.
  const Distance clipped_kv = kl_of(bf16, fp8, &clipping, "bf16, fp8 KV by scales that clip");
  EXPECT_GT(clipped_kv.mean_kl, 10 * scaled_kv.mean_kl);
}

// Over an fp8 cache queries may be rounded to e4m3 too (ADR 0069): what that costs is bounded by
// what the cache costs.
TEST(DemoModel, RoundedQueriesCostNoMoreThanTheCache) {
  for (const std::string folder : {"models/demo", "models/demo-hp1"}) {
    const DemoText text = greedy_text(folder);
    const auto kl_of = [&](bool rounds_queries) {
      const std::vector<float> got = prompt_logits(
          folder,
          testing::make_low_precision_ops(
              {.linear = DType::kBF16, .kv = {DType::kF8E4M3}, .rounds_queries = rounds_queries}),
          text.ids);
      const Distance found = distance(text.logits, got, DemoText::kVocab);
      fmt::print("  {}, fp8 KV, queries {}: mean KL {:.2e}, same token {:.1f} %\n", folder,
                 rounds_queries ? "rounded" : "as they are", found.mean_kl, 100 * found.agreement);
      EXPECT_LE(found.mean_kl, kFp8Limits.mean_kl);
      EXPECT_GE(found.agreement, kFp8Limits.agreement);
      return found.mean_kl;
    };
    const double of_cache = kl_of(false);
    EXPECT_LE(kl_of(true), 2 * of_cache) << folder;
  }
}

}  // namespace
}  // namespace rudder::golden
