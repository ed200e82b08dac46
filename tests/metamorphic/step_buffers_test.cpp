#include "rudder/exec/step_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "rudder/cpu/reference_ops.h"
#include "rudder/testing/async_ops.h"

namespace rudder::exec {
namespace {

constexpr step::Capacity kCapacity = {.num_slots = 3,
                                      .num_blocks = 40,
                                      .block_size = 4,
                                      .max_tokens_per_step = 8,
                                      .max_seq_len = 16,
                                      .vocab_size = 50,
                                      .max_in_flight = 2,
                                      .max_repeat = 4};

// On a device that lags behind; its memory is a CPU's, which is read through its views.
class StepBuffersTest : public ::testing::Test {
 protected:
  DeviceStep begin(step::StepPlan plan, size_t index = 0) {
    plan.id = ++last_step_;
    pack_step(plan, kCapacity, slots_, packed_);
    const DeviceStep step = buffers_->begin(packed_, index).value();
    const auto done = ops_->make_event();
    ops_->record(*done);
    EXPECT_TRUE(done->wait());
    return step;
  }

  template <typename T>
  static std::vector<T> values(const tensor::View& view) {
    return {view.as<T>(), view.as<T>() + view.shape.numel()};
  }
  using Ints = std::vector<int32_t>;
  static Ints ints(const tensor::View& view) { return values<int32_t>(view); }

  static step::SlotEdit edit(int32_t slot, uint32_t generation) {
    step::SlotEdit edit;
    edit.slot = step::SlotId(slot);
    edit.generation = generation;
    edit.max_len = 16;
    return edit;
  }
  static step::SeqWork sequence(int32_t slot, uint32_t generation, int32_t kv_len, int32_t q_len,
                                std::vector<step::BlockId> blocks) {
    step::SeqWork work;
    work.slot = step::SlotId(slot);
    work.generation = generation;
    work.kv_len = kv_len;
    work.q_len = q_len;
    work.logits = step::LogitsWanted::kLast;
    if (!blocks.empty()) work.append_blocks = {std::move(blocks)};
    return work;
  }

  const std::unique_ptr<ops::Ops> ops_ = testing::make_async_ops(cpu::make_reference_ops());
  const std::unique_ptr<StepBuffers> buffers_ = StepBuffers::make(*ops_, kCapacity).value();
  SlotTable slots_{kCapacity};
  PackedStep packed_;
  step::StepId last_step_ = 0;
};

TEST_F(StepBuffersTest, TheDeviceSeesThePackedStep) {
  step::SlotEdit open = edit(2, 1);
  open.sampling.stop_ids = {7, 8};
  const DeviceStep step = begin({.slots = {edit(0, 1), open},
                                 .seqs = {sequence(0, 1, 0, 3, {9}), sequence(2, 1, 0, 5, {4, 6})},
                                 .tokens = {1, 2, 3, 4, 5}});
  EXPECT_EQ(ints(step.forward.ids), (Ints{1, 2, 3, 1, 2, 3, 4, 5}));
  EXPECT_EQ(ints(step.forward.positions), (Ints{0, 1, 2, 0, 1, 2, 3, 4}));
  EXPECT_EQ(ints(step.forward.kv_slot), (Ints{36, 37, 38, 16, 17, 18, 19, 24}));
  EXPECT_EQ(ints(step.forward.attention.q_begin), (Ints{0, 3, 8}));
  EXPECT_EQ(ints(step.forward.attention.kv_len), (Ints{3, 5}));
  EXPECT_EQ(ints(step.forward.attention.table_row), (Ints{0, 2}));
  EXPECT_EQ(ints(step.forward.logits_rows), (Ints{2, 7}));
  const tensor::View& table = step.forward.attention.block_table;
  EXPECT_EQ(ints(table.rows(0, 1))[0], 9);
  EXPECT_EQ(ints(table.rows(2, 1)), (Ints{4, 6, 0, 0}));
  const auto* rows = static_cast<const ops::SampleRow*>(step.sample.rows.data);
  EXPECT_EQ(rows[1].slot, 2);
  EXPECT_EQ(rows[1].num_stop_ids, 2);
  EXPECT_EQ(ints(step.sample.lists)[static_cast<size_t>(rows[1].stop_begin) + 1], 8);
  EXPECT_EQ(ints(step.sample.state.carry.rows(2, 1)), (Ints{-1}));
}

TEST_F(StepBuffersTest, CarriedTokensAreTheDevices) {
  const DeviceStep first = begin({.slots = {edit(0, 1), edit(1, 1)},
                                  .seqs = {sequence(0, 1, 0, 1, {3}), sequence(1, 1, 0, 1, {4})},
                                  .tokens = {5}});
  const ops::SlotState& state = first.sample.state;
  state.carry.as<int32_t>()[0] = 41;
  state.carry.as<int32_t>()[1] = 42;
  state.ended.as<int32_t>()[1] = 1;
  std::vector<step::SeqWork> decodes = {sequence(0, 1, 1, 1, {}), sequence(1, 1, 1, 1, {})};
  for (step::SeqWork& work : decodes) work.tokens = step::TokenSource::kCarry;
  const DeviceStep second = begin({.slots = {}, .seqs = decodes, .tokens = {}}, 1);
  EXPECT_EQ(ints(second.forward.ids), (Ints{41, 42}));
  EXPECT_EQ(ints(second.forward.kv_slot), (Ints{13, -1}));  // slot 1 has ended
}

TEST_F(StepBuffersTest, TheNextIterationIsMadeOnTheDevice) {
  step::SlotEdit open = edit(0, 1);
  open.sampling.min_tokens = 3;
  DeviceStep step = begin({.slots = {open, edit(1, 1)},
                           .seqs = {sequence(0, 1, 0, 1, {3, 5}), sequence(1, 1, 0, 1, {4})},
                           .tokens = {5}});
  const ops::SlotState& state = step.sample.state;
  const auto advance = [&](int32_t token) {
    state.carry.as<int32_t>()[0] = token;
    buffers_->advance(step);
    const auto done = ops_->make_event();
    ops_->record(*done);
    EXPECT_TRUE(done->wait());
  };
  state.ended.as<int32_t>()[1] = 1;
  for (int32_t i = 1; i <= 4; ++i) {
    advance(40 + i);
    EXPECT_EQ(ints(step.forward.ids)[0], 40 + i);
    EXPECT_EQ(ints(step.forward.positions), (Ints{i, 0}));
    EXPECT_EQ(ints(step.forward.kv_slot), (Ints{i < 4 ? 12 + i : 20, -1}));  // slot 1 has ended
    EXPECT_EQ(ints(step.forward.attention.kv_len), (Ints{i + 1, 1}));
    EXPECT_EQ(step.forward.attention.max_kv_len, i + 1);
    const auto* rows = static_cast<const ops::SampleRow*>(step.sample.rows.data);
    EXPECT_EQ(rows[0].position, i + 1);
    EXPECT_EQ(rows[0].stop_from, 3);
    EXPECT_EQ(rows[1].position, 1);
  }
}

// Three slots are opened with as much history and as many blocks as there may be: more than one
// part of either.
TEST_F(StepBuffersTest, LongListsGoInSeveralParts) {
  step::StepPlan plan;
  Ints expected_count(50);
  for (int32_t slot = 0; slot < 3; ++slot) {
    step::SlotEdit open = edit(slot, 1);
    open.sampling.presence_penalty = 1;
    open.blocks = {{4 * slot, 4 * slot + 1, 4 * slot + 2, 4 * slot + 3}};
    for (int32_t i = 0; i < 15; ++i) open.history.push_back((slot + i * i) % 50);
    open.history_prompt_len = 5;
    open.num_output = 10;
    plan.slots.push_back(open);
  }
  plan.seqs = {sequence(1, 1, 14, 1, {})};
  plan.tokens = {9};
  const DeviceStep step = begin(plan);
  EXPECT_EQ(ints(step.forward.ids), (Ints{9}));
  for (int32_t slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(ints(step.forward.attention.block_table.rows(slot, 1)),
              (Ints{4 * slot, 4 * slot + 1, 4 * slot + 2, 4 * slot + 3}));
    Ints count(50);
    std::vector<uint8_t> seen(50);
    for (int32_t i = 0; i < 15; ++i) {
      const auto token = static_cast<size_t>((slot + i * i) % 50);
      if (i < 5) seen[token] = 1;
      if (i >= 5) ++count[token];
    }
    EXPECT_EQ(ints(step.sample.state.output_count.rows(slot, 1)), count);
    EXPECT_EQ(values<uint8_t>(step.sample.state.prompt_seen.rows(slot, 1)), seen);
  }
}

// The tokens to look up of slots without penalties, more than one part of them.
TEST_F(StepBuffersTest, TokensToLookUpGoInSeveralParts) {
  step::Capacity capacity = kCapacity;
  capacity.num_slots = 4;
  capacity.drafts.max_draft = 2;
  capacity.drafts.guesses = capacity.drafts.guesses_from_rows = true;
  capacity.drafts.keeps_guesses = true;
  capacity.drafts.look_up = {.min_n = 1, .max_n = 2};
  const auto buffers = StepBuffers::make(*ops_, capacity).value();
  SlotTable slots(capacity);
  step::StepPlan plan;
  plan.id = 1;
  for (int32_t slot = 0; slot < 4; ++slot) {
    step::SlotEdit open = edit(slot, 1);
    for (int32_t i = 0; i < 15; ++i) open.history.push_back((slot + i * i) % 50);
    open.prompt_len = open.history_prompt_len = 15;
    plan.slots.push_back(open);
  }
  pack_step(plan, capacity, slots, packed_);
  const DeviceStep step = buffers->begin(packed_, 0).value();
  const auto done = ops_->make_event();
  ops_->record(*done);
  ASSERT_TRUE(done->wait());
  EXPECT_TRUE(step.look_up.empty());  // nothing is sampled
  for (int32_t slot = 0; slot < 4; ++slot) {
    Ints history = ints(step.sample.state.history.rows(slot, 1));
    history.resize(15);
    EXPECT_EQ(history, plan.slots[static_cast<size_t>(slot)].history);
  }
}

TEST_F(StepBuffersTest, AStepCanOpenSlotsAndRunNothing) {
  const DeviceStep step = begin({.slots = {edit(1, 1)}, .seqs = {}, .tokens = {}});
  EXPECT_EQ(step.forward.ids.num_rows(), 0);
  EXPECT_EQ(ints(step.sample.state.carry.rows(1, 1)), (Ints{-1}));
}

TEST_F(StepBuffersTest, DeviceBytesAreKnownBefore) {
  const DeviceStep step = begin({.slots = {edit(0, 1)}, .seqs = {}, .tokens = {}});
  const ops::SlotState& state = step.sample.state;
  const size_t kept = state.carry.bytes() + state.ended.bytes() + state.block_table.bytes() +
                      state.output_count.bytes() + state.prompt_seen.bytes();
  EXPECT_EQ(kept, 4u * (4 + 4 + 4 * 4 + 50 * 5));
  EXPECT_GT(StepBuffers::device_bytes(kCapacity), static_cast<int64_t>(kept));
}

}  // namespace
}  // namespace rudder::exec
