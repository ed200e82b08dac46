#include "rudder/testing/sched_stress.h"

#include <gtest/gtest.h>

#include "rudder/testing/prompt_stress.h"

namespace rudder::sched {
namespace {

TEST(StressTest, EveryInvariantHoldsOnRandomWorkloads) {
  testing::StressTotals totals;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    ASSERT_EQ(testing::run_stress(seed, &totals), "") << "seed " << seed;
  }
  // The workloads reach what they are for.
  EXPECT_GT(totals.steps, 100'000u);
  EXPECT_GT(totals.repeats, 5'000u);
  EXPECT_GT(totals.preemptions, 1'000u);
  EXPECT_GT(totals.prefix_hits, 10'000u);
  EXPECT_GT(totals.evictions, 10'000u);
  EXPECT_GT(totals.windowed_hits, 100u);
  EXPECT_GT(totals.host_hits, 1'000u);
  EXPECT_GT(totals.disk_hits, 200u);
  EXPECT_GT(totals.bad_records, 100u);
  EXPECT_GT(totals.failed_loads, 10u);
  EXPECT_GT(totals.late_results, 1'000u);
  EXPECT_GT(totals.sequences, 10'000u);
  EXPECT_GT(totals.blocks_told, 50'000u);
  EXPECT_GT(totals.blocks_withheld, 10'000u);
  EXPECT_GT(totals.accepted_tokens, 5'000u);
  EXPECT_GT(totals.draft_tokens, totals.accepted_tokens + 5'000);
  EXPECT_GT(totals.numerical, 100u);
  EXPECT_GT(totals.finished_by_host, 1'000u);
  EXPECT_GT(totals.steered, 1'000u);
  EXPECT_GT(totals.captured, 10'000u);
}

// step.I16.
TEST(StressTest, PromptsOfATenantShareItsPartOfAStep) {
  testing::PromptStressTotals totals;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    ASSERT_EQ(testing::run_prompt_stress(seed, &totals), "") << "seed " << seed;
  }
  EXPECT_GT(totals.shared, 10'000u);
  EXPECT_GT(totals.turns, 1'000u);
  EXPECT_GT(totals.sequences, 10'000u);
}

}  // namespace
}  // namespace rudder::sched
