// What one form may cost at a vocabulary of 128,000 tokens, whatever it asks for: two seconds of
// the thread and 64 MiB at the highest, and it stops within 100 ms when nobody waits for it. Prints
// what each hostile form takes.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>
#include <utility>

#include "bench/sample_vocabulary.h"
#include "rudder/base/cpu_time.h"
#include "rudder/constraint/form_engine.h"
#include "rudder/constraint/grammar_compiler.h"
#include "rudder/constraint/hostile_forms.h"
#include "rudder/constraint/hostile_search.h"

namespace {

// Bytes that the thread holds now and held at the most. What one thread frees and another took
// counts below nothing.
thread_local int64_t live_bytes = 0;
thread_local int64_t peak_bytes = 0;

void* taken_or_null(size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) return nullptr;
  live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  peak_bytes = std::max(peak_bytes, live_bytes);
  return memory;
}
void* taken(size_t bytes) {
  void* memory = taken_or_null(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void give_back(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) {
  return taken(bytes);
}
void* operator new[](size_t bytes) {
  return taken(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return taken_or_null(bytes);
}
void operator delete(void* memory) noexcept {
  give_back(memory);
}
void operator delete[](void* memory) noexcept {
  give_back(memory);
}
void operator delete(void* memory, size_t) noexcept {
  give_back(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  give_back(memory);
}

namespace rudder::constraint {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr double kSlower = 100;  // what ends a compile is many frees, each of which takes a lock
constexpr double kLarger = 4;
#elif defined(__SANITIZE_ADDRESS__)
constexpr double kSlower = 12;  // an instrumented binary, and its allocator's redzones
constexpr double kLarger = 4;
#else
constexpr double kSlower = 1;
constexpr double kLarger = 1;
#endif
constexpr double kMostCompileSeconds = 2;
constexpr double kMostBytes = 64 << 20;
constexpr double kMostSecondsToStop = 0.1;

const FormEngine& engine() {
  static const FormEngine engine(apps::sample_vocabulary(128'000), GrammarSettings().memo_bytes());
  return engine;
}

struct Cost {
  double seconds = 0;
  double bytes = 0;
  double fuel = 0;  // of the work that a compile may do, the share that was used
  std::string end;
};

Cost cost_of(const GrammarSpec& spec, double share) {
  const auto work = static_cast<int64_t>(share * Fuel::kWork);
  Fuel fuel(work);
  engine();
  const int64_t before = live_bytes;
  peak_bytes = before;
  const double start = thread_cpu_seconds();
  const auto made = engine().compile(spec, fuel);
  Cost cost;
  cost.seconds = thread_cpu_seconds() - start;
  cost.bytes = static_cast<double>(peak_bytes - before);
  cost.fuel = static_cast<double>(fuel.used()) / static_cast<double>(work);
  cost.end = made ? "taken" : made.error().message.substr(0, 70);
  return cost;
}

// With a share of the work that a compile may do, so that the daily run is short.
void expect_within_bounds(double share) {
  constexpr double kAlways = 0.2;  // seconds, of what is not worth its fuel
  const double most = (share * kMostCompileSeconds + (share < 1 ? kAlways : 0)) * kSlower;
  for (const HostileForm& form : hostile_forms()) {
    EXPECT_LE(std::ssize(form.spec.text), GrammarSettings().max_grammar) << form.name;
    const Cost cost = cost_of(form.spec, share);
    fmt::print("{:<52}{:>8.0f} ms{:>8.1f} MiB{:>7.2f}  {}\n", form.name, cost.seconds * 1e3,
               cost.bytes / (1 << 20), cost.fuel, cost.end);
    EXPECT_LE(cost.seconds, most) << form.name;
    EXPECT_LE(cost.bytes, kMostBytes * kLarger) << form.name;
  }
}

TEST(CompileLimits, WorkIsBoundedByItsFuel) {
  expect_within_bounds(kSlower > 1 ? 0.002 : 0.02);
}
TEST(CompileLimitsFull, AnyFormTakesTwoSecondsAnd64MebibytesAtMost) {
  expect_within_bounds(1);
}

// Schemas that a search finds, which tries those that cost most for each of their bytes; as many as
// it can in a time of the thread, which the dear ones take up.
void expect_search_within_bounds(double share, uint32_t seed, int tries, double most_seconds) {
  constexpr double kAlways = 0.2;
  const double most = (share * kMostCompileSeconds + (share < 1 ? kAlways : 0)) * kSlower;
  HostileSearch search(seed);
  double dearest = 0;
  const double start = thread_cpu_seconds();
  int tried = 0;
  for (; tried < tries && thread_cpu_seconds() - start < most_seconds; ++tried) {
    const GrammarSpec spec = {.kind = GrammarKind::kJsonSchema, .text = search.next()};
    const Cost cost = cost_of(spec, share);
    const double worst = std::max(cost.seconds / most, cost.bytes / (kMostBytes * kLarger));
    EXPECT_LE(cost.seconds, most) << spec.text;
    EXPECT_LE(cost.bytes, kMostBytes * kLarger) << spec.text;
    search.report(worst);
    dearest = std::max(dearest, worst);
  }
  fmt::print("seed {}, {} schemas: {:.2f} of a bound at most; most for its bytes: {}\n", seed,
             tried, dearest, search.best_text().substr(0, 300));
  EXPECT_GE(tried, 10);
}

constexpr double kMostSearchSeconds = 60;  // of a seed

TEST(CompileLimits, NoSchemaThatASearchFindsIsDearer) {
  for (uint32_t seed = 0; seed < 3; ++seed) {
    expect_search_within_bounds(kSlower > 1 ? 0.002 : 0.02, seed, kSlower > 1 ? 40 : 150,
                                kMostSearchSeconds);
  }
}

class CompileSearchFull : public testing::TestWithParam<uint32_t> {};

TEST_P(CompileSearchFull, NoSchemaIsDearer) {
  expect_search_within_bounds(1, GetParam(), 500, kMostSearchSeconds);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CompileSearchFull, testing::Range(0U, 8U));

double cpu_seconds_of(pthread_t thread) {
  clockid_t clock = {};
  timespec now = {};
  pthread_getcpuclockid(thread, &clock);
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Time of the thread from the cancellation to the end; nothing or less where the compile ended
// before.
double seconds_to_stop(const GrammarSpec& spec, double after) {
  std::atomic<bool> cancelled = false;
  std::atomic<bool> ended = false;
  double cancelled_at = -1;
  engine();  // made before the time runs
  const pthread_t compiling = pthread_self();
  const double start = thread_cpu_seconds();
  std::thread canceller([&] {
    while (!ended) {
      if (cpu_seconds_of(compiling) - start >= after) {
        cancelled = true;
        // Behind it: what the compile does while this thread is held back is not counted.
        cancelled_at = cpu_seconds_of(compiling);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  {
    Fuel fuel(Fuel::kWork, Fuel::kBytes, &cancelled);
    const auto made = engine().compile(spec, fuel);
  }
  const double end = thread_cpu_seconds();
  ended = true;
  canceller.join();
  return cancelled_at < 0 ? 0 : end - cancelled_at;
}

TEST(CompileLimitsFull, ACompileStopsSoonAtAnyTime) {
  for (const HostileForm& form : hostile_forms()) {
    for (const double after : {0.02, 0.3, 0.8}) {
      EXPECT_LE(seconds_to_stop(form.spec, after), kMostSecondsToStop * kSlower)
          << form.name << ", after " << after << " s";
    }
  }
}

}  // namespace
}  // namespace rudder::constraint
