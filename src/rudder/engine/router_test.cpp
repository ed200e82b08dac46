#include "rudder/engine/router.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "rudder/cache/block_cache.h"

namespace rudder::engine {
namespace {

constexpr int32_t kBlockSize = 4;
const cache::KeyOptions kKeys = {
    .hash_key = {1, 2}, .model_identity = "m", .block_size = kBlockSize};

TEST(ChooseReplica, APrefixWinsUntilItsReplicaHasTooMuchToDo) {
  std::vector<ReplicaLoad> replicas = {{.open = 0}, {.open = 0, .cached = 100}, {.open = 0}};
  EXPECT_EQ(choose_replica(replicas, 0), 1u);
  replicas[1].open = 100 * kCachedTokenWorth - 1;
  EXPECT_EQ(choose_replica(replicas, 0), 1u);
  replicas[1].open = 100 * kCachedTokenWorth + 1;
  EXPECT_EQ(choose_replica(replicas, 0), 0u);
  replicas[0].open = replicas[2].open = 2;  // it is the balance that counts
  EXPECT_EQ(choose_replica(replicas, 0), 1u);
}

TEST(ChooseReplica, EqualsTakeTurnsAndWhoDoesNotTakeIsPassedOver) {
  std::vector<ReplicaLoad> replicas(3);
  EXPECT_EQ(choose_replica(replicas, 0), 0u);
  EXPECT_EQ(choose_replica(replicas, 1), 1u);
  EXPECT_EQ(choose_replica(replicas, 5), 2u);
  replicas[1] = {.cached = 1000, .takes = false};
  EXPECT_EQ(choose_replica(replicas, 1), 2u);
}

// Of the chosen replica: whatever is cached where, it never has more to do than the idlest one and
// the worth of what the request finds there.
TEST(ChooseReplica, TheImbalanceIsBoundedByWhatIsSaved) {
  std::mt19937 rng(1);
  const auto draw = [&](int64_t most) {
    return std::uniform_int_distribution<int64_t>(0, most)(rng);
  };
  for (int round = 0; round < 10'000; ++round) {
    std::vector<ReplicaLoad> replicas(static_cast<size_t>(1 + draw(7)));
    for (ReplicaLoad& replica : replicas) {
      replica = {.open = draw(1 << draw(20)), .cached = draw(4096), .takes = draw(4) > 0};
    }
    replicas[static_cast<size_t>(draw(std::ssize(replicas) - 1))].takes = true;
    const ReplicaLoad& chosen = replicas[choose_replica(replicas, static_cast<size_t>(draw(9)))];
    ASSERT_TRUE(chosen.takes);
    for (const ReplicaLoad& other : replicas) {
      if (!other.takes) continue;
      ASSERT_LE(chosen.open, other.open + kCachedTokenWorth * (chosen.cached - other.cached));
    }
  }
}

// Two replicas' caches, whose router follows them.
class RouterTest : public ::testing::Test {
 protected:
  RouterTest() : router_(kKeys, step::KvGroups(), std::array<cache::BlockWatcher*, 2>{}) {
    for (size_t i = 0; i < 2; ++i) {
      caches_.emplace_back(cache::CacheOptions{.num_blocks = 16,
                                               .block_size = kBlockSize,
                                               .model_identity = kKeys.model_identity,
                                               .hash_key = kKeys.hash_key,
                                               .watcher = router_.watcher(i)});
    }
  }

  void cache_prefix(size_t replica, const std::vector<int32_t>& tokens, const std::string& salt,
                    const std::vector<cache::ContentRun>& runs) {
    cache::BlockCache& cache = caches_[replica];
    cache::Chain chain = cache.make_chain(salt, runs);
    cache::BlockTables tables(1);
    while (tables[0].blocks.size() < tokens.size() / kBlockSize) {
      tables[0].blocks.push_back(cache.take());
    }
    cache.publish(chain, tokens, tables, static_cast<int32_t>(tokens.size()));
    cache.release(chain, tables);
    router_.watcher(replica)->step_done();
  }

  Router router_;
  std::vector<cache::BlockCache> caches_;
};

RequestParams prompt_of(int32_t length) {
  RequestParams params;
  for (int32_t i = 0; i < length; ++i) params.prompt.push_back(i);
  return params;
}

TEST_F(RouterTest, FindsTheLongestPrefixOfTheRequestsSaltAndSteering) {
  RequestParams params = prompt_of(16);
  cache_prefix(0, prompt_of(8).prompt, "", {});
  cache_prefix(1, prompt_of(16).prompt, "", {});
  EXPECT_EQ(router_.cached_tokens(params), (std::vector<int64_t>{8, 12})) << "one is computed";
  EXPECT_EQ(router_.cached_tokens(prompt_of(3)), (std::vector<int64_t>{0, 0}));

  params.cache_salt = "tenant";
  EXPECT_EQ(router_.cached_tokens(params), (std::vector<int64_t>{0, 0}));
  cache_prefix(0, params.prompt, "tenant", {});
  EXPECT_EQ(router_.cached_tokens(params), (std::vector<int64_t>{12, 0}));

  params.cache_salt.clear();
  params.taps.segments = {{.begin = 0, .content = {}}, {.begin = 6, .content = {5, 6}}};
  EXPECT_EQ(router_.cached_tokens(params), (std::vector<int64_t>{4, 4})) << "unsteered so far";
  cache_prefix(1, params.prompt, "", {{.begin = 6, .end = 1000, .content = {5, 6}}});
  EXPECT_EQ(router_.cached_tokens(params), (std::vector<int64_t>{4, 12}));

  params.taps.captured = {{.begin = 9, .end = 10}};
  EXPECT_EQ(router_.cached_tokens(params), (std::vector<int64_t>{4, 8})) << "captured ones run";
  params.taps.needs_whole_prompt = true;
  EXPECT_EQ(router_.cached_tokens(params), (std::vector<int64_t>{0, 0}));
}

TEST_F(RouterTest, CountsWhatIsOpenUntilTheSinkIsGone) {
  RequestParams params = prompt_of(10);
  params.n = 2;
  params.max_tokens = 5;
  const std::vector<bool> all = {true, true};
  Router::Placement first = router_.place(params, all);
  EXPECT_EQ(first.replica, 0u);
  EXPECT_EQ(router_.load(0), 2 * (10 + 5));
  EXPECT_EQ(router_.place(params, all).replica, 1u) << "and is gone at once";
  EXPECT_EQ(router_.load(1), 0);
  EXPECT_EQ(router_.place(params, {true, false}).replica, 0u);
  {
    int events = 0;
    const EventSink sink = charged([&](Event&&) { ++events; }, std::move(first.charge));
    Event event;
    event.tokens.resize(3);
    sink(std::move(event));
    EXPECT_EQ(events, 1);
    EXPECT_EQ(router_.load(0), 2 + (10 + 5)) << "its prompt is computed, and two are to come";
    event = {};
    event.finish = FinishReason::kStop;
    sink(std::move(event));
    EXPECT_EQ(router_.load(0), 10 + 5) << "of the other choice";
  }
  EXPECT_EQ(router_.load(0), 0);
}

TEST_F(RouterTest, WhatIsCachedIsNotToBeDone) {
  RequestParams params = prompt_of(16);
  params.max_tokens = 1;
  cache_prefix(1, params.prompt, "", {});
  const Router::Placement placement = router_.place(params, {true, true});
  EXPECT_EQ(placement.replica, 1u);
  EXPECT_EQ(router_.load(1), 4 + 1);
}

// However long it may become.
TEST_F(RouterTest, AnAnswerCountsAsSoMuchAtOnce) {
  RequestParams params = prompt_of(4);
  const Router::Placement placement = router_.place(params, {true, false});
  Event event;
  event.tokens.resize(100);
  placement.charge->note(event);
  EXPECT_EQ(router_.load(0), kMostGranted) << "it has no end yet";
}

}  // namespace
}  // namespace rudder::engine
