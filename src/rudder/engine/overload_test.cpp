// More requests than the engine can run: who is refused, who is ended waiting, and what the rest
// get. EngineCore on a virtual clock over an executor whose steps take a fixed time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rudder/engine/engine_core.h"
#include "rudder/testing/fake_executor.h"
#include "rudder/testing/sim_random.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::engine {
namespace {

constexpr int32_t kPromptLen = 32, kOutputLen = 16;
constexpr int32_t kRunning = 8;

struct Answered {
  std::optional<Error> error;
  bool finished = false;
  int64_t arrival_us = 0;
  int64_t first_us = 0;
  int32_t num_tokens = 0;
  int32_t tenant = 0;
};

class OverloadTest : public ::testing::Test {
 protected:
  void start(EngineSettings settings, int64_t step_us = 1000) {
    testing::FakeOptions fake;
    fake.step_us = step_us;
    fake.capacity.num_slots = kRunning;
    fake.capacity.vocab_size = testing::kTinyAsciiVocab;
    fake.clock = clock_.get();
    settings.max_num_seqs = kRunning;
    settings.enable_prefix_caching = false;
    auto core = EngineCore::create({.executor = std::make_unique<testing::FakeExecutor>(fake),
                                    .tokenizer = testing::tiny_tokenizer(),
                                    .clock = clock_,
                                    .model_identity = "test",
                                    .eos_ids = {testing::kTinyEos}},
                                   settings, {});
    ASSERT_TRUE(core) << core.error().to_string();
    core_ = std::move(*core);
  }

  RequestParams params() {
    RequestParams params;
    params.prompt.assign(kPromptLen, 2);
    params.prompt[0] = static_cast<int32_t>(next_seed_ % 20) + 2;
    params.max_tokens = kOutputLen;
    params.ignore_eos = true;
    params.seed = ++next_seed_;
    return params;
  }
  Result<RequestId> submit(RequestParams params) {
    auto request = validate_request(std::move(params), core_->limits());
    if (!request) return tl::unexpected(request.error());
    auto answered = std::make_shared<Answered>();
    answered->arrival_us = clock_->now_us();
    answered->tenant = request->params().tenant;
    const auto id = core_->submit(std::move(*request), [this, answered](Event&& event) {
      if (!event.tokens.empty() && answered->num_tokens == 0) answered->first_us = clock_->now_us();
      answered->num_tokens += static_cast<int32_t>(event.tokens.size());
      if (!event.finish) return;
      answered->finished = true;
      answered->error = event.error;
    });
    if (id) answers_[*id] = answered;
    return id;
  }
  RequestId must_submit(RequestParams params) {
    const auto id = submit(std::move(params));
    EXPECT_TRUE(id) << id.error().to_string();
    return id.value_or(RequestId());
  }
  const Answered& answer(RequestId id) { return *answers_.at(id); }
  void run() {
    while (core_->step()) {
    }
    EXPECT_EQ(core_->num_open(), 0);
    EXPECT_EQ(core_->queue_load().requests, 0);
  }

  // Requests that come at random, `per_second` of them for so many seconds.
  struct Load {
    double p99_ttft_s = 0;  // of those that were answered in full
    double tokens_per_s = 0;
    int64_t num_answered = 0, num_refused = 0, num_ended = 0;
  };
  Load offer(double per_second, double seconds, uint64_t seed) {
    answers_.clear();
    testing::SimRandom random(seed);
    const int64_t begin_us = clock_->now_us();
    const auto gap = [&] {
      const double uniform = (static_cast<double>(random.next() >> 11) + 1) * 0x1p-53;
      return static_cast<int64_t>(-std::log(uniform) / per_second * 1e6);
    };
    Load load;
    int64_t next_us = begin_us + gap();
    while (next_us < begin_us + std::llround(seconds * 1e6)) {
      for (; next_us <= clock_->now_us(); next_us += gap()) {
        load.num_refused += submit(params()) ? 0 : 1;
      }
      if (!core_->step()) clock_->advance_to(next_us);
    }
    run();
    std::vector<double> waits;
    int64_t tokens = 0;
    for (const auto& [id, answered] : answers_) {
      EXPECT_TRUE(answered->finished);
      load.num_ended += answered->error ? 1 : 0;
      if (answered->error) continue;
      EXPECT_EQ(answered->num_tokens, kOutputLen);
      tokens += answered->num_tokens;
      waits.push_back(static_cast<double>(answered->first_us - answered->arrival_us) * 1e-6);
    }
    std::ranges::sort(waits);
    load.num_answered = std::ssize(waits);
    load.p99_ttft_s = waits[waits.size() * 99 / 100];
    load.tokens_per_s =
        static_cast<double>(tokens) / (static_cast<double>(clock_->now_us() - begin_us) * 1e-6);
    return load;
  }

  // A burst of more than the queue takes, of clients that are told when to come back: `constant`,
  // or what the engine says.
  struct Burst {
    int32_t most_tries = 0;
    int64_t num_refused = 0;  // at first
    double idle_s = 0;        // of the engine, while somebody was still told to wait
  };
  Burst burst(std::optional<int32_t> constant) {
    struct Refused {
      int64_t back_us = 0;
      int32_t tries = 1;
    };
    const auto told = [&] {
      return constant.value_or(core_->retry_after_s()) * int64_t{1'000'000};
    };
    Burst burst;
    std::vector<Refused> refused;
    int64_t taken = 0;
    for (bool is_full = false; !is_full || 10 * std::ssize(refused) < 4 * taken;) {
      if (submit(params())) {
        ++taken;
        continue;
      }
      is_full = true;
      refused.push_back({.back_us = clock_->now_us() + told()});
    }
    burst.num_refused = std::ssize(refused);
    while (!refused.empty()) {
      for (Refused& client : refused) {
        if (client.back_us > clock_->now_us()) continue;
        burst.most_tries = std::max(burst.most_tries, ++client.tries);
        client.back_us = submit(params()) ? -1 : clock_->now_us() + told();
      }
      std::erase_if(refused, [](const Refused& client) { return client.back_us < 0; });
      if (core_->step() || refused.empty()) continue;
      const int64_t next_us = std::ranges::min_element(refused, {}, &Refused::back_us)->back_us;
      burst.idle_s += static_cast<double>(next_us - clock_->now_us()) * 1e-6;
      clock_->advance_to(next_us);
    }
    run();
    return burst;
  }
  // The same behind some requests, from which the engine knows how fast it serves.
  Burst burst_at(double bound_s, std::optional<int32_t> constant) {
    EngineSettings settings;
    settings.max_queue_seconds = bound_s;
    start(settings, 20'000);
    for (int i = 0; i < 200; ++i) must_submit(params());
    run();
    return burst(constant);
  }

  std::shared_ptr<testing::VirtualClock> clock_ = std::make_shared<testing::VirtualClock>();
  std::unique_ptr<EngineCore> core_;
  std::map<RequestId, std::shared_ptr<Answered>> answers_;
  uint64_t next_seed_ = 0;
};

TEST_F(OverloadTest, AFullQueueEndsTheLastOfTheLowestPriority) {
  EngineSettings settings;
  settings.max_num_queued_reqs = 4;
  start(settings);
  for (int i = 0; i < kRunning; ++i) {
    must_submit(params());
    core_->step();
  }
  std::vector<RequestId> waiting;
  for (int i = 0; i < 4; ++i) waiting.push_back(must_submit(params()));
  core_->step();
  EXPECT_EQ(submit(params()).error().code, ErrorCode::kOverloaded);
  RequestParams urgent = params();
  urgent.priority = -1;
  const RequestId first = must_submit(urgent);
  urgent.priority = -2;
  const RequestId later = must_submit(urgent);
  core_->step();
  for (const size_t i : {2, 3}) {
    ASSERT_TRUE(answer(waiting[i]).error) << i;
    EXPECT_EQ(answer(waiting[i]).error->code, ErrorCode::kOverloaded);
    EXPECT_EQ(answer(waiting[i]).num_tokens, 0);
  }
  EXPECT_EQ(core_->queue_load().requests, 4);
  run();
  EXPECT_EQ(core_->stats().displaced, 2u);
  EXPECT_FALSE(answer(first).error);
  EXPECT_FALSE(answer(later).error);
  EXPECT_FALSE(answer(waiting[0]).error);
  EXPECT_LT(answer(later).first_us, answer(waiting[0]).first_us);
}

TEST_F(OverloadTest, OneThatIsDisplacedBeforeTheEngineTookItIsEnded) {
  EngineSettings settings;
  settings.max_num_queued_reqs = 1;
  start(settings);
  const RequestId low = must_submit(params());
  RequestParams urgent = params();
  urgent.priority = -1;
  const RequestId high = must_submit(urgent);
  run();
  ASSERT_TRUE(answer(low).error);
  EXPECT_EQ(answer(low).error->code, ErrorCode::kOverloaded);
  EXPECT_FALSE(answer(high).error);
  EXPECT_EQ(core_->stats().displaced, 1u);
}

TEST_F(OverloadTest, OneThatWaitsPastItsDeadlineIsEnded) {
  start({});
  std::vector<RequestId> running;
  for (int i = 0; i < kRunning; ++i) running.push_back(must_submit(params()));
  core_->step();
  RequestParams hurried = params();
  hurried.timeout = 0.005F;
  const RequestId late = must_submit(hurried);
  hurried.timeout = 3600;
  const RequestId patient = must_submit(hurried);
  const int64_t begin_us = clock_->now_us();
  while (!answer(late).finished) ASSERT_TRUE(core_->step());
  EXPECT_GE(clock_->now_us() - begin_us, 5'000);
  EXPECT_LE(clock_->now_us() - begin_us, 5'000 + 3'000);  // at the next step
  EXPECT_EQ(answer(late).error.value().code, ErrorCode::kOverloaded);
  run();
  EXPECT_FALSE(answer(patient).error);
  for (const RequestId id : running) EXPECT_FALSE(answer(id).error);
  EXPECT_EQ(core_->stats().expired, 1u);
}

TEST_F(OverloadTest, OneThatWouldWaitPastItsDeadlineIsRefusedAtOnce) {
  start({});
  EXPECT_EQ(core_->retry_after_s(), 1);
  for (int i = 0; i < 1000; ++i) must_submit(params());
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(core_->step());
  const double wait_s = static_cast<double>(core_->stats().expected_wait_us) * 1e-6;
  EXPECT_GT(wait_s, 1.2);
  RequestParams hurried = params();
  hurried.timeout = static_cast<float>(wait_s / 2);
  EXPECT_EQ(submit(hurried).error().code, ErrorCode::kOverloaded);
  hurried.timeout = static_cast<float>(wait_s * 2);
  const RequestId last = must_submit(hurried);
  const auto told = static_cast<double>(core_->stats().expected_wait_us) * 1e-6;
  EXPECT_EQ(core_->retry_after_s(), static_cast<int32_t>(std::ceil(told / 2)));
  run();
  EXPECT_FALSE(answer(last).error);
  const double waited_s =
      static_cast<double>(answer(last).first_us - answer(last).arrival_us) * 1e-6;
  EXPECT_NEAR(waited_s / wait_s, 1, 0.3);
}

// Nobody comes back in vain, and the engine does not wait for anybody to come back.
TEST_F(OverloadTest, WhoComesBackWhenToldFindsRoom) {
  for (const double bound_s : {60.0, 6.0}) {
    const Burst burst = burst_at(bound_s, {});
    EXPECT_GT(burst.num_refused, static_cast<int64_t>(5 * bound_s));
    EXPECT_EQ(burst.most_tries, 2) << bound_s;
    EXPECT_EQ(burst.idle_s, 0) << bound_s;
  }
}

// No constant does that, whatever the bound: the one before is too soon for one or too late for the
// other.
TEST_F(OverloadTest, NoConstantTellsWhenThereIsRoom) {
  for (const int32_t constant : {1, 3, 6, 15, 27, 60}) {
    bool is_right = true;
    for (const double bound_s : {60.0, 6.0}) {
      const Burst burst = burst_at(bound_s, constant);
      is_right = is_right && burst.most_tries == 2 && burst.idle_s == 0;
    }
    EXPECT_FALSE(is_right) << constant;
  }
}

// Ten times what the engine can serve: what is admitted waits for no longer than the queue's bound,
// and as much is served as at the best load.
TEST_F(OverloadTest, AtTenTimesTheLoadGoodputStays) {
  constexpr double kBoundS = 0.5;
  EngineSettings settings;
  settings.max_queue_seconds = kBoundS;
  start(settings);
  const Load peak = offer(1e6 / 1000, 5, 1);  // to learn what it can serve
  const double most_per_s = static_cast<double>(peak.num_answered) / 5;
  const Load unloaded = offer(0.5 * most_per_s, 10, 2);
  const Load busy = offer(0.9 * most_per_s, 10, 3);
  const Load over = offer(10 * most_per_s, 10, 4);
  const auto print = [](const char* what, const Load& load) {
    std::printf("%s: %lld answered, %lld refused, %lld ended, %.0f tok/s, P99 TTFT %.0f ms\n", what,
                static_cast<long long>(load.num_answered), static_cast<long long>(load.num_refused),
                static_cast<long long>(load.num_ended), load.tokens_per_s, load.p99_ttft_s * 1e3);
  };
  print("0.5 x", unloaded);
  print("0.9 x", busy);
  print("10 x", over);
  const double best = std::max({peak.tokens_per_s, busy.tokens_per_s});
  EXPECT_GE(over.tokens_per_s, 0.95 * best);
  EXPECT_LE(over.p99_ttft_s, 3 * unloaded.p99_ttft_s + kBoundS);
  EXPECT_EQ(unloaded.num_refused + unloaded.num_ended, 0);
  EXPECT_GT(over.num_refused, 5 * over.num_answered);
  // Refused at once, not after waiting for nothing, but for those that found an estimate too short.
  EXPECT_LE(over.num_ended, over.num_answered / 8);
}

}  // namespace
}  // namespace rudder::engine
