#include "rudder/base/thread_stacks.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <csignal>
#include <string>
#include <string_view>
#include <thread>

namespace rudder {

// A thread in here has this function on its stack.
__attribute__((noinline)) void stand_still_for_the_test(std::atomic<bool>& stands,
                                                        std::atomic<bool>& goes_on) {
  stands = true;
  while (!goes_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stands = false;
}

namespace {

// Of the thread of that name; empty: there is none.
std::string line_of(std::string_view name) {
  for (const std::string& line : describe_threads()) {
    if (line.starts_with(name)) return line;
  }
  return "";
}

TEST(ThreadStacks, TellTheFunctionsOfAThread) {
  std::atomic<bool> stands{false};
  std::atomic<bool> goes_on{false};
  std::thread thread([&] {
    pthread_setname_np(pthread_self(), "still-thread");
    stand_still_for_the_test(stands, goes_on);
  });
  while (!stands) std::this_thread::yield();
  const std::string line = line_of("still-thread");
  goes_on = true;
  thread.join();
  EXPECT_NE(line.find("stand_still_for_the_test"), std::string::npos) << line;
  EXPECT_EQ(line.find("answer("), std::string::npos) << "the handler is no news: " << line;
}

TEST(ThreadStacks, AThreadThatDoesNotAnswerHoldsNobodyUp) {
  std::atomic<bool> stands{false};
  std::atomic<bool> goes_on{false};
  std::thread thread([&] {
    pthread_setname_np(pthread_self(), "deaf-thread");
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    stand_still_for_the_test(stands, goes_on);
    pthread_sigmask(SIG_UNBLOCK, &all, nullptr);  // the question comes now, and is nobody's
  });
  while (!stands) std::this_thread::yield();
  const std::string line = line_of("deaf-thread");
  goes_on = true;
  thread.join();
  EXPECT_NE(line.find("it does not answer"), std::string::npos) << line;
}

}  // namespace
}  // namespace rudder
