// Processes that are no engines: whatever they do, whoever starts them gets a typed error, in time.
#include "rudder/remote/engine_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/remote/remote_engine.h"
#include "rudder/remote/restart_pace.h"

namespace rudder::remote {
namespace {

EngineCommand shell(const std::string& script) {
  return {.program = "/bin/sh", .arguments = {"sh", "-c", script}, .environment = {"LEFT=1"}};
}

size_t num_descriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += entry.path().empty() ? 0 : 1;
  }
  return count;
}

Error error_of(const std::string& script) {
  const auto started = start_engine({shell(script)}, {});
  return started ? Error{ErrorCode::kInternal, "it started", ""} : started.error();
}

TEST(EngineLinkTest, AProcessThatIsNoEngineIsTold) {
  const size_t before = num_descriptors();
  EXPECT_EQ(error_of("exit 7").message, "the engine process ended as it started: exit status 7");
  EXPECT_EQ(error_of("kill -9 $$").message,
            "the engine process ended as it started: killed by signal 9 (Killed)");
  EXPECT_EQ(error_of("printf '\\377\\377\\377\\377' >&3; sleep 60").code, ErrorCode::kIo);
  EXPECT_EQ(error_of("printf '\\1\\0\\0\\0\\143' >&3; sleep 60").code, ErrorCode::kIo);
  // A message whose rest never comes, of one that then ends.
  EXPECT_EQ(error_of("printf '\\100\\0\\0\\0\\1' >&3").code, ErrorCode::kInternal);
  EXPECT_EQ(
      start_engine({{.program = "/no/such/program", .arguments = {"x"}, .environment = {}}}, {})
          .error()
          .code,
      ErrorCode::kIo);
  EXPECT_EQ(num_descriptors(), before);
}

TEST(EngineLinkTest, WhatItSaysOfItsStartIsWhatIsTold) {
  const std::string frame = Channel::frame(
      FromEngine(NotReady{{ErrorCode::kNotFound, "there is no such model", "model"}}));
  std::string octal;
  for (const char byte : frame) {
    const auto value = static_cast<unsigned char>(byte);
    octal += {'\\', static_cast<char>('0' + value / 64), static_cast<char>('0' + value / 8 % 8),
              static_cast<char>('0' + value % 8)};
  }
  const Error error = error_of("printf '" + octal + "' >&3");
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_EQ(error.message, "there is no such model");
  EXPECT_EQ(error.where, "model");
}

TEST(EngineLinkTest, AProcessInheritsNoDescriptorButItsOwn) {
  // 0, 1 and 2, its end of the socket, and what it looks with.
  EXPECT_EQ(error_of("test $(ls /proc/$$/fd | wc -l) -le 5 || exit 9; exit 7").message,
            "the engine process ended as it started: exit status 7");
}

// Nothing has ended: the link is told to stop while its process says nothing.
TEST(EngineLinkTest, ALinkIsStoppedWhileItsProcessStarts) {
  const SteadyClock clock;
  const int64_t begin = clock.now_us();
  std::atomic<int> told = 0;
  {
    EngineLink link({.command = shell("exec 3>&-; sleep 60"), .max_requests = 1, .max_tokens = 10});
    EngineLink quiet({.command = shell("read line <&3"), .max_requests = 1, .max_tokens = 10});
    OpenRequest request{.id = 1,
                        .sink =
                            [&](engine::Event&& event) {
                              EXPECT_TRUE(event.error.has_value());
                              ++told;
                            },
                        .frame = "frame",
                        .tokens = 4,
                        .finished = std::vector<bool>(2)};
    EXPECT_TRUE(quiet.submit(std::move(request)));
    EXPECT_EQ(quiet.would_accept(1).error().code, ErrorCode::kOverloaded);
    EXPECT_EQ(quiet.health().error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(quiet.capture({}).error().code, ErrorCode::kUnavailable);  // after a second
  }
  EXPECT_EQ(told, 2);
  EXPECT_LT(clock.now_us() - begin, 30'000'000);
}

TEST(OpenRequestsTest, EachChoiceEndsOnce) {
  OpenRequests open;
  std::vector<engine::Event> had;
  engine::RequestParams params;
  params.n = 2;
  params.prompt.resize(10);
  params.max_tokens = 3;
  open.add(std::make_shared<OpenRequest>(
      OpenRequest{.id = 3,
                  .sink = [&](engine::Event&& event) { had.push_back(std::move(event)); },
                  .frame = "frame",
                  .tokens = 10,
                  .work = engine::OpenWork(params),
                  .finished = std::vector<bool>(2)}));
  EXPECT_EQ(open.work(), 2 * (10 + 3));
  const auto event = [](int32_t choice, bool is_end) {
    engine::Event made;
    made.choice = choice;
    if (is_end) made.finish = engine::FinishReason::kStop;
    return made;
  };
  std::vector<DueEvents> due;
  due.push_back(open.take(3, {event(0, false), event(-1, false), event(2, true), event(1, true)}));
  EXPECT_EQ(open.num_waiting(), 0);
  due.push_back(open.take(3, {event(1, true)}));
  due.push_back(open.take(4, {event(0, true)}));
  due.push_back(open.end(3, engine::FinishReason::kError, {ErrorCode::kUnavailable, "", ""}));
  deliver(std::move(due));
  ASSERT_EQ(had.size(), 3U);
  EXPECT_EQ(had[1].choice, 1);
  EXPECT_EQ(had[2].choice, 0);
  EXPECT_EQ(had[2].error->code, ErrorCode::kUnavailable);
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(open.work(), 0);
}

TEST(RestartPaceTest, WhoDoesNothingIsStartedLater) {
  RestartPace pace;
  int64_t last = 0;
  for (int i = 0; i < 20; ++i) {
    pace.note_ready();
    const int64_t wait = pace.note_end();
    EXPECT_GE(wait, last);
    last = wait;
  }
  EXPECT_EQ(last, RestartPace::kMostMs);
  pace.note_ready();
  pace.note_progress();
  EXPECT_EQ(pace.note_end(), RestartPace::kLeastMs);
  for (int i = 0; i < RestartPace::kMaxUnready - 1; ++i) EXPECT_GT(pace.note_end(), 0);
  EXPECT_LT(pace.note_end(), 0);
}

}  // namespace
}  // namespace rudder::remote
