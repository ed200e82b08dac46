// What requests may name, and for how long.
#include "rudder/steer/program_table.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace rudder::steer {
namespace {

tap::Limits table_limits() {
  return {.num_rows = 3, .num_ops = 8, .num_floats = 8 * tap::kVectorAlign};
}

std::shared_ptr<const tap::Program> one_op() {
  tap::Program program;
  program.ops.emplace_back();
  program.vectors.resize(static_cast<size_t>(tap::kVectorAlign));
  return std::make_shared<const tap::Program>(std::move(program));
}

// A segment a key; key 0 is no program.
tap::SequenceTaps taps_with(const std::vector<uint64_t>& keys) {
  tap::SequenceTaps taps;
  for (const uint64_t key : keys) {
    const auto begin = static_cast<int32_t>(taps.segments.size());
    taps.segments.push_back({begin, {key, 0}, key == 0 ? nullptr : one_op()});
  }
  return taps;
}

TEST(ProgramTable, ASpecNamesWhatIsKept) {
  ProgramTable table(table_limits());
  tap::SequenceTaps taps = taps_with({1, 0, 2, 1});
  taps.needs_whole_prompt = true;
  taps.captured = {{1, 3}};
  const auto kept = table.keep(std::move(taps));
  ASSERT_TRUE(kept);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ((*kept)->segments[0].program, (*kept)->segments[3].program);  // one key, one program
  const auto resolved = table.resolve(tap::spec_of(**kept));
  ASSERT_TRUE(resolved);
  ASSERT_EQ(resolved->segments.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(resolved->segments[i].begin, (*kept)->segments[i].begin);
    EXPECT_EQ(resolved->segments[i].content, (*kept)->segments[i].content);
    EXPECT_EQ(resolved->segments[i].program, (*kept)->segments[i].program);
  }
  EXPECT_TRUE(resolved->needs_whole_prompt);
  EXPECT_FALSE(resolved->is_scheduled);
  ASSERT_EQ(resolved->captured.size(), 1u);
  EXPECT_EQ(resolved->captured[0].end, 3);
}

TEST(ProgramTable, AProgramIsKnownWhileSomebodyHasIt) {
  ProgramTable table(table_limits());
  auto first = *table.keep(taps_with({1}));
  const tap::TapsSpec spec = tap::spec_of(*first);
  auto second = *table.keep(taps_with({1}));
  EXPECT_EQ(first->segments[0].program, second->segments[0].program);
  first = nullptr;
  auto resolved = table.resolve(spec);  // what runs keeps it as well
  ASSERT_TRUE(resolved);
  second = nullptr;
  EXPECT_TRUE(table.resolve(spec));
  *resolved = {};
  EXPECT_EQ(table.size(), 0u);
  const auto gone = table.resolve(spec);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(gone.error().where, "steering");
}

TEST(ProgramTable, WhatCouldNeverFitIsRefusedOnBothWays) {
  ProgramTable table(table_limits());  // two programs
  const auto refused = table.keep(taps_with({1, 2, 3}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().where, "steering");
  EXPECT_EQ(table.size(), 0u);
  // Each of them fits; a request that names both does not.
  const auto two = table.keep(taps_with({1, 2}));
  const auto third = table.keep(taps_with({3}));
  ASSERT_TRUE(two && third);
  tap::TapsSpec spec = tap::spec_of(**two);
  spec.segments.push_back({2, {3, 0}});
  EXPECT_EQ(table.resolve(spec).error().code, ErrorCode::kInvalidArgument);
}

// Leases come and go on many threads: what one has kept is always known to it.
TEST(ProgramTable, ThreadsKeepAndResolve) {
  ProgramTable table(table_limits());
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&table, seed] {
      for (uint64_t i = 0; i < 2000; ++i) {
        const auto kept = table.keep(taps_with({1 + (seed * 7 + i) % 3}));
        ASSERT_TRUE(kept);
        const auto resolved = table.resolve(tap::spec_of(**kept));
        ASSERT_TRUE(resolved);
        ASSERT_EQ(resolved->segments[0].program, (*kept)->segments[0].program);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table.size(), 0u);
}

TEST(ProgramTable, ALeaseMayOutliveTheTable) {
  std::shared_ptr<const tap::SequenceTaps> kept;
  {
    ProgramTable table(table_limits());
    kept = *table.keep(taps_with({1}));
  }
  EXPECT_EQ(kept->segments[0].program->ops.size(), 1u);
}

}  // namespace
}  // namespace rudder::steer
