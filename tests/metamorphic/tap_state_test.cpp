// The executor's side of taps below the step: staging memory, leases, the table and its bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>

#include "rudder/base/check.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/exec/capture_pool.h"
#include "rudder/exec/pack_taps.h"
#include "rudder/exec/tap_limits.h"
#include "rudder/exec/tap_state.h"
#include "rudder/exec/upload_ring.h"
#include "rudder/testing/async_ops.h"

namespace rudder::exec {
namespace {

using ops::View;
using tap::Point;
using tap::Site;
using tensor::DType;

void drain(ops::Ops& ops) {
  const auto done = ops.make_event();
  ops.record(*done);
  ASSERT_TRUE(done->wait());
}

TEST(UploadRing, CopiesOfAnyLengthArriveWhole) {
  const auto ops = testing::make_async_ops(cpu::make_reference_ops());
  const auto ring = UploadRing::make(*ops, 64).value();
  const View device = ops->allocate(DType::kU8, {1000}).value();
  std::vector<uint8_t> bytes(1000);
  std::iota(bytes.begin(), bytes.end(), uint8_t{1});
  std::vector<uint8_t> source = bytes;
  int64_t begin = 0;
  for (const int64_t count : {1, 15, 16, 17, 0, 64, 65, 300, 522}) {
    std::vector<uint8_t> from(source.begin() + begin, source.begin() + begin + count);
    ASSERT_TRUE(ring->copy(device.rows(begin, count), from.data()));
    std::ranges::fill(from, uint8_t{0});  // it is ours again
    begin += count;
  }
  ASSERT_EQ(begin, 1000);
  drain(*ops);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), device.as<uint8_t>()));
}

TEST(CapturePool, LeasesDoNotOverlapAndComeBack) {
  const auto ops = cpu::make_reference_ops();
  const auto pool = CapturePool::make(*ops, 1 << 14).value();
  std::mt19937 engine(1);
  std::vector<CapturePool::Lease> held;
  int64_t num_refused = 0;
  for (int round = 0; round < 5000; ++round) {
    if (!held.empty() && engine() % 2 == 0) {
      std::swap(held[engine() % held.size()], held.back());
      held.pop_back();
      continue;
    }
    CapturePool::Lease lease = pool->take(1 + engine() % 2000);
    if (lease.lease == nullptr) {
      ++num_refused;
      continue;
    }
    const auto* begin = lease.memory.as<std::byte>();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % 64, 0u);
    for (const CapturePool::Lease& other : held) {
      const auto* from = other.memory.as<std::byte>();
      EXPECT_TRUE(begin + lease.memory.bytes() <= from || from + other.memory.bytes() <= begin);
    }
    held.push_back(std::move(lease));
  }
  EXPECT_GT(num_refused, 0);
  held.clear();
  EXPECT_NE(pool->take(1 << 14).lease, nullptr);  // in one piece again
  EXPECT_EQ(pool->take((1 << 14) + 1).lease, nullptr);
}

TEST(CapturePool, ALeaseOutlivesThePool) {
  const auto ops = cpu::make_reference_ops();
  auto pool = CapturePool::make(*ops, 1024).value();
  CapturePool::Lease lease = pool->take(100);
  pool.reset();
  lease.memory.as<uint8_t>()[99] = 1;
  lease.lease.reset();
}

tap::PassageSet tapped_at(const std::vector<Point>& points) {
  tap::PassageSet set;
  for (const Point& point : points) set.add(point);
  return set;
}

step::Capacity capacity() {
  step::Capacity capacity{.num_slots = 4,
                          .num_blocks = 10,
                          .block_size = 4,
                          .max_tokens_per_step = 16,
                          .max_seq_len = 24,
                          .vocab_size = 50,
                          .max_in_flight = 2};
  capacity.geometry.num_layers = 2;
  capacity.geometry.hidden = 32;
  capacity.geometry.mlp_width = {48, 48};
  capacity.geometry.heads = {{2, 20}, {4, 8}};
  capacity.geometry.sites = {tap::dense_sites_but(tap::Site::kFinalNorm), tap::kDenseSites};
  capacity.geometry.dtype = DType::kF32;
  capacity.taps = {.num_rows = 4,
                   .num_ops = 8,
                   .num_floats = 256,
                   .num_capture_sets = 2,
                   .capture_elements = 10 * 64};
  return capacity;
}

// A failed check throws, so that tests see it.
class TapStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_check_hook([](const std::string& message) { throw std::logic_error(message); });
  }
  void TearDown() override { set_check_hook(nullptr); }

  static std::shared_ptr<const tap::Program> program_at(std::vector<Point> points,
                                                        tap::OpKind kind = tap::OpKind::kAdd) {
    auto program = std::make_shared<tap::Program>();
    for (const Point point : points) {
      tap::TapOp op;
      op.kind = kind;
      op.v1 = static_cast<int32_t>(program->vectors.size());
      program->vectors.resize(program->vectors.size() + 48, static_cast<float>(points.size()));
      program->ops.push_back({point, op});
    }
    return program;
  }
  static std::shared_ptr<const tap::CaptureSet> set_of(std::vector<tap::CapturePoint> points) {
    return std::make_shared<const tap::CaptureSet>(tap::CaptureSet{std::move(points)});
  }
  static step::SlotEdit slot(int32_t id, uint32_t generation, int32_t prompt_len) {
    step::SlotEdit edit;
    edit.slot = step::SlotId(id);
    edit.generation = generation;
    edit.max_len = 20;
    edit.prompt_len = prompt_len;
    edit.blocks = {{2 * id, 2 * id + 1}};
    return edit;
  }
  static step::SeqWork work(int32_t id, uint32_t generation, int32_t kv_len, int32_t q_len) {
    step::SeqWork work;
    work.slot = step::SlotId(id);
    work.generation = generation;
    work.kv_len = kv_len;
    work.q_len = q_len;
    work.logits = step::LogitsWanted::kLast;
    return work;
  }

  void pack(step::StepPlan plan, size_t index = 0) {
    plan.id = ++last_step_;
    plan.tokens.resize(16, 1);
    SlotEdits edits;
    for (const step::SlotEdit& edit : plan.slots) slots_.apply(edit, plan.id, edits);
    for (const step::SeqWork& work : plan.seqs) slots_.begin_sequence(work, plan, edits);
    ASSERT_TRUE(state_->apply(plan));
    pack_taps(plan, slots_, index, state_.get(), packed_);
    drain(*ops_);
  }
  const ops::TapEntry& entry_of(int32_t row, int32_t point) const {
    const View& points = state_->table().points;
    return static_cast<const ops::TapEntry*>(points.data)[row * points.shape[1] + point];
  }

  const std::unique_ptr<ops::Ops> ops_ = testing::make_async_ops(cpu::make_reference_ops());
  const std::unique_ptr<TapState> state_ = TapState::make(*ops_, capacity()).value();
  SlotTable slots_{capacity()};
  PackedTaps packed_;
  step::StepId last_step_ = 0;
};

TEST_F(TapStateTest, AProgramLandsWhereTheEditSays) {
  const Point first{0, Site::kResidPost};
  const Point second{1, Site::kMlpAct};
  pack({.slots = {},
        .seqs = {},
        .tokens = {},
        .tap_edits = {{2, 3, 64, program_at({first, first, second})}}});
  const ops::TapTable& table = state_->table();
  for (int32_t point = 0; point < 18; ++point) {
    const int32_t expected = point == first.index()    ? (3 << 8 | 2)
                             : point == second.index() ? (5 << 8 | 1)
                                                       : 0;
    const ops::TapEntry& entry = entry_of(2, point);
    EXPECT_EQ(entry.ops, expected) << point;
    EXPECT_EQ(entry.flags, expected != 0 ? ops::TapEntry::kPlainAdd : 0) << point;
    if (expected == 0) continue;
    EXPECT_EQ(entry.vector, point == first.index() ? 64 : 64 + 2 * 48);
    EXPECT_EQ(entry.strength, 1.0f);
  }
  const auto* ops = static_cast<const tap::TapOp*>(table.ops.data);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ops[3 + i].v1, 64 + 48 * i);
    EXPECT_EQ(ops[3 + i].v2, tap::kNoVector);
    EXPECT_EQ(table.vectors.as<float>()[ops[3 + i].v1], 3.0f);
  }
  EXPECT_FALSE(packed_.is_used);
  EXPECT_FALSE(state_->only_adds(2));  // two at a point
  // Another program in its place, and none.
  pack({.slots = {}, .seqs = {}, .tokens = {}, .tap_edits = {{2, 0, 0, program_at({second})}}});
  EXPECT_EQ(entry_of(2, first.index()).ops, 0);
  EXPECT_EQ(entry_of(2, second.index()).num_ops(), 1);
  EXPECT_EQ(state_->tapped_by_row(2), tapped_at({second}));
  EXPECT_FALSE(state_->only_adds(2));  // not to the residual
  const Point residual{1, Site::kResidMid};
  pack({.slots = {}, .seqs = {}, .tokens = {}, .tap_edits = {{2, 0, 0, program_at({residual})}}});
  EXPECT_TRUE(state_->only_adds(2));
  pack({.slots = {}, .seqs = {}, .tokens = {}, .tap_edits = {{2, 0, 0, nullptr}}});
  EXPECT_EQ(entry_of(2, second.index()).ops, 0);
  EXPECT_EQ(state_->tapped_by_row(2), tap::PassageSet());
}

std::shared_ptr<const tap::Program> features_of(const std::vector<int32_t>& runs) {
  auto program = std::make_shared<tap::Program>();
  program->vectors.resize(32);
  for (const int32_t run : runs) {
    tap::TapOp op;
    op.kind = tap::OpKind::kFeature;
    op.v1 = op.v2 = 0;
    op.run = run;
    program->ops.push_back({{0, Site::kResidPost}, op});
  }
  return program;
}

TEST_F(TapStateTest, RunsOfFeaturesAreWhole) {
  const auto apply = [&](const std::vector<int32_t>& runs) {
    step::StepPlan plan;
    plan.tap_edits = {{1, 0, 0, features_of(runs)}};
    return state_->apply(plan);
  };
  for (const std::vector<int32_t>& runs :
       {std::vector{1}, std::vector{2, 0}, std::vector{1, 1}, std::vector{3, 0, 0, 1}}) {
    EXPECT_TRUE(apply(runs));
  }
  for (const std::vector<int32_t>& runs :
       {std::vector{0}, std::vector{2}, std::vector{1, 0}, std::vector{2, 1}, std::vector{-1}}) {
    EXPECT_THROW(static_cast<void>(apply(runs)), std::logic_error);
  }
}

TEST_F(TapStateTest, FeaturesReadOrWriteAndNameARelay) {
  const auto apply = [&](int32_t v1, int32_t v2, int32_t relay) {
    auto program = std::make_shared<tap::Program>(*features_of({1}));
    tap::TapOp& op = program->ops[0].op;
    op.v1 = v1;
    op.v2 = v2;
    op.relay = relay;
    step::StepPlan plan;
    plan.tap_edits = {{1, 0, 0, std::move(program)}};
    return state_->apply(plan);
  };
  constexpr int32_t kNone = tap::kNoVector;
  EXPECT_TRUE(apply(0, 0, 0));
  EXPECT_TRUE(apply(kNone, 0, tap::kNumRelays - 1));
  EXPECT_TRUE(apply(0, kNone, tap::kNumRelays - 1));
  EXPECT_THROW(static_cast<void>(apply(kNone, kNone, 0)), std::logic_error);
  EXPECT_THROW(static_cast<void>(apply(kNone, 0, tap::kNumRelays)), std::logic_error);
  EXPECT_THROW(static_cast<void>(apply(0, kNone, -1)), std::logic_error);
}

TEST_F(TapStateTest, TokensGetTheirRowsAndPlacesInTheRing) {
  step::SeqWork prompt = work(0, 1, 0, 5);
  prompt.tap_row = 1;
  prompt.tap_spans = {{2, 0}, {4, 3}};
  prompt.capture_set = 1;
  prompt.captures = {{1, 1}, {3, 2}};
  step::SeqWork plain = work(2, 1, 0, 2);
  pack({.slots = {slot(0, 1, 4), slot(2, 1, 2)},
        .seqs = {prompt, plain},
        .tokens = {},
        .tap_edits = {{1, 0, 0, program_at({{0, Site::kMlpAct}})},
                      {3, 2, 64, program_at({{1, Site::kMlpAct}}, tap::OpKind::kScore)}},
        .capture_edits = {{1, set_of({{{0, Site::kAttnIn}, true}, {{1, Site::kAttnIn}, false}})}}},
       1);
  using Ints = std::vector<int32_t>;
  EXPECT_TRUE(packed_.is_used);
  EXPECT_EQ(
      packed_.tapped,
      tapped_at({{0, Site::kMlpAct}, {1, Site::kMlpAct}, {0, Site::kAttnIn}, {1, Site::kAttnIn}}));
  EXPECT_FALSE(packed_.only_adds);  // a score, and other sites
  EXPECT_FALSE(state_->only_adds(3));
  EXPECT_EQ(packed_.row, (Ints{1, 1, 0, 0, 3, 0, 0}));
  EXPECT_EQ(packed_.since_prompt, (Ints{-4, -3, -2, -1, 0, -2, -1}));
  EXPECT_EQ(packed_.slot, (Ints{0, 0, 0, 0, 0, 2, 2}));
  EXPECT_EQ(packed_.capture_set, (Ints{-1, 1, -1, 1, 1, -1, -1}));
  EXPECT_EQ(packed_.capture_begin, (Ints{0, 10, 0, 12, 14, 0, 0}));  // of the second part
  EXPECT_EQ(packed_.token, (Ints{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(packed_.capture_elements, 3 * 2 * 64);
  ASSERT_EQ(packed_.captured.size(), 3u);
  EXPECT_EQ(packed_.captured[1].position, 3);
  EXPECT_EQ(packed_.captured[1].begin, 2 * 64);
  // The only score behind the last attention is in the row whose logits are wanted.
  EXPECT_FALSE(packed_.keep_all_rows);
  pad_taps(9, 4, packed_);
  EXPECT_EQ(packed_.slot.back(), 4);
  EXPECT_EQ(packed_.row.back(), 0);
  EXPECT_EQ(packed_.capture_set.back(), -1);

  step::SeqWork scored = work(1, 1, 0, 3);
  scored.tap_row = 3;
  pack({.slots = {slot(1, 1, 3)}, .seqs = {scored}, .tokens = {}});
  EXPECT_TRUE(packed_.keep_all_rows);
  // Behind the last attention, and not the last token.
  step::SeqWork captured = work(3, 1, 0, 3);
  captured.capture_set = 0;
  captured.captures = {{2, 1}};
  const step::CaptureEdit late = {0, set_of({{{1, Site::kAttnOut}, false}})};
  pack({.slots = {slot(3, 1, 3)}, .seqs = {captured}, .tokens = {}, .capture_edits = {late}});
  EXPECT_FALSE(packed_.keep_all_rows);
  captured = work(3, 1, 3, 2);
  captured.capture_set = 0;
  captured.captures = {{0, 2}};
  pack({.slots = {}, .seqs = {captured}, .tokens = {}});
  EXPECT_TRUE(packed_.keep_all_rows);
}

TEST_F(TapStateTest, OpeningASlotEmptiesItsLatches) {
  const ops::TapTable& table = state_->table();
  std::fill_n(table.latches.as<int64_t>(), table.latches.shape.numel(), int64_t{5});
  step::SeqWork scored = work(1, 1, 0, 3);
  scored.tap_row = 1;
  pack({.slots = {slot(0, 1, 3), slot(1, 1, 3)},
        .seqs = {scored},
        .tokens = {},
        .tap_edits = {{1, 0, 0, program_at({{0, Site::kResidPre}}, tap::OpKind::kScore)}}});
  EXPECT_EQ(table.latches.as<int64_t>()[8], 5);
  pack({.slots = {slot(0, 2, 3), slot(1, 2, 3)}, .seqs = {}, .tokens = {}});
  for (int64_t i = 0; i < table.latches.shape.numel(); ++i) {
    EXPECT_EQ(table.latches.as<int64_t>()[i], i / 8 == 1 ? 0 : 5) << i;
  }
}

TEST_F(TapStateTest, RefusesPlansThatBreakTheContract) {
  const auto refused = [&](step::StepPlan plan) {
    EXPECT_THROW(pack(std::move(plan)), std::logic_error);
  };
  const auto edit_refused = [&](const step::TapEdit& edit) {
    refused({.slots = {}, .seqs = {}, .tokens = {}, .tap_edits = {edit}});
  };
  const auto program = program_at({{0, Site::kResidPost}});
  edit_refused({0, 0, 0, program});    // the identity
  edit_refused({4, 0, 0, program});    // no row
  edit_refused({1, 8, 0, program});    // no op
  edit_refused({1, 0, 8, program});    // not aligned
  edit_refused({1, 0, 224, program});  // too many floats
  edit_refused({1, 0, 0, program_at({{2, Site::kResidPost}})});
  edit_refused({1, 0, 0, program_at({{0, Site::kFinalNorm}})});
  edit_refused({1, 0, 0, program_at({{1, Site::kResidPost}, {0, Site::kResidPost}})});
  auto cut = std::make_shared<tap::Program>(*program);
  cut->vectors.resize(31);
  edit_refused({1, 0, 0, cut});

  uint32_t generation = 0;
  const auto work_refused = [&](auto change) {
    step::SeqWork sequence = work(0, ++generation, 0, 4);
    change(sequence);
    refused({.slots = {slot(0, generation, 4)},
             .seqs = {sequence},
             .tokens = {},
             .capture_edits = {{0, set_of({{{0, Site::kAttnIn}, false}})}}});
  };
  work_refused([](step::SeqWork& sequence) { sequence.tap_row = 4; });
  work_refused([](step::SeqWork& sequence) { sequence.tap_row = -1; });
  work_refused([](step::SeqWork& sequence) { sequence.tap_spans = {{4, 1}}; });
  work_refused([](step::SeqWork& sequence) { sequence.tap_spans = {{2, 1}, {1, 2}}; });
  work_refused([](step::SeqWork& sequence) { sequence.captures = {{0, 1}}; });  // of no set
  const auto capture_refused = [&](int32_t set, std::vector<step::CaptureSpan> spans) {
    work_refused([&](step::SeqWork& sequence) {
      sequence.capture_set = set;
      sequence.captures = std::move(spans);
    });
  };
  capture_refused(1, {{0, 1}});  // an empty one
  capture_refused(2, {{0, 1}});
  capture_refused(0, {{3, 2}});
  capture_refused(0, {{1, 2}, {2, 1}});
  const auto wide = set_of(
      {{{0, Site::kAttnIn}, false}, {{0, Site::kAttnIn}, true}, {{1, Site::kAttnIn}, false}});
  step::SeqWork sequence = work(0, ++generation, 0, 4);
  sequence.capture_set = 0;
  sequence.captures = {{0, 4}};
  refused({.slots = {slot(0, generation, 4)},
           .seqs = {sequence},
           .tokens = {},
           .capture_edits = {{0, wide}}});  // more than a step has room for
}

TEST(TapLimits, NothingAskedForIsNothing) {
  const auto limits = tap_limits({.max_num_seqs = 8, .max_in_flight = 2}, capacity().geometry);
  ASSERT_TRUE(limits);
  EXPECT_FALSE(limits->steering());
  EXPECT_FALSE(limits->capture());
  EXPECT_EQ(limits->num_floats + limits->num_ops + limits->capture_elements, 0);
  step::Capacity none = capacity();
  none.taps = *limits;
  EXPECT_EQ(TapState::device_bytes(none), 0);
}

TEST(TapLimits, WhatIsTooSmallNamesItsSetting) {
  tap::Geometry geometry = capacity().geometry;
  geometry.hidden = 1 << 20;
  TapAsk ask{.enable_steering = true,
             .max_steering_rows = 4,
             .steering_bytes = 1 << 20,
             .capture_bytes = 0,
             .max_num_seqs = 8,
             .max_in_flight = 2};
  auto limits = tap_limits(ask, geometry);
  ASSERT_FALSE(limits);
  EXPECT_EQ(limits.error().where, "steering-memory-mb");
  ask.steering_bytes = 0;
  limits = tap_limits(ask, geometry);
  ASSERT_TRUE(limits);
  EXPECT_EQ(limits->num_rows, 5);
  EXPECT_GE(limits->num_floats, int64_t{1} << 20);
  ask.capture_bytes = 1 << 20;
  limits = tap_limits(ask, geometry);
  ASSERT_FALSE(limits);
  EXPECT_EQ(limits.error().where, "capture-memory-mb");
  ask.capture_bytes = int64_t{64} << 20;
  limits = tap_limits(ask, geometry);
  ASSERT_TRUE(limits);
  EXPECT_EQ(limits->capture_elements % tap::kCaptureAlign, 0);
  EXPECT_LE(limits->capture_elements * 4 * 2, ask.capture_bytes);
}

}  // namespace
}  // namespace rudder::exec
