// Cohorts: sequences that decode are divided among steps in flight, and get the same tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::SchedLoop;
using testing::test_prompt;
using testing::test_sequence;

testing::FakeOptions cohort_fake(int32_t depth) {
  testing::FakeOptions options;
  options.capacity.max_in_flight = depth;
  options.capacity.max_repeat = 8;
  return options;
}

SchedSettings cohort_settings(int32_t num_cohorts, int32_t depth, int32_t multi_step = 1) {
  SchedSettings settings;
  settings.num_cohorts = num_cohorts;
  settings.max_in_flight = depth;
  settings.multi_step = multi_step;
  settings.model_identity = "model";
  return settings;
}

std::set<int32_t> decoded_by(const step::StepPlan& plan) {
  std::set<int32_t> slots;
  for (const step::SeqWork& work : plan.seqs) {
    if (work.tokens == step::TokenSource::kCarry) slots.insert(work.slot.value);
  }
  return slots;
}

TEST(CohortTest, StepsInFlightDecodeOtherSequencesInEqualParts) {
  for (const int32_t num_cohorts : {2, 3}) {
    SchedLoop loop(cohort_fake(num_cohorts), cohort_settings(num_cohorts, num_cohorts));
    for (uint64_t id = 1; id <= 6; ++id) loop.add(test_sequence(id, test_prompt(4, 1), 40));
    ASSERT_EQ(loop.run(), "");
    size_t num_full = 0;
    const auto& plans = loop.plans();
    for (size_t i = 0; i < plans.size(); ++i) {
      const std::set<int32_t> mine = decoded_by(*plans[i]);
      EXPECT_LE(std::ssize(mine), 6 / num_cohorts) << "step " << i;
      if (std::ssize(mine) == 6 / num_cohorts) ++num_full;
      for (size_t k = i + 1; k < std::min(plans.size(), i + static_cast<size_t>(num_cohorts));
           ++k) {
        for (const int32_t slot : decoded_by(*plans[k])) {
          EXPECT_FALSE(mine.contains(slot)) << "steps " << i << " and " << k;
        }
      }
    }
    EXPECT_GT(num_full, plans.size() / 2);
  }
}

// With one step more in flight than there are cohorts.
TEST(CohortTest, ACohortIsPlannedBehindItsStepInFlightOnceAllOthersAreBetween) {
  for (const int32_t num_cohorts : {2, 3}) {
    const auto cohorts = static_cast<size_t>(num_cohorts);
    testing::FakeOptions fake = cohort_fake(num_cohorts + 1);
    fake.num_cohorts = num_cohorts;
    SchedLoop loop(fake, cohort_settings(num_cohorts, num_cohorts + 1));
    for (uint64_t id = 1; id <= 6; ++id) loop.add(test_sequence(id, test_prompt(4, 1), 40));
    size_t num_ahead = 0;
    while (loop.turn()) {
      // All but the one that was collected are in flight.
      const auto& plans = loop.plans();
      if (loop.scheduler().steps_in_flight() < num_cohorts) continue;
      const std::set<int32_t> last = decoded_by(*plans.back());
      const std::set<int32_t> before = decoded_by(*plans[plans.size() - 1 - cohorts]);
      if (std::ssize(last) == 6 / num_cohorts && last == before) ++num_ahead;
    }
    EXPECT_EQ(loop.error(), "");
    EXPECT_GT(num_ahead, loop.plans().size() / 2);
  }
}

TEST(CohortTest, EveryNumberOfCohortsGivesTheSameTokens) {
  for (const int32_t num_cohorts : {1, 2, 3, 8}) {
    for (const int32_t multi_step : {1, 4}) {
      SchedLoop loop(cohort_fake(3), cohort_settings(num_cohorts, 3, multi_step));
      for (uint64_t id = 1; id <= 12; ++id) {
        NewSequence sequence = test_sequence(id, test_prompt(static_cast<int32_t>(id) * 3, 3),
                                             5 * static_cast<int32_t>(id));
        sequence.sampling.stop_ids = {1, 2, 3, 100, 200, 300};
        loop.add(std::move(sequence));
      }
      EXPECT_EQ(loop.run(), "") << num_cohorts << " cohorts";
    }
  }
}

TEST(CohortTest, ASequenceAloneGoesOnAndRunsAhead) {
  testing::FakeOptions fake = cohort_fake(3);
  fake.num_cohorts = 2;
  SchedLoop loop(fake, cohort_settings(2, 3));
  loop.add(test_sequence(1, test_prompt(20, 1), 30));
  size_t num_ahead = 0;
  while (loop.turn()) num_ahead += loop.scheduler().steps_in_flight() > 1 ? 1 : 0;
  ASSERT_EQ(loop.error(), "");
  EXPECT_EQ(loop.record(1).num_outputs, 30);
  EXPECT_GT(num_ahead, 20u);
}

}  // namespace
}  // namespace rudder::sched
