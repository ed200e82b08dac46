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

TEST(EngineStats, LengthBoundsEndAtTheContext) {
  EXPECT_EQ(make_engine_stats(64).request_prompt_tokens.bounds,
            (std::vector<double>{1, 2, 5, 10, 20, 50}));
}

}  // namespace
}  // namespace rudder::engine
