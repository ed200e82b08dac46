// What must not go wrong between host and device, seen at the device's door (docs/invariants.md):
// nothing is done another way when it cannot be done as asked, a step is one copy to the device,
// block tables there are those of the scheduler, operands meet the weights that they were made for.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "metamorphic/harness.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/low_precision_ops.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

using tensor::DType;
using tensor::View;

// What passed a device's door, and what it is to refuse.
struct Seen {
  std::atomic<int64_t> copies_in = 0;
  std::atomic<int64_t> fp8_products = 0;
  std::atomic<int64_t> other_products = 0;
  std::atomic<int64_t> unpaired = 0;
  View block_table;  // of the slots; a CPU's memory
  bool refuses_shapes = false;
  bool refuses_capture = false;
};

class WatchingOps final : public testing::PassingOps, public ops::GraphOps {
 public:
  WatchingOps(std::unique_ptr<ops::Ops> inner, std::shared_ptr<Seen> seen)
      : PassingOps(std::move(inner)), seen_(std::move(seen)) {}

  std::string name() const override { return inner_->name() + "-watched"; }
  Result<void> prepare(const ops::StepBounds& bounds) override {
    if (seen_->refuses_shapes) {
      return fail(ErrorCode::kUnsupported, "no attention kernel takes head_dim 16", "device");
    }
    return inner_->prepare(bounds);
  }
  void copy_in(const View& device, const View& staging) override {
    ++seen_->copies_in;
    inner_->copy_in(device, staging);
  }
  ops::GraphOps* graph_ops() override { return this_if<ops::GraphOps>(inner_->graph_ops(), this); }
  void begin_capture() override { inner_->graph_ops()->begin_capture(); }
  void replay(ops::Graph& graph) override { inner_->graph_ops()->replay(graph); }
  Result<std::unique_ptr<ops::Graph>> end_capture() override {
    auto graph = inner_->graph_ops()->end_capture();
    if (seen_->refuses_capture) return fail(ErrorCode::kInternal, "nothing was captured", "device");
    return graph;
  }

  void begin_step(const ops::BeginStepArgs& args) override {
    seen_->block_table = args.state.block_table;
    PassingOps::begin_step(args);
  }
  void linear(const ops::LinearArgs& args) override {
    note_product(args.x, args.x_scale, *args.weight);
    PassingOps::linear(args);
  }
  void logits(const ops::LogitsArgs& args) override {
    note_product(args.x, args.x_scale, *args.head);
    PassingOps::logits(args);
  }

 private:
  void note_product(const View& x, const View& scale, const ops::LinearWeight& weight) {
    const bool is_fp8 = x.dtype == DType::kF8E4M3;
    ++(is_fp8 ? seen_->fp8_products : seen_->other_products);
    const bool has_scale = is_fp8 ? scale.num_rows() == x.num_rows() : scale.empty();
    const bool is_paired = is_fp8 == (weight.input == ops::InputForm::kF8Rows);
    if (!is_paired || x.shape[1] != weight.in || !has_scale) ++seen_->unpaired;
  }

  const std::shared_ptr<Seen> seen_;
};

constexpr step::Capacity kCapacity = {.num_slots = 16,
                                      .num_blocks = 60,
                                      .block_size = 16,
                                      .max_tokens_per_step = 2048,
                                      .max_seq_len = 256,
                                      .vocab_size = 160,
                                      .max_in_flight = 2,
                                      .max_repeat = 4};

sched::SchedSettings settings(int32_t in_flight) {
  sched::SchedSettings settings;
  settings.max_num_seqs = 16;
  settings.max_num_batched_tokens = 256;
  settings.max_in_flight = in_flight;
  settings.multi_step = 4;
  return settings;
}

Backend watched(const std::shared_ptr<Seen>& seen, bool taped,
                std::function<std::unique_ptr<ops::Ops>()> make = cpu::make_reference_ops) {
  return {"watched", [=]() -> std::unique_ptr<ops::Ops> {
            auto inner = make();
            if (taped) inner = testing::make_tape_ops(std::move(inner));
            return std::make_unique<WatchingOps>(std::move(inner), seen);
          }};
}

Result<std::unique_ptr<exec::DeviceExecutor>> start(
    const Backend& backend, testing::TinyArch arch = testing::TinyArch::kPreNorm) {
  exec::DeviceExecutor::Model model;
  model.ops = backend.make();
  model.spec = testing::tiny_spec(arch);
  model.weights = testing::random_weights(model.spec, *model.ops, 7).value();
  return start_executor(std::move(model), kCapacity);
}

// A shape without a kernel, a graph that cannot be captured: no start, and the reason in words.
// Nothing else is tried in their place.
TEST(NoFallbacks, WhatIsRefusedDoesNotStart) {
  const auto seen = std::make_shared<Seen>();
  EXPECT_TRUE(start(watched(seen, true)));
  seen->refuses_shapes = true;
  const auto shapes = start(watched(seen, true));
  ASSERT_FALSE(shapes);
  EXPECT_EQ(shapes.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(shapes.error().message, "no attention kernel takes head_dim 16");
  seen->refuses_shapes = false;
  seen->refuses_capture = true;
  const auto capture = start(watched(seen, true));
  ASSERT_FALSE(capture);
  EXPECT_EQ(capture.error().message, "nothing was captured");
}

// Ids, positions, tables, sampling parameters, lists: one buffer, one copy, whatever the step is;
// and none for the further iterations of a repeated one. Tokens of prompts that are scored behind
// the step have a copy of their own, in steps that have some.
TEST(OneUpload, AStepIsOneCopyToTheDevice) {
  for (const bool taped : {false, true}) {
    const auto seen = std::make_shared<Seen>();
    const auto executor = start(watched(seen, taped)).value();
    const int64_t before = seen->copies_in;
    const Outcome outcome = run(*executor, settings(2), random_asks(40, 51, 100));
    EXPECT_GT(outcome.stats.preemptions, 0u);
    EXPECT_GT(outcome.stats.iterations, outcome.stats.steps);
    EXPECT_EQ(outcome.graph_steps > 0, taped);
    EXPECT_GT(outcome.scored_steps, 0);
    EXPECT_EQ(seen->copies_in - before,
              static_cast<int64_t>(outcome.stats.steps) + outcome.scored_steps);
  }
}

// Masks have a copy of their own, in steps that have some.
TEST(OneUpload, AStepWithMasksIsTwo) {
  for (const bool taped : {false, true}) {
    const auto seen = std::make_shared<Seen>();
    const auto executor = start(watched(seen, taped)).value();
    const int64_t before = seen->copies_in;
    std::vector<Ask> asks = random_masked_asks(20, 53, 60);
    for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(20 * i);
    const Outcome outcome = run(*executor, settings(2), asks);
    EXPECT_GT(outcome.constrained_steps, 0);
    EXPECT_LT(outcome.constrained_steps, static_cast<int64_t>(outcome.stats.steps));
    EXPECT_EQ(seen->copies_in - before, static_cast<int64_t>(outcome.stats.steps) +
                                            outcome.scored_steps + outcome.constrained_steps);
  }
}

// Keeps the tables that the plans describe and compares the device's with them after each step.
class TableCheck final : public step::Executor {
 public:
  TableCheck(std::unique_ptr<step::Executor> below, std::shared_ptr<Seen> seen)
      : below_(std::move(below)), seen_(std::move(seen)), tables_(kCapacity.num_slots) {}

  step::Capacity capacity() const override { return below_->capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    for (const step::SlotEdit& edit : plan->slots) table(edit.slot) = edit.blocks;
    for (const step::SeqWork& work : plan->seqs) {
      std::vector<step::GroupTable>& tables = table(work.slot);
      tables.resize(static_cast<size_t>(capacity().kv_groups.size()));
      for (size_t g = 0; g < work.append_blocks.size(); ++g) {
        const step::GroupTable& added = work.append_blocks[g];
        tables[g].insert(tables[g].end(), added.begin(), added.end());
        if (work.tokens == step::TokenSource::kCarry) num_grown += std::ssize(added);
      }
    }
    repeat_ = plan->repeat;
    return below_->launch(std::move(plan));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    return below_->supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    auto result = below_->collect(ticket);
    if (result && result->iteration + 1 == repeat_) compare();
    return result;
  }
  bool ready(step::Ticket ticket) override { return below_->ready(ticket); }

  int64_t num_grown = 0;  // blocks appended while a sequence was decoded
  int64_t num_compared = 0;
  int64_t num_wrong = 0;

 private:
  std::vector<step::GroupTable>& table(step::SlotId slot) {
    return tables_[static_cast<size_t>(slot.value)];
  }
  void compare() {
    for (size_t slot = 0; slot < tables_.size(); ++slot) {
      for (size_t g = 0; g < tables_[slot].size(); ++g) {
        const auto row = static_cast<int64_t>(g * (tables_.size() + 1) + slot);
        const int32_t* device = seen_->block_table.rows(row, 1).as<int32_t>();
        const int32_t layers = capacity().kv_groups[g].layers;
        ++num_compared;
        const bool same = std::ranges::all_of(tables_[slot][g], [&](step::BlockId block) {
          return *device++ == block * layers || block == step::kNoBlock;
        });
        if (!same) ++num_wrong;
      }
    }
  }

  const std::unique_ptr<step::Executor> below_;
  const std::shared_ptr<Seen> seen_;
  std::vector<std::vector<step::GroupTable>> tables_;  // by slot, by KV group
  int32_t repeat_ = 1;
};

// Growth too, where nothing else of a row has changed: there is no detection of changes that could
// miss one.
TEST(BlockTables, TheDevicesAreThoseOfTheScheduler) {
  for (const auto& [taped, arch] :
       {std::pair(false, testing::TinyArch::kPreNorm), std::pair(true, testing::TinyArch::kPreNorm),
        std::pair(true, testing::TinyArch::kSandwich)}) {
    const auto seen = std::make_shared<Seen>();
    TableCheck executor(start(watched(seen, taped), arch).value(), seen);
    const Outcome outcome = run(executor, settings(1), random_asks(40, 52, 160));
    // Windows give back so many blocks that all sequences may fit.
    EXPECT_TRUE(outcome.stats.preemptions > 0 || arch == testing::TinyArch::kSandwich);
    EXPECT_GT(outcome.stats.prefix_hits, 0u);
    EXPECT_GT(executor.num_grown, 50);
    EXPECT_GT(executor.num_compared, 1000);
    EXPECT_EQ(executor.num_wrong, 0);
  }
}

// An operand is made for its product: quantised with a scale a row where the weight wants that, and
// nowhere else.
TEST(Pairings, OperandsMeetTheWeightsTheyWereMadeFor) {
  for (const DType dtype : {DType::kF8E4M3, DType::kBF16}) {
    const auto seen = std::make_shared<Seen>();
    const auto executor =
        start(watched(seen, true, [dtype] {
          return testing::make_low_precision_ops({.linear = dtype, .head = dtype});
        })).value();
    run(*executor, settings(1), random_asks(8, 53, 10));
    EXPECT_EQ(seen->unpaired, 0);
    EXPECT_EQ(seen->fp8_products > 0, dtype == DType::kF8E4M3);
    EXPECT_EQ(seen->other_products > 0, dtype == DType::kBF16);
  }
}

}  // namespace
}  // namespace rudder::metamorphic
