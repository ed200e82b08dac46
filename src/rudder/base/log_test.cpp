#include "rudder/base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

namespace rudder {
namespace {

// Standard error is a pipe for as long as this lives.
class StandardErrorPipe {
 public:
  StandardErrorPipe() {
    flush_logs();
    EXPECT_EQ(::pipe(ends_), 0);
    before_ = ::dup(STDERR_FILENO);
    ::dup2(ends_[1], STDERR_FILENO);
    ::close(ends_[1]);
  }
  ~StandardErrorPipe() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    ::close(ends_[0]);
  }

  // Reads until the text has come, or ten seconds have passed.
  std::string read_until(const std::string& text) {
    return read_until(
        [&text](const std::string& seen) { return seen.find(text) != std::string::npos; });
  }
  std::string read_until(const std::function<bool(const std::string&)>& is_enough) {
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    std::string seen;
    while (!is_enough(seen) && std::chrono::steady_clock::now() < deadline) {
      char bytes[65536];
      const ssize_t got = ::read(ends_[0], bytes, sizeof(bytes));
      if (got > 0) {
        seen.append(bytes, static_cast<size_t>(got));
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return seen;
  }

 private:
  int ends_[2] = {-1, -1};
  int before_ = -1;
};

// The sum of the N of all lines "N lines of this log were dropped" of the text.
uint64_t sum_of_reported_drops(const std::string& text) {
  uint64_t sum = 0;
  for (size_t at = 0; (at = text.find(" lines of this log were dropped", at)) != std::string::npos;
       ++at) {
    const size_t before = text.find_last_of(' ', at - 1);
    sum += std::stoull(text.substr(before + 1, at - before - 1));
  }
  return sum;
}

TEST(Log, LinesAreWrittenInOrder) {
  StandardErrorPipe pipe;
  log_warn("first {}", 1);
  log_error("second");
  const std::string seen = pipe.read_until("second\n");
  EXPECT_NE(seen.find("warning first 1\n"), std::string::npos) << seen;
  EXPECT_LT(seen.find("first 1"), seen.find("error second\n")) << seen;
}

TEST(Log, NobodyWaitsForAReaderOfStandardError) {
  StandardErrorPipe pipe;
  const uint64_t dropped_before = log_lines_dropped();
  const auto start = std::chrono::steady_clock::now();
  const std::string text(1000, 'x');
  for (int i = 0; i < 10'000; ++i) log_warn("{}", text);  // ten times what pipe and queue hold
  flush_logs();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  const uint64_t dropped = log_lines_dropped() - dropped_before;
  EXPECT_GT(dropped, 5'000u);
  EXPECT_LT(dropped, 10'000u);
  // The writing thread reports drops after each batch of lines: in one report or in several.
  const std::string seen = pipe.read_until(
      [dropped](const std::string& text) { return sum_of_reported_drops(text) >= dropped; });
  EXPECT_EQ(sum_of_reported_drops(seen), dropped);
  log_warn("after");
  EXPECT_NE(pipe.read_until("after\n").find("warning after\n"), std::string::npos);
}

TEST(Log, AForkedProcessWritesItsLines) {
  log_warn("there is a writing thread");
  EXPECT_EXIT(
      {
        log_error("of the child");
        ::_exit(7);
      },
      ::testing::ExitedWithCode(7), "error of the child");
}

}  // namespace
}  // namespace rudder
