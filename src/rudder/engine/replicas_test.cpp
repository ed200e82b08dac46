// Engine with several replicas: where requests go, what they answer, and what one failure leaves.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "rudder/engine/engine.h"
#include "rudder/testing/fake_executor.h"
#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"

namespace rudder::engine {
namespace {

constexpr auto kAnswerPatience = std::chrono::seconds(60);

struct Answer {
  std::vector<std::vector<int32_t>> tokens;  // by choice
  std::vector<FinishReason> finishes;
  std::optional<ErrorCode> error;
  int32_t cached_tokens = 0;  // of choice 0
};

// What requests got, by the order in which they were submitted.
class Answers {
 public:
  EventSink sink(size_t request) {
    return [this, request](Event&& event) {
      const std::lock_guard lock(mutex_);
      Answer& answer = answers_[request];
      const auto choice = static_cast<size_t>(event.choice);
      if (answer.tokens.size() <= choice) answer.tokens.resize(choice + 1);
      for (const OutputToken& token : event.tokens) answer.tokens[choice].push_back(token.token);
      if (event.error) answer.error = event.error->code;
      if (!event.finish) return;
      if (choice == 0) answer.cached_tokens = event.usage.cached_tokens;
      answer.finishes.push_back(*event.finish);
      changed_.notify_all();
    };
  }
  Answer wait(size_t request, size_t choices = 1) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kAnswerPatience,
                                  [&] { return answers_[request].finishes.size() >= choices; }));
    return answers_[request];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<size_t, Answer> answers_;
};

std::unique_ptr<Engine> start_replicas(std::vector<std::unique_ptr<step::Executor>> executors,
                                       EngineSettings settings = {}) {
  Engine::Parts parts{.executor = std::move(executors.front()),
                      .tokenizer = testing::tiny_tokenizer(),
                      .clock = std::make_shared<SteadyClock>(),
                      .model_identity = "test",
                      .eos_ids = {0}};
  for (size_t i = 1; i < executors.size(); ++i) {
    parts.more.push_back({.executor = std::move(executors[i])});
  }
  auto engine = Engine::start(std::move(parts), settings);
  EXPECT_TRUE(engine) << engine.error().to_string();
  return std::move(*engine);
}

std::vector<std::unique_ptr<step::Executor>> fake_executors(size_t count) {
  std::vector<std::unique_ptr<step::Executor>> executors;
  for (size_t i = 0; i < count; ++i) {
    testing::FakeOptions options;
    options.capacity.vocab_size = testing::ScriptedExecutor::default_capacity().vocab_size;
    executors.push_back(std::make_unique<testing::FakeExecutor>(options));
  }
  return executors;
}

Request wide_request(const Engine& engine, int32_t subject, std::optional<uint64_t> seed = {},
                     int32_t length = 100) {
  RequestParams params;
  for (int32_t i = 0; i < length; ++i) params.prompt.push_back(1 + (subject * 7 + i) % 5);
  params.sampling.temperature = 1;
  params.max_tokens = 6;
  params.ignore_eos = true;
  params.seed = seed;
  params.n = 2;
  auto made = validate_request(std::move(params), engine.limits());
  EXPECT_TRUE(made) << made.error().to_string();
  return std::move(*made);
}

std::vector<uint64_t> prompts_of_each(const Engine& engine) {
  std::vector<uint64_t> counts;
  for (const ReplicaState& replica : engine.replicas()) {
    counts.push_back(replica.stats.prompt_tokens);
  }
  return counts;
}

// Seeds that are drawn are those of one replica too: by the order of arrival.
TEST(Replicas, AnswerAsOneDoes) {
  std::vector<std::vector<std::vector<int32_t>>> alone;
  for (const size_t count : {1, 3}) {
    EngineSettings settings;
    settings.seed = 5;
    const auto engine = start_replicas(fake_executors(count), settings);
    Answers answers;
    constexpr size_t kRequests = 12;
    for (size_t i = 0; i < kRequests; ++i) {
      const std::optional<uint64_t> seed = i % 2 == 0 ? std::optional<uint64_t>(i) : std::nullopt;
      ASSERT_TRUE(
          engine->submit(wide_request(*engine, static_cast<int32_t>(i), seed), answers.sink(i)));
    }
    for (size_t i = 0; i < kRequests; ++i) {
      const Answer answer = answers.wait(i, 2);
      if (count == 1) alone.push_back(answer.tokens);
      EXPECT_EQ(answer.tokens, alone[i]) << "request " << i << " of " << count << " replicas";
      EXPECT_NE(answer.tokens[0], answer.tokens[1]) << "the choices draw alike";
    }
    EXPECT_TRUE(engine->drain(60'000'000));
    const EngineStats all = engine->stats();
    EXPECT_EQ(all.finished_length, 2 * kRequests);
    uint64_t sum = 0;
    for (const uint64_t tokens : prompts_of_each(*engine)) {
      EXPECT_GT(tokens, 0u) << "a replica had nothing to do";
      sum += tokens;
    }
    EXPECT_EQ(sum, all.prompt_tokens);
    EXPECT_EQ(all.e2e_latency.count, 2 * kRequests);
    EXPECT_EQ(engine->submit(wide_request(*engine, 0), answers.sink(99)).error().code,
              ErrorCode::kUnavailable);
  }
}

TEST(Replicas, ARepeatGoesToWhoHasItsPrefix) {
  const auto engine = start_replicas(fake_executors(2));
  Answers answers;
  size_t number = 0;
  const auto run = [&](int32_t subject) {
    EXPECT_TRUE(engine->submit(wide_request(*engine, subject), answers.sink(number)));
    const Answer answer = answers.wait(number++, 2);
    // A turn that ends a request publishes its counts behind what it no longer charges a replica.
    const auto deadline = std::chrono::steady_clock::now() + kAnswerPatience;
    while (engine->stats().finished_length < 2 * number &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return answer;
  };
  for (int32_t subject = 0; subject < 4; ++subject) EXPECT_EQ(run(subject).cached_tokens, 0);
  const std::vector<uint64_t> before = prompts_of_each(*engine);
  EXPECT_EQ(before[0], before[1]) << "new prompts take turns";
  for (int32_t round = 0; round < 3; ++round) {
    for (int32_t subject = 0; subject < 4; ++subject) {
      EXPECT_EQ(run(subject).cached_tokens, 96) << "of subject " << subject;
    }
  }
  engine->reset_prefix_cache();
  EXPECT_EQ(run(0).cached_tokens, 0);
}

struct TwoScripted {
  explicit TwoScripted(EngineSettings settings = {}) {
    std::vector<std::unique_ptr<step::Executor>> executors;
    for (testing::ScriptedExecutor*& one : scripted) {
      auto executor = std::make_unique<testing::ScriptedExecutor>(std::vector<int32_t>{2, 3, 4});
      one = executor.get();
      executors.push_back(std::move(executor));
    }
    engine = start_replicas(std::move(executors), settings);
  }
  std::vector<testing::ScriptedExecutor::Hold> hold_both() {
    std::vector<testing::ScriptedExecutor::Hold> holds;
    for (testing::ScriptedExecutor* one : scripted) holds.push_back(one->hold());
    return holds;
  }

  testing::ScriptedExecutor* scripted[2] = {};
  Answers answers;
  std::unique_ptr<Engine> engine;
};

TEST(Replicas, AFailureEndsItsOwnRequestsAlone) {
  TwoScripted two;
  Engine& engine = *two.engine;
  auto holds = two.hold_both();
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(
        engine.submit(wide_request(engine, static_cast<int32_t>(i), {}, 10), two.answers.sink(i)));
  }
  two.scripted[1]->fail_collects();
  holds.clear();
  int failed = 0;
  for (size_t i = 0; i < 4; ++i) {
    const Answer answer = two.answers.wait(i, 2);
    if (!answer.error) continue;
    ++failed;
    // The second may not have begun when the replica failed.
    EXPECT_TRUE(*answer.error == ErrorCode::kInternal || *answer.error == ErrorCode::kUnavailable)
        << static_cast<int>(*answer.error);
    EXPECT_EQ(answer.finishes, (std::vector{FinishReason::kError, FinishReason::kError}));
  }
  EXPECT_EQ(failed, 2);
  const std::vector<ReplicaState> states = engine.replicas();
  EXPECT_TRUE(states[0].health);
  EXPECT_FALSE(states[1].health);
  EXPECT_TRUE(engine.health()) << "it takes requests";
  for (size_t i = 4; i < 8; ++i) {
    ASSERT_TRUE(engine.submit(wide_request(engine, 0, {}, 10), two.answers.sink(i)));
    EXPECT_EQ(two.answers.wait(i, 2).finishes[0], FinishReason::kLength);
  }

  two.scripted[0]->fail_launches();
  ASSERT_TRUE(engine.submit(wide_request(engine, 9, {}, 10), two.answers.sink(8)));
  EXPECT_EQ(two.answers.wait(8, 2).error, ErrorCode::kInternal);
  EXPECT_FALSE(engine.health());
  EXPECT_EQ(engine.submit(wide_request(engine, 0, {}, 10), two.answers.sink(9)).error().code,
            ErrorCode::kUnavailable);
}

TEST(Replicas, ACancelFindsItsRequestAndALoadItsBound) {
  // A replica runs one choice at a time, and has two requests waiting at most.
  EngineSettings settings;
  settings.max_num_seqs = 1;
  settings.max_num_queued_reqs = 2;
  TwoScripted two(settings);
  Engine& engine = *two.engine;
  auto holds = two.hold_both();
  std::vector<RequestId> ids;
  // Of each replica one that runs and two that wait. The queue has room for the second of these
  // once the replica's thread has begun the first request.
  constexpr size_t kMost = 6;
  uint64_t refused = 0;
  const auto submit = [&] {
    const auto number = static_cast<int32_t>(ids.size());
    return engine.submit(wide_request(engine, number, {}, 10), two.answers.sink(ids.size()));
  };
  while (ids.size() < kMost && refused < 10'000) {
    const Result<RequestId> id = submit();
    if (id) {
      ids.push_back(*id);
      continue;
    }
    ++refused;
    EXPECT_EQ(id.error().code, ErrorCode::kOverloaded);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(ids.size(), kMost);
  const Result<RequestId> last = submit();
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, ErrorCode::kOverloaded);
  const auto accepted = engine.would_accept({.tokens = 20});
  ASSERT_FALSE(accepted);
  EXPECT_EQ(accepted.error().code, ErrorCode::kOverloaded);
  EXPECT_GE(engine.retry_after_s(), 1);
  EXPECT_EQ(engine.stats().rejected, refused + 1);
  for (const RequestId id : ids) engine.cancel(id);
  holds.clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(two.answers.wait(i, 2).finishes,
              (std::vector{FinishReason::kCancelled, FinishReason::kCancelled}));
  }
  EXPECT_TRUE(engine.drain(60'000'000));
}

TEST(Replicas, OfDifferentCapacityAreRefused) {
  auto executors = fake_executors(1);
  testing::FakeOptions smaller;
  smaller.capacity.num_blocks = 128;
  Engine::Parts parts{.executor = std::move(executors.front()),
                      .tokenizer = testing::tiny_tokenizer(),
                      .clock = std::make_shared<SteadyClock>(),
                      .model_identity = "test",
                      .eos_ids = {0}};
  parts.more.push_back({.executor = std::make_unique<testing::FakeExecutor>(smaller)});
  const auto engine = Engine::start(std::move(parts), {});
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().where, "data-parallel-size");
}

}  // namespace
}  // namespace rudder::engine
