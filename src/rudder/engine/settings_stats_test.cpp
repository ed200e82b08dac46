#include <gtest/gtest.h>

#include "rudder/engine/settings.h"
#include "rudder/engine/stats.h"

namespace rudder::engine {
namespace {

TEST(EngineSettings, DeclaresEachFieldUnderItsName) {
  EngineSettings settings;
  SettingsTable table;
  settings.declare(table);
  ASSERT_TRUE(table.set("max-num-seqs", "7"));
  ASSERT_TRUE(table.set("async-scheduling", "false"));
  ASSERT_TRUE(table.set("max-num-queued-tokens", "8K"));
  EXPECT_EQ(settings.max_num_seqs, 7);
  EXPECT_FALSE(settings.async_scheduling);
  EXPECT_EQ(settings.max_num_queued_tokens, 8192);
  EXPECT_FALSE(table.set("max-num-seqs", "0"));
}

TEST(EngineStats, ABoundIsTheLastValueOfItsBucket) {
  EngineStats stats = make_engine_stats(64);
  Histogram& n = stats.request_n;  // bounds 1 2 5 10 20
  n.observe(1);
  n.observe(2);
  n.observe(2.5);
  n.observe(21, 3);
  EXPECT_EQ(n.counts, (std::vector<uint64_t>{1, 1, 1, 0, 0, 3}));
  EXPECT_EQ(n.count, 6u);
  EXPECT_DOUBLE_EQ(n.sum, 1 + 2 + 2.5 + 63);
}

TEST(EngineStats, OfTwoReplicasAddUp) {
  EngineStats all = make_engine_stats(64);
  all.block_size = 16;
  all.num_running = 2;
  all.expected_wait_us = 5;
  all.tap_rows.hits = 7;
  all.prefix = {.queries = 9, .hits = 4, .hits_without_states = 6, .tiers = {}};
  all.accepted_by_position = {4};
  all.request_n.observe(2);
  EngineStats other = make_engine_stats(64);
  other.block_size = 16;
  other.num_running = 3;
  other.expected_wait_us = 9;
  other.generation_tokens = 11;
  other.tap_rows.hits = 1;
  other.prefix = {.queries = 1, .hits = 1, .hits_without_states = 1, .tiers = {}};
  other.accepted_by_position = {1, 2};
  other.request_n.observe(2);
  other.request_n.observe(21);
  add_stats(all, other);
  EXPECT_EQ(all.block_size, 16);
  EXPECT_EQ(all.num_running, 5);
  EXPECT_EQ(all.expected_wait_us, 9);
  EXPECT_EQ(all.generation_tokens, 11u);
  EXPECT_EQ(all.tap_rows.hits, 8);
  EXPECT_EQ(all.prefix.queries, 10u);
  EXPECT_EQ(all.prefix.hits_without_states, 7u);
  EXPECT_EQ(all.accepted_by_position, (std::vector<uint64_t>{5, 2}));
  EXPECT_EQ(all.request_n.counts, (std::vector<uint64_t>{0, 2, 0, 0, 0, 1}));
  EXPECT_EQ(all.request_n.count, 3u);
}

TEST(EngineStats, LengthBoundsEndAtTheContext) {
  EXPECT_EQ(make_engine_stats(64).request_prompt_tokens.bounds,
            (std::vector<double>{1, 2, 5, 10, 20, 50}));
}

}  // namespace
}  // namespace rudder::engine
