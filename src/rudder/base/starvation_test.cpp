#include "rudder/base/starvation.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
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
  int seen = 0;
  for (int i = 0; i < 10; ++i) {
    pause();
    seen += starvation.look() ? 1 : 0;
  }
  EXPECT_LE(seen, 1);
  stop = true;
  sleeper.join();
}

}  // namespace
}  // namespace rudder
