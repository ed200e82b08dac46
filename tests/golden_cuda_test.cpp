// The CUDA backend in the golden suite: bf16, and fp8 weights with an fp8 KV cache.
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "golden_suite.h"
#include "rudder/cuda/cuda_ops.h"
#include "rudder/testing/low_precision_ops.h"

namespace rudder::golden {
namespace {

using tensor::DType;

MakeOps cuda_ops(DType dtype, bool batch_invariant = false) {
  return [dtype, batch_invariant] {
    cuda::CudaOpsSettings settings;
    settings.linear_dtype = dtype;
    settings.kv = {dtype};
    settings.tune = false;
    settings.plain_attention = true;  // head_dims of tiny models
    settings.batch_invariant = batch_invariant;
    settings.synchronous = true;  // a fault names its op
    auto ops = cuda::make_cuda_ops(settings);
    if (!ops) throw std::runtime_error(ops.error().to_string());
    return std::move(*ops);
  };
}

std::vector<Backend> cuda_backends() {
  return {{"cuda_bf16", cuda_ops(DType::kBF16), kBf16Limits, kFp8Limits, false},
          {"cuda_fp8", cuda_ops(DType::kF8E4M3), kFp8Limits, kFp8Limits, false},
          {"cuda_bf16_invariant", cuda_ops(DType::kBF16, true), kBf16Limits, kFp8Limits, true},
          {"cuda_fp8_invariant", cuda_ops(DType::kF8E4M3, true), kFp8Limits, kFp8Limits, true}};
}

GOLDEN_BACKENDS(Cuda, checkpoint_names(), cuda_backends());

// Families with latent rows, some with several streams, by random weights: their tokens are nearer
// each other than those of trained ones, and so are the experts of a router. bf16 changes the
// likeliest token of two in eight, on a CPU of one; so distributions decide (kUntrainedBf16Limits).
// No product of theirs is one of multiples of 16, as fp8 needs them.
std::vector<std::string> latent_names() {
  std::vector<std::string> names;
  for (const char* name : {"deepseek-v2-lite", "deepseek-v3", "deepseek-v3-halves", "glm4-moe-lite",
                           "glm5-next", "hy-v4", "mistral4"}) {
    names.push_back(std::string("../untrained/") + name);
  }
  return names;
}

std::vector<Backend> latent_backends() {
  return {{"cuda_bf16", cuda_ops(DType::kBF16), kUntrainedBf16Limits, kUntrainedBf16Limits, false},
          {"cuda_bf16_invariant", cuda_ops(DType::kBF16, true), kUntrainedBf16Limits,
           kUntrainedBf16Limits, true}};
}

GOLDEN_BACKENDS(UntrainedCuda, latent_names(), latent_backends());

// The same precision on the CPU.
std::vector<Twins> cuda_twins() {
  const auto low = [](DType dtype) -> MakeOps {
    return [dtype] { return testing::make_low_precision_ops({.linear = dtype, .kv = {dtype}}); };
  };
  const DType bf16 = DType::kBF16;
  const DType fp8 = DType::kF8E4M3;
  return {{"cuda_bf16", cuda_ops(bf16), low(bf16), kBf16Limits, kFp8Limits},
          {"cuda_fp8", cuda_ops(fp8), low(fp8), kFp8Limits, kFp8Limits}};
}

GOLDEN_TWINS(Cuda, checkpoint_names(), cuda_twins());

TEST(DemoModel, PredictsWhatTheCpuPredicts) {
  const DemoText& text = demo_text();
  for (const auto& [dtype, limits] :
       {std::pair(DType::kBF16, kBf16Limits), std::pair(DType::kF8E4M3, kFp8Limits)}) {
    const std::vector<float> actual = prompt_logits(DemoText::kFolder, cuda_ops(dtype)(), text.ids);
    const Distance found = distance(text.logits, actual, DemoText::kVocab);
    fmt::print("  demo model, {}: mean KL {:.2e}, same token {:.1f} %\n", tensor::dtype_name(dtype),
               found.mean_kl, 100 * found.agreement);
    EXPECT_LE(found.mean_kl, limits.mean_kl);
    EXPECT_GE(found.agreement, limits.agreement);
  }
}

// A prompt in company against the prompt alone: the same bits where that is promised, else nearly
// the same predictions.
TEST(DemoModel, CompanyHardlyChangesAPrompt) {
  const std::vector<int32_t>& text = demo_text().ids;
  const std::vector<int32_t> ids(text.begin(), text.begin() + 60);
  const std::vector<int32_t> behind(text.rbegin(), text.rend());
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (const bool batch_invariant : {false, true}) {
      const MakeOps make = cuda_ops(dtype, batch_invariant);
      const std::vector<float> alone = prompt_logits(DemoText::kFolder, make(), ids);
      const std::vector<float> together =
          logits_in_company(DemoText::kFolder, make(), ids, text, behind);
      ASSERT_EQ(alone.size(), together.size());
      const Distance found = distance(alone, together, DemoText::kVocab);
      fmt::print("  demo model, {}{}: mean KL {:.2e}, same token {:.1f} %\n",
                 tensor::dtype_name(dtype), batch_invariant ? ", batch-invariant" : "",
                 found.mean_kl, 100 * found.agreement);
      EXPECT_LE(found.mean_kl, 1e-4);
      EXPECT_TRUE(!batch_invariant || alone == together);
    }
  }
}

}  // namespace
}  // namespace rudder::golden
