#include "rudder/base/starvation.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace rudder {
namespace {

// Threads of one core: one that runs all the time, and one that runs where that leaves something.
class Hog {
 public:
  Hog() {
    idle_ = std::thread([this] { spin(SCHED_IDLE); });
    busy_ = std::thread([this] { spin(SCHED_OTHER); });
  }
  ~Hog() {
    stop_ = true;
    idle_.join();
    busy_.join();
  }

 private:
  void spin(int policy) {
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
    while (!stop_) {
    }
  }

  std::atomic<bool> stop_{false};
  std::thread idle_, busy_;
};

// Nanoseconds that the threads beside the calling one have been ready and without a core, in all.
int64_t run_delay_ns() {
  int64_t sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    int64_t ran = 0, waited = 0;
    const bool is_other = task.path().filename() != std::to_string(gettid());
    if (is_other && std::ifstream(task.path() / "schedstat") >> ran >> waited) sum += waited;
  }
  return sum;
}

void pause() {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

TEST(Starvation, AThreadThatWantsACoreAndGetsNoneIsSeen) {
  const Hog hog;
  Starvation starvation;
  EXPECT_FALSE(starvation.look()) << "nothing to compare with";
  int seen = 0;
  for (int i = 0; i < 10; ++i) {
    pause();
    seen += starvation.look() ? 1 : 0;
  }
  EXPECT_GE(seen, 8);
}

TEST(Starvation, ThreadsThatSleepDoNot) {
  std::atomic<bool> stop = false;
  std::thread sleeper([&] {
    while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  Starvation starvation;
  const int64_t delay_before = run_delay_ns();
  int seen = 0;
  for (int i = 0; i < 10; ++i) {
    pause();
    seen += starvation.look() ? 1 : 0;
  }
  pause();
  // On a busy machine even a thread that sleeps most of the time waits for a core when it wakes.
  constexpr int64_t kNoticed = 1'000'000;
  if (run_delay_ns() - delay_before < kNoticed) {
    EXPECT_LE(seen, 1);
  }
  stop = true;
  sleeper.join();
}

}  // namespace
}  // namespace rudder
