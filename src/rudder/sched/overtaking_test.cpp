// A small prompt does not wait for the blocks that a large one in front of it waits for, and the
// large one is not held up by it (step.I17). Random loads are stress_test.cpp's.
#include <gtest/gtest.h>

#include <vector>

#include "rudder/testing/load_model.h"
#include "rudder/testing/overtaking_stress.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::LoadModel;
using testing::SchedLoop;
using testing::test_prompt;
using testing::test_sequence;

constexpr int32_t kPool = 480;  // blocks, of which 30 are kept
constexpr int32_t kBatch = 256;
constexpr int64_t kStepUs = 1000;

step::Capacity overtaking_capacity() {
  return {.num_slots = 64,
          .num_blocks = kPool,
          .block_size = 16,
          .max_tokens_per_step = kBatch,
          .max_seq_len = 16 * kPool,
          .vocab_size = 1000,
          .max_in_flight = 2};
}

SchedSettings overtaking_settings() {
  SchedSettings settings;
  settings.max_num_seqs = 64;
  settings.max_num_batched_tokens = kBatch;
  settings.enable_prefix_caching = false;
  settings.model_identity = "model";
  return settings;
}

NewSequence prompt_of(uint64_t id, int32_t len, int32_t tenant = 0, int32_t num_output = 2) {
  NewSequence sequence = test_sequence(id, test_prompt(len, static_cast<int32_t>(id)), num_output);
  sequence.tenant = tenant;
  return sequence;
}

// Two of them fill the pool; each takes twelve steps and more.
constexpr int32_t kLarge = 3200;

class OvertakingTest : public ::testing::Test {
 protected:
  void add_large(uint64_t first, int32_t count, int32_t len = kLarge) {
    for (int32_t i = 0; i < count; ++i)
      model_.add(prompt_of(first + static_cast<uint64_t>(i), len));
  }
  void turns(int32_t count) {
    for (int32_t i = 0; i < count; ++i) ASSERT_TRUE(model_.turn());
  }
  step::StepId begun(uint64_t id) { return model_.served(id).first_step; }

  LoadModel model_ = LoadModel(overtaking_capacity(), overtaking_settings(),
                               [](const step::StepPlan&) { return 1000; });
};

TEST_F(OvertakingTest, ASmallPromptGoesPastLargeOnesThatWaitForBlocks) {
  add_large(1, 40);
  turns(4);
  for (const int32_t tenant : {0, 1}) {
    const auto id = static_cast<uint64_t>(100 + tenant);
    const step::StepId now = model_.last_step();
    model_.add(prompt_of(id, 60, tenant));
    turns(4);
    EXPECT_GT(begun(id), 0u) << tenant;
    EXPECT_LE(begun(id), now + 2) << tenant;
  }
  EXPECT_EQ(begun(40), 0u);
  model_.run();
  EXPECT_EQ(model_.scheduler().stats().preemptions, 0u);
}

// Also of a tenant whose own line is not what waits, once a large prompt has waited for long.
TEST_F(OvertakingTest, OthersAreNotHeldUpByOneThatHasWaitedForLong) {
  add_large(1, 8);
  turns(22);
  const step::StepId now = model_.last_step();
  model_.add(prompt_of(100, 60, 1));
  turns(4);
  EXPECT_GT(begun(100), 0u);
  EXPECT_LE(begun(100), now + 2);
}

// More small ones than there are blocks kept for, all the time.
TEST_F(OvertakingTest, LargeOnesBeginAsTheyWouldWithoutSmallOnes) {
  LoadModel alone(overtaking_capacity(), overtaking_settings(),
                  [](const step::StepPlan&) { return 1000; });
  for (uint64_t id = 1; id <= 12; ++id) alone.add(prompt_of(id, kLarge));
  alone.run();
  add_large(1, 12);
  uint64_t next = 100;
  while (begun(12) == 0) {
    for (; model_.scheduler().stats().num_waiting < 40; ++next) model_.add(prompt_of(next, 60));
    ASSERT_TRUE(model_.turn());
  }
  const auto overtakes = model_.scheduler().stats().overtakes;
  EXPECT_GT(overtakes, 20u);
  // They share each step with the small ones, so a prompt takes twice as long.
  EXPECT_LE(begun(12), 2 * alone.served(12).first_step + 12);
  model_.run();
}

// It waits for those that went past it before: no others do once they alone run.
TEST_F(OvertakingTest, OneThatNeedsTheWholePoolIsNotOvertakenForEver) {
  add_large(1, 2);
  turns(3);
  model_.add(prompt_of(3, 16 * kPool - 16));
  uint64_t next = 100;
  while (begun(3) == 0) {
    ASSERT_LT(model_.last_step(), 120u);
    for (; model_.scheduler().stats().num_waiting < 10; ++next) model_.add(prompt_of(next, 60));
    ASSERT_TRUE(model_.turn());
  }
  EXPECT_GT(model_.scheduler().stats().overtakes, 5u);
  model_.run();
}

// Their answers count too, as long as they are expected to be.
TEST_F(OvertakingTest, ASmallPromptWithALongAnswerIsNotSmall) {
  add_large(1, 4);
  turns(3);
  model_.add(prompt_of(100, 60, 0, 16 * 40));
  model_.add(prompt_of(101, 60, 0, 16));
  turns(6);
  EXPECT_EQ(begun(100), 0u);
  EXPECT_GT(begun(101), 0u);
  model_.run();
}

// Blocks are kept for small ones, slots are not.
TEST(OvertakingSlotsTest, WhereSlotsAloneAreMissingNobodyGoesPast) {
  SchedSettings settings = overtaking_settings();
  settings.max_num_seqs = 4;
  LoadModel model(overtaking_capacity(), settings, [](const step::StepPlan&) { return kStepUs; });
  for (uint64_t id = 1; id <= 8; ++id) model.add(prompt_of(id, 60, 0, 16 * 20));
  model.add(prompt_of(100, 60));
  model.run();
  EXPECT_EQ(model.scheduler().stats().overtakes, 0u);
  EXPECT_GE(model.served(100).first_step, model.served(8).first_step);
}

// What they get is theirs, and every block comes back.
TEST_F(OvertakingTest, TheirTokensAreThoseOfLoneRequests) {
  testing::FakeOptions fake;
  fake.capacity = overtaking_capacity();
  SchedLoop loop(fake, overtaking_settings());
  for (uint64_t id = 1; id <= 12; ++id) loop.add(prompt_of(id, kLarge, 0, 20));
  for (uint64_t id = 100; id < 140; ++id) {
    ASSERT_TRUE(loop.turn());
    loop.add(prompt_of(id, 50 + static_cast<int32_t>(id), static_cast<int32_t>(id % 2), 9));
  }
  ASSERT_EQ(loop.run(), "");
  EXPECT_GT(loop.scheduler().stats().overtakes, 10u);
}

// Whoever's they are, and whether the large ones find their prompts cached.
TEST_F(OvertakingTest, TenantsAndHitsMakeNoDifference) {
  for (const bool caches : {false, true}) {
    for (const int32_t tenants : {1, 3}) {
      SchedSettings settings = overtaking_settings();
      settings.enable_prefix_caching = caches;
      LoadModel model(overtaking_capacity(), settings, [](const step::StepPlan&) { return 1000; });
      for (uint64_t id = 1; id <= 40; ++id) {
        const auto number = static_cast<int32_t>(id);
        NewSequence large = prompt_of(id, kLarge, number % tenants);
        // Three prompts in turn, of which two fill the pool.
        if (caches) large.prompt = test_prompt(kLarge, number % 3);
        model.add(std::move(large));
      }
      for (int32_t i = 0; i < 16; ++i) ASSERT_TRUE(model.turn());
      const step::StepId now = model.last_step();
      for (int32_t tenant = 0; tenant < 4; ++tenant) {
        NewSequence small = prompt_of(100 + static_cast<uint64_t>(tenant), 60, tenant, 8);
        small.priority = -(tenant % 2);
        model.add(std::move(small));
      }
      for (int32_t i = 0; i < 6; ++i) model.turn();
      for (uint64_t id = 100; id < 104; ++id) {
        EXPECT_GT(model.served(id).first_step, 0u) << caches << tenants << id;
        EXPECT_LE(model.served(id).first_step, now + 3) << caches << tenants << id;
      }
      EXPECT_EQ(model.served(40).first_step, 0u) << caches << tenants;
    }
  }
}

// Steps that small ones wait beside clients of one tenant whose long answers fill the pool as they
// grow, each of which asks again once it is served: the longest wait of a first and of a last
// token.
struct LongestWait {
  step::StepId first = 0;
  int64_t last_us = 0;
};
LongestWait wait_beside_growing(LoadModel& model, int32_t clients, int32_t prompt, int32_t answer) {
  constexpr step::StepId kEvery = 40;
  uint64_t next_large = 1;
  uint64_t next_small = 100'000;
  std::vector<uint64_t> large;
  std::vector<std::pair<uint64_t, step::StepId>> small;
  while (model.last_step() < 12'000) {
    std::erase_if(large, [&](uint64_t id) { return model.served(id).done(); });
    for (; std::ssize(large) < clients; ++next_large) {
      model.add(prompt_of(next_large, prompt, 0, answer));
      large.push_back(next_large);
    }
    if (model.last_step() >= (small.size() + 1) * kEvery) {
      model.add(prompt_of(++next_small, 60, 0, 8));
      small.emplace_back(next_small, model.last_step());
    }
    if (!model.turn()) break;
  }
  LongestWait longest;
  for (const auto& [id, came] : small) {
    const auto& served = model.served(id);
    const step::StepId begun = served.first_step == 0 ? model.last_step() : served.first_step;
    const int64_t done = served.done() ? served.token_us.back() : model.now_us();
    longest.first = std::max(longest.first, begun - came);
    longest.last_us = std::max(longest.last_us, done - served.arrival_us);
  }
  return longest;
}

TEST_F(OvertakingTest, AnswersThatGrowDoNotHoldUpASmallOne) {
  for (const int32_t clients : {4, 12, 24, 40, 63}) {
    for (const int32_t prompt : {60, 300, 1500}) {
      for (const int32_t answer : {600, 3000}) {
        LoadModel model(overtaking_capacity(), overtaking_settings(),
                        [](const step::StepPlan&) { return kStepUs; });
        const LongestWait longest = wait_beside_growing(model, clients, prompt, answer);
        EXPECT_LE(longest.first, 100u) << clients << ' ' << prompt << ' ' << answer;
        EXPECT_LE(longest.last_us, 150 * kStepUs) << clients << ' ' << prompt << ' ' << answer;
      }
    }
  }
}

TEST(OvertakingStressTest, SmallOnesBeginSoonAndLargeOnesGetOn) {
  testing::OvertakingTotals totals;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    ASSERT_EQ(testing::run_overtaking_stress(seed, &totals), "") << seed;
  }
  EXPECT_GT(totals.overtakes, 300u);
  EXPECT_GT(totals.large, 100u);
}

}  // namespace
}  // namespace rudder::sched
