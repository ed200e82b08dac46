// A table of embeddings by layer in memory of the host: the numbers are those of one on the device,
// bit for bit, and the memory budget says where it lies.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "rudder/cpu/fast_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder {
namespace {

using tensor::DType;

// Rows, layers, width of a layer's row, of the golden model with such a table.
constexpr int64_t kNumbers = int64_t{256} * 6 * 24;

std::shared_ptr<const weights::Checkpoint> golden(const std::string& name) {
  return weights::Checkpoint::open_folder(std::string(RUDDER_SOURCE_DIR) + "/tests/golden/" + name)
      .value();
}

std::unique_ptr<ops::Ops> fast(DType dtype) {
  return cpu::make_cpu_ops({.dtype = dtype, .num_threads = 1, .isa = {}}).value();
}
// A backend that is not the host, as far as it tells.
class DeviceOps final : public testing::PassingOps {
 public:
  DeviceOps() : PassingOps(fast(DType::kBF16)) {}
  bool is_host() const override { return false; }
};
std::unique_ptr<ops::Ops> away() {
  return std::make_unique<DeviceOps>();
}

exec::ExecSettings settings_of(const std::string& where) {
  exec::ExecSettings settings;
  settings.max_model_len = 160;
  settings.kv_cache_memory_bytes = 8 << 20;
  settings.quantization.layer_embeddings = where;
  return settings;
}
const exec::StepLimits kLimits = {.max_num_seqs = 1, .max_num_batched_tokens = 128};

struct Got {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
};

// Of one step over a prompt: what it samples, and how likely the likeliest are.
Got step_of(std::unique_ptr<ops::Ops> ops, const std::string& where) {
  auto loaded =
      exec::load_model(*golden("gemma4-small"), std::move(ops), settings_of(where), kLimits, {});
  EXPECT_TRUE(loaded) << loaded.error().to_string();
  step::Executor& executor = *loaded->executor;
  step::StepPlan plan;
  plan.id = 1;
  for (int32_t i = 0; i < 100; ++i) plan.tokens.push_back(3 + (i * 37) % 240);
  step::SlotEdit& edit = plan.slots.emplace_back();
  edit.generation = 1;
  edit.sampling.temperature = 0;
  edit.sampling.num_logprobs = step::kMaxLogprobs;
  edit.prompt_len = 100;
  edit.max_len = 120;
  edit.blocks.resize(static_cast<size_t>(executor.capacity().kv_groups.size()));
  int32_t next = 0;
  for (auto& blocks : edit.blocks) {
    for (int32_t b = 0; b < 8; ++b) blocks.push_back(next++);
  }
  step::SeqWork& work = plan.seqs.emplace_back();
  work.generation = 1;
  work.q_len = 100;
  work.logits = step::LogitsWanted::kLast;
  const auto ticket =
      executor.launch(std::make_shared<const step::StepPlan>(std::move(plan))).value();
  const step::StepResult result = executor.collect(ticket).value();
  const step::SeqResult& seq = result.seqs.at(0);
  Got got{.tokens = seq.tokens, .logprobs = {}};
  for (const auto& of_token : seq.logprobs) {
    for (const auto& top : of_token.top) got.logprobs.push_back(top.second);
  }
  return got;
}

TEST(LayerEmbeddings, OnTheHostTheNumbersAreTheSame) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Got device = step_of(fast(dtype), "device");
    const Got host = step_of(fast(dtype), "host");
    EXPECT_EQ(device.tokens, host.tokens);
    EXPECT_GE(device.logprobs.size(), 10u);
    EXPECT_EQ(device.logprobs, host.logprobs);
  }
  EXPECT_EQ(step_of(away(), "device").logprobs, step_of(away(), "host").logprobs);
}

exec::MemoryBudget budget_of(std::unique_ptr<ops::Ops> ops, const std::string& where) {
  std::vector<exec::Ranks> replicas(1);
  replicas.front().push_back(std::move(ops));
  return exec::budget_model(*golden("gemma4-small"), replicas, settings_of(where), kLimits).value();
}

TEST(LayerEmbeddings, TheBudgetSaysWhereTheTableLies) {
  const exec::MemoryBudget device = budget_of(away(), "device");
  const exec::MemoryBudget host = budget_of(away(), "host");
  EXPECT_EQ(host.weights.host_bytes, 2 * kNumbers);
  EXPECT_EQ(device.weights.host_bytes, 0);
  EXPECT_EQ(device.weights.bytes, host.weights.bytes + host.weights.host_bytes);
  EXPECT_NE(host.to_table().find("host memory"), std::string::npos) << host.to_table();
  EXPECT_EQ(device.to_table().find("host memory"), std::string::npos);
  // Of a device that is the host nothing is saved.
  EXPECT_EQ(budget_of(fast(DType::kBF16), "host").weights.bytes,
            budget_of(fast(DType::kBF16), "device").weights.bytes);
}

TEST(LayerEmbeddings, AModelWithoutThemIsRefused) {
  const auto refused =
      exec::load_model(*golden("gemma4"), fast(DType::kF32), settings_of("host"), kLimits, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "layer-embeddings");
}

}  // namespace
}  // namespace rudder
