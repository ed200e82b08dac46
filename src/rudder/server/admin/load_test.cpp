// Many streams on few threads: what an idle one holds and what a token costs. Figures are printed.
// Wakes are bounded by count, which no machine's speed changes; bounds of CPU time have room for a
// busy machine, and under a sanitizer for what its checks cost.
#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/base/cpu_time.h"
#include "rudder/server/admin/process_stats.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSlowdown = 10;  // ThreadSanitizer: 5 to 15 times, says its manual
#else
constexpr double kSlowdown = 1;
#endif

// Of the threads that move bytes, by their name.
struct HttpThreads {
  int count = 0;
  double cpu_seconds = 0;
  int64_t wakes = 0;  // times that one of them had waited
};

int64_t voluntary_switches(const std::string& task_folder) {
  std::ifstream status(task_folder + "status");
  for (std::string word; status >> word;) {
    int64_t switches = 0;
    if (word == "voluntary_ctxt_switches:" && status >> switches) return switches;
  }
  return 0;
}

HttpThreads http_threads() {
  HttpThreads sum;
  DIR* tasks = ::opendir("/proc/self/task");
  while (const dirent* task = ::readdir(tasks)) {
    const std::string folder = fmt::format("/proc/self/task/{}/", task->d_name);
    std::string name;
    std::ifstream(folder + "comm") >> name;
    double ns = 0;
    if (name != "rudder-http" || !(std::ifstream(folder + "schedstat") >> ns)) continue;
    ++sum.count;
    sum.cpu_seconds += ns * 1e-9;
    sum.wakes += voluntary_switches(folder);
  }
  ::closedir(tasks);
  return sum;
}

int count_threads() {
  int count = 0;
  DIR* tasks = ::opendir("/proc/self/task");
  while (const dirent* task = ::readdir(tasks)) count += task->d_name[0] != '.';
  ::closedir(tasks);
  return count;
}

// What the HTTP threads do in a second.
struct Idleness {
  double cpu_seconds = 0;
  double wakes = 0;  // of a thread
};

Idleness watch_a_second() {
  const HttpThreads start = http_threads();
  const int64_t start_us = SteadyClock().now_us();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const HttpThreads end = http_threads();
  const double passed = static_cast<double>(SteadyClock().now_us() - start_us) * 1e-6;
  return {(end.cpu_seconds - start.cpu_seconds) / passed,
          static_cast<double>(end.wakes - start.wakes) / passed / end.count};
}

// Reading so many pages that nobody has read for half a second: some hosts take such pages back,
// and then one costs as much as a wake.
double seconds_of_idle_pages(size_t count) {
  constexpr size_t kPageBytes = 4096;
  std::vector<char> pages(count * kPageBytes, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double start = thread_cpu_seconds();
  int64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += *const_cast<volatile char*>(&pages[i * kPageBytes]);
  EXPECT_EQ(sum, static_cast<int64_t>(count));
  return thread_cpu_seconds() - start;
}

bool raise_descriptors(rlim_t wanted) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min(std::max(limit.rlim_cur, wanted), limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur >= wanted;
}

TEST(Load, TwoThousandIdleStreams) {
  constexpr size_t kStreams = 2000;
  if (!raise_descriptors(2 * kStreams + 200)) GTEST_SKIP() << "too few file descriptors";
  // Each says nothing until it is released.
  TestServer test([](const engine::RequestParams&) {
    Script script = say({"a", "b"});
    script.hold = true;
    return script;
  });
  test.get("/health");
  // A wake takes twenty times as long on some machines as on others, so streams are compared with
  // the same server without any. Two looks a second at a connection and a generation each.
  const double empty_cpu = watch_a_second().cpu_seconds;
  const double looks_cpu = 2 * seconds_of_idle_pages(2 * kStreams);
  const double most_cpu = 0.05 * kSlowdown + 4 * empty_cpu + looks_cpu;  // seconds a second
  const int threads = count_threads();
  const int64_t before = read_process_stats().resident_bytes;
  std::vector<TestClient> clients;
  const std::string request = post_bytes(kCompletionsPath, R"({"prompt":"a","stream":true})");
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(test.client());
    ASSERT_TRUE(clients.back().connected());
    clients.back().send(request);
  }
  ASSERT_TRUE(
      eventually([&] { return test.engine.num_active() == kStreams; }, std::chrono::seconds(120)));
  const int64_t after = read_process_stats().resident_bytes;
  EXPECT_EQ(count_threads(), threads) << "no thread for a stream";
  // Health and metrics answer as if nothing were open.
  int64_t slowest_us = 0;
  for (int i = 0; i < 20; ++i) {
    const int64_t start = SteadyClock().now_us();
    EXPECT_EQ(test.get(i % 2 == 0 ? "/metrics" : "/health").status, 200);
    slowest_us = std::max(slowest_us, SteadyClock().now_us() - start);
  }
  // What came before may end in the first of these seconds. Sweeps are ten a second and a thread.
  constexpr double kIdleWakes = 15;
  Idleness idle{most_cpu, kIdleWakes};
  for (int i = 0; i < 5 && (idle.cpu_seconds >= most_cpu || idle.wakes >= kIdleWakes); ++i) {
    idle = watch_a_second();
  }
  fmt::print(
      "[ figures  ] {} streams: {:.1f} MiB resident, {:.1f} KiB a stream (client and script "
      "included), {} threads, slowest /metrics or /health {:.1f} ms, idle: CPU {:.1f} of {:.1f} ms "
      "a second "
      "({:.1f} without streams), {:.1f} wakes a second and thread\n",
      kStreams, static_cast<double>(after) / (1 << 20),
      static_cast<double>(after - before) / kStreams / 1024, threads,
      static_cast<double>(slowest_us) / 1e3, idle.cpu_seconds * 1e3, most_cpu * 1e3,
      empty_cpu * 1e3, idle.wakes);
  EXPECT_LT(idle.cpu_seconds, most_cpu);
  EXPECT_LT(idle.wakes, kIdleWakes) << "an idle stream wakes nobody";
  test.engine.release();
  for (TestClient& client : clients) {
    const ClientResponse answer = client.receive("POST", std::chrono::seconds(60));
    ASSERT_TRUE(answer.complete);
    ASSERT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
  }
}

TEST(Load, CostOfAStreamedToken) {
  constexpr size_t kStreams = 64;
  constexpr size_t kTokens = 500;
  TestServer test([](const engine::RequestParams&) {
    Script script = say(std::vector<std::string>(kTokens, " token"));
    script.tick_us = 10'000;
    return script;
  });
  std::vector<TestClient> clients;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(test.client());
    clients.back().send(post_bytes(
        "/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"stream":true})"));
  }
  ASSERT_TRUE(eventually([&] { return test.engine.num_active() == kStreams; }));
  const double cpu_before = http_threads().cpu_seconds;
  const int64_t sink_before = test.engine.sink_ns();
  const uint64_t sent_before = test.engine.events_sent();
  ASSERT_TRUE(eventually([&] { return test.engine.num_active() == 0; }, std::chrono::seconds(120)));
  size_t bytes = 0;
  for (TestClient& client : clients) {
    const ClientResponse answer = client.receive("POST", std::chrono::seconds(60));
    ASSERT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
    bytes += answer.body.size();
  }
  const double cpu = http_threads().cpu_seconds - cpu_before;
  const auto tokens = static_cast<double>(test.engine.events_sent() - sent_before);
  const double us = cpu * 1e6 / tokens;
  const double sink_us = static_cast<double>(test.engine.sink_ns() - sink_before) / 1e3 / tokens;
  fmt::print(
      "[ figures  ] {} streams, {} tokens: {:.2f} us of HTTP threads and {:.2f} us of the engine "
      "thread a token, {:.0f} bytes a token\n",
      kStreams, tokens, us, sink_us, static_cast<double>(bytes) / tokens);
  EXPECT_LT(us, 100 * kSlowdown);
}

}  // namespace
}  // namespace rudder::server
