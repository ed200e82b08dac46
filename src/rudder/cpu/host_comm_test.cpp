// Ranks of one process: what they show each other, and that no failure of one keeps another
// waiting.
#include "rudder/cpu/host_comm.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace rudder::cpu {
namespace {

using Comms = std::vector<std::shared_ptr<HostComm>>;

tensor::View number_view(int32_t& number) {
  return {&number, tensor::DType::kI32, {1}};
}

// Runs body(rank) on a thread for each rank.
void run_ranks(const Comms& comms, const std::function<void(HostComm&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& comm : comms) threads.emplace_back([&body, &comm] { body(*comm); });
  for (std::thread& thread : threads) thread.join();
}

TEST(HostComm, EveryRankSeesWhatAllShowInTheOrderOfRanks) {
  for (const int32_t count : {1, 2, 4, 7}) {
    run_ranks(HostComm::make_group(count), [&](HostComm& comm) {
      int32_t mine = 0;
      for (int32_t round = 0; round < 500; ++round) {
        mine = 1000 * round + comm.rank().index;
        const auto shown = comm.exchange("op", number_view(mine));
        ASSERT_TRUE(shown) << shown.error().to_string();
        ASSERT_EQ(static_cast<int32_t>(shown->size()), count);
        for (int32_t i = 0; i < count; ++i) {
          ASSERT_EQ(*(*shown)[static_cast<size_t>(i)].as<int32_t>(), 1000 * round + i);
        }
        ASSERT_TRUE(comm.exchange("op", {}));
      }
      comm.meet(9);
      EXPECT_TRUE(comm.status());
    });
  }
}

TEST(HostComm, WhatOneRankWritesToSharedMemoryOthersReadWhenTheyHaveMet) {
  run_ranks(HostComm::make_group(4), [](HostComm& comm) {
    const auto shared = comm.shared_memory(tensor::DType::kI32, {4});
    ASSERT_TRUE(shared) << shared.error().to_string();
    const int32_t rank = comm.rank().index;
    EXPECT_EQ(shared->as<int32_t>()[rank], 0);
    shared->as<int32_t>()[rank] = 10 + rank;
    ASSERT_TRUE(comm.exchange("op", {}));
    for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(shared->as<int32_t>()[i], 10 + i);
  });
}

TEST(HostComm, ARankThatDoesNotComeFailsTheGroup) {
  const Comms comms = HostComm::make_group(3, 200);
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(comms, [](HostComm& comm) {
    if (comm.rank().index == 1) return;
    comm.meet(1);
    const Result<void> status = comm.status();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInternal);
    EXPECT_EQ(status.error().message,
              "rank 1 of 3 did not come to the end of a step within 200 ms");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  // It comes at last, and does not wait.
  EXPECT_FALSE(comms[1]->exchange("op", {}));
}

// A core for one thread that runs all the time and another that gets what is left of it.
void stay_on_one_core(int policy) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  int core = 0;
  while (!CPU_ISSET(core, &set)) ++core;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  const sched_param parameters = {};
  pthread_setschedparam(pthread_self(), policy, &parameters);
}

TEST(HostComm, ARankThatGetsNoCoreIsWaitedFor) {
  const Comms comms = HostComm::make_group(2, 200);
  std::atomic<bool> stop = false;
  std::thread hog([&] {
    stay_on_one_core(SCHED_OTHER);
    while (!stop) {
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(comms, [&](HostComm& comm) {
    if (comm.rank().index == 1) {
      stay_on_one_core(SCHED_IDLE);
      while (std::chrono::steady_clock::now() - begin < std::chrono::seconds(2)) {
      }
      stop = true;
    }
    comm.meet(1);
    EXPECT_TRUE(comm.status()) << comm.status().error().message;
  });
  hog.join();
}

TEST(HostComm, ARankThatFailsEndsTheWaitOfAll) {
  const Comms comms = HostComm::make_group(4, 60'000);
  run_ranks(comms, [](HostComm& comm) {
    if (comm.rank().index == 2) {
      comm.fail({ErrorCode::kOverloaded, "no memory", "rank 2"});
      comm.fail({ErrorCode::kInternal, "a later one", ""});
      return;
    }
    const auto shown = comm.exchange("op", {});
    ASSERT_FALSE(shown);
    EXPECT_EQ(shown.error().code, ErrorCode::kOverloaded);
    EXPECT_EQ(shown.error().where, "rank 2");
  });
}

// The failed rank goes on to its next op, and writes what it had shown anew.
TEST(HostComm, AfterAFailureARankIsHeldUntilOthersHaveReadWhatItShowed) {
  const Comms comms = HostComm::make_group(2, 60'000);
  std::array<int32_t, 2> numbers = {0, 1};
  std::atomic<bool> has_read = false;
  run_ranks(comms, [&](HostComm& comm) {
    int32_t& mine = numbers[static_cast<size_t>(comm.rank().index)];
    const auto shown = comm.exchange("op", number_view(mine));
    ASSERT_TRUE(shown) << shown.error().to_string();
    if (comm.rank().index == 1) {
      comm.fail({ErrorCode::kOverloaded, "no memory", ""});
      EXPECT_FALSE(comm.exchange("op", {}));
      EXPECT_TRUE(has_read);
      mine = 7;
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(*(*shown)[1].as<int32_t>(), 1);
    has_read = true;
    EXPECT_FALSE(comm.exchange("op", {}));
  });
}

TEST(HostComm, AfterAFailureARankThatStandsStillIsWaitedForOnce) {
  const Comms comms = HostComm::make_group(2, 60'000);
  std::array<int32_t, 2> numbers = {0, 1};
  run_ranks(comms, [&](HostComm& comm) {
    ASSERT_TRUE(comm.exchange("op", number_view(numbers[static_cast<size_t>(comm.rank().index)])));
    if (comm.rank().index == 0) return;  // reads for ever
    comm.fail({ErrorCode::kOverloaded, "no memory", ""});
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(comm.exchange("op", {}));
    // One wait of half a second and what else the machine does, not twenty: these take ten.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9));
  });
}

TEST(HostComm, RanksThatDoDifferentThingsFailTheGroup) {
  const auto other_op = [](HostComm& comm) {
    static_cast<void>(comm.exchange(comm.rank().index == 0 ? "one" : "two", {}));
  };
  const auto other_rows = [](HostComm& comm) {
    int32_t values[2] = {};
    const int64_t rows = 1 + comm.rank().index;
    static_cast<void>(comm.exchange("op", {values, tensor::DType::kI32, {rows}}));
  };
  const auto other_step = [](HostComm& comm) { comm.meet(comm.rank().index == 0 ? 4 : 5); };
  const std::vector<std::function<void(HostComm&)>> bodies = {other_op, other_rows, other_step};
  for (const auto& body : bodies) {
    const Comms comms = HostComm::make_group(2, 60'000);
    run_ranks(comms, body);
    EXPECT_EQ(comms[0]->status().error().code, ErrorCode::kInternal);
  }
}

}  // namespace
}  // namespace rudder::cpu
