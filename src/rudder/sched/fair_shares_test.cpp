// Tenants share the prompt tokens of steps (step.I13): one with many long prompts does not keep
// another's waiting.
#include "rudder/sched/fair_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "rudder/testing/load_model.h"

namespace rudder::sched {
namespace {

using testing::LoadModel;

std::map<int32_t, int32_t> tokens_by_tenant(const std::vector<FairShares::Share>& shares) {
  std::map<int32_t, int32_t> tokens;
  for (const FairShares::Share& share : shares) tokens[share.tenant] = share.tokens;
  return tokens;
}

TEST(FairSharesTest, WhatOneDoesNotWantIsForTheOthers) {
  FairShares shares;
  EXPECT_EQ(tokens_by_tenant(shares.divide({{7, 0, 9999}}, 2048)),
            (std::map<int32_t, int32_t>{{7, 2048}}));
  const auto divided =
      tokens_by_tenant(shares.divide({{1, 5000, 0}, {2, 0, 100}, {3, 0, 9000}}, 2048));
  EXPECT_EQ(divided, (std::map<int32_t, int32_t>{{1, 974}, {2, 100}, {3, 974}}));
}

TEST(FairSharesTest, WhoFindsNoRoomLeavesItsShare) {
  FairShares shares;
  for (const FairShares::Share share : shares.divide({{1, 5000, 0}, {2, 0, 5000}}, 1000)) {
    EXPECT_EQ(share.tokens, 500);
    shares.note_served(share, share.tenant == 1 ? 500 : 0);
  }
  const auto divided = tokens_by_tenant(shares.divide({{1, 5000, 0}, {2, 0, 5000}}, 1000));
  EXPECT_EQ(divided, (std::map<int32_t, int32_t>{{1, 984}, {2, 16}}));
}

// 50 tenants and steps of 32 tokens: they take turns, and none falls behind by more than one.
TEST(FairSharesTest, TenantsTakeTurnsWhereAStepHasTooFewTokens) {
  FairShares shares;
  std::vector<FairShares::Demand> demands;
  for (int32_t tenant = 0; tenant < 50; ++tenant) demands.push_back({tenant, 1'000'000, 0});
  std::map<int32_t, int32_t> served;
  for (int step = 0; step < 1000; ++step) {
    int32_t left = 32;
    for (const FairShares::Share share : shares.divide(demands, left)) {
      const int32_t tokens = std::min(share.tokens, left);
      shares.note_served(share, tokens);
      served[share.tenant] += tokens;
      left -= tokens;
    }
    const auto [least, most] =
        std::ranges::minmax_element(served, {}, [](const auto& entry) { return entry.second; });
    if (step < 50) continue;
    EXPECT_LE(most->second - least->second, 16) << step;
  }
}

// Who did not ask for long gets its share, and no more.
TEST(FairSharesTest, NothingIsSavedUp) {
  FairShares shares;
  const auto step = [&](const std::vector<FairShares::Demand>& demands) {
    std::map<int32_t, int32_t> served;
    for (const FairShares::Share share : shares.divide(demands, 16)) {
      const int32_t tokens = served.empty() ? 16 : 0;
      shares.note_served(share, tokens);
      served[share.tenant] = tokens;
    }
    return served;
  };
  for (int i = 0; i < 1000; ++i) step({{1, 9999, 0}});
  int32_t late = 0;
  for (int i = 0; i < 100; ++i) late += step({{1, 9999, 0}, {2, 9999, 0}})[2];
  EXPECT_NEAR(late, 800, 16);
}

double step_us(const step::StepPlan& plan) {
  return std::max(2900.0, 11.1 * plan.num_tokens()) + 0.02 * static_cast<double>(plan.seqs.size());
}

LoadModel tenants_model(int32_t budget, int64_t max_itl_us, int32_t num_seqs = 128) {
  const step::Capacity capacity = {.num_slots = 256,
                                   .num_blocks = 40'000,
                                   .block_size = 16,
                                   .max_tokens_per_step = budget,
                                   .max_seq_len = 8192,
                                   .vocab_size = 1000,
                                   .max_in_flight = 2};
  SchedSettings settings;
  settings.max_num_seqs = num_seqs;
  settings.max_num_batched_tokens = budget;
  settings.max_itl_us = max_itl_us;
  settings.enable_prefix_caching = false;
  settings.model_identity = "model";
  return {capacity, settings, step_us};
}

NewSequence of_tenant(int32_t tenant, uint64_t id, int32_t prompt_len, int32_t num_output) {
  NewSequence sequence;
  sequence.id = SequenceId(id);
  sequence.tenant = tenant;
  for (int32_t i = 0; i < prompt_len; ++i) {
    sequence.prompt.push_back(static_cast<int32_t>((id * 7919 + static_cast<uint64_t>(i)) % 1000));
  }
  sequence.max_len = prompt_len + num_output;
  return sequence;
}

// Steps from its arrival to the one that gives a short prompt its first token, while 100 long ones
// of another tenant are there.
step::StepId steps_beside_a_flood(int32_t tenant, int32_t prompt_len, int64_t max_itl_us) {
  LoadModel model = tenants_model(2048, max_itl_us);
  model.add(of_tenant(1, 500, 100, 2000));  // it streams
  for (int i = 0; i < 50; ++i) model.turn();
  for (uint64_t id = 1; id <= 100; ++id) model.add(of_tenant(1, id, 6000, 10));
  for (int i = 0; i < 20; ++i) model.turn();
  const step::StepId arrival = model.last_step();
  model.add(of_tenant(tenant, 1000, prompt_len, 10));
  model.run();
  return model.served(1000).token_step - arrival;
}

TEST(FairPrefillTest, ManyLongPromptsDelayAShortOneByAtMostTwoSteps) {
  for (const int32_t tenant : {1, 2}) {  // their own, another
    // Alone it would be in the next step.
    for (const int64_t max_itl_us : {kNoItlBound, kAutoItlBound}) {
      EXPECT_LE(steps_beside_a_flood(tenant, 100, max_itl_us), 1 + 2) << tenant;
    }
    // Alone two steps; with half of each, four.
    EXPECT_LE(steps_beside_a_flood(tenant, 4000, kNoItlBound), 2 + 2) << tenant;
  }
}

// Short and long prompts of tenants that always ask: each has the same part of the tokens, but who
// asks for less.
TEST(FairPrefillTest, TenantsThatAlwaysAskGetTheSame) {
  LoadModel model = tenants_model(512, kNoItlBound, 64);
  std::mt19937_64 random(1);
  uint64_t next = 1;
  std::map<int32_t, int64_t> asked;
  std::map<uint64_t, std::pair<int32_t, int32_t>> open;  // tenant and length of the prompt
  std::map<int32_t, int64_t> served;
  while (model.last_step() < 3000) {
    for (int32_t tenant = 1; tenant <= 3; ++tenant) {
      // Many short ones, few long ones, and one of middling length now and then.
      const bool rarely = tenant == 3 && model.last_step() % 20 != 0;
      while (asked[tenant] < 20'000 && !rarely) {
        const int32_t len = tenant == 1 ? 30 + static_cast<int32_t>(random() % 50)
                                        : 3000 + static_cast<int32_t>(random() % 2000);
        open[next] = {tenant, len};
        asked[tenant] += len;
        model.add(of_tenant(tenant, next++, len, 2));
        if (tenant == 3) break;
      }
    }
    if (!model.turn()) break;
    for (auto it = open.begin(); it != open.end();) {
      if (model.served(it->first).token_us.empty()) {
        ++it;
        continue;
      }
      const auto [tenant, len] = it->second;
      served[tenant] += len;
      asked[tenant] -= len;
      it = open.erase(it);
    }
  }
  std::printf("tokens by tenant: %lld, %lld, %lld\n", static_cast<long long>(served[1]),
              static_cast<long long>(served[2]), static_cast<long long>(served[3]));
  EXPECT_NEAR(static_cast<double>(served[1]) / static_cast<double>(served[2]), 1, 0.1);
  // A third of the tokens is 170 a step; it asks for 200 at most.
  EXPECT_GT(served[3], 3000 * 130);
}

}  // namespace
}  // namespace rudder::sched
