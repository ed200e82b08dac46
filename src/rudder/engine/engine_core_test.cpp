// EngineCore turn by turn over a scripted executor. Token ids are tiny_tokenizer's.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rudder/engine/engine_core.h"
#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::engine {
namespace {

using testing::ScriptedExecutor;

constexpr int32_t kEos = testing::kTinyEos, kOtherStop = testing::kTinyOtherStop;
constexpr int32_t kA = 2, kB = 3, kC = 4, kD = 5, kAb = 24, kCd = 25;
constexpr int32_t kByteC3 = 32, kByteA9 = 33;

// What one choice got, all events together.
struct Got {
  std::string text;
  std::vector<int32_t> tokens;
  int num_events = 0;
  int num_finishes = 0;
  Event last;
};

class EngineCoreTest : public ::testing::Test {
 protected:
  void start(std::vector<int32_t> script, EngineSettings settings = {},
             step::Capacity capacity = ScriptedExecutor::default_capacity()) {
    auto executor = std::make_unique<ScriptedExecutor>(std::move(script), capacity);
    executor_ = executor.get();
    auto core = EngineCore::create({.executor = std::move(executor),
                                    .tokenizer = testing::tiny_tokenizer(),
                                    .clock = clock_,
                                    .model_identity = "test",
                                    .eos_ids = {kEos}},
                                   settings, {});
    ASSERT_TRUE(core) << core.error().to_string();
    core_ = std::move(*core);
    got_.clear();
  }

  static RequestParams params(int32_t max_tokens = 4) {
    RequestParams params;
    params.prompt = {kA, kB, kC, kD, kA};
    params.max_tokens = max_tokens;
    params.seed = 7;
    return params;
  }

  Result<RequestId> try_submit(RequestParams params) {
    auto request = validate_request(std::move(params), core_->limits());
    if (!request) return tl::unexpected(request.error());
    return core_->submit(std::move(*request), [this](Event&& event) {
      Got& got = got_[{event.id, event.choice}];
      EXPECT_EQ(got.num_finishes, 0) << "an event after the last one";
      got.text += event.text;
      for (const OutputToken& token : event.tokens) got.tokens.push_back(token.token);
      got.num_events += 1;
      got.num_finishes += event.finish ? 1 : 0;
      got.last = std::move(event);
    });
  }
  RequestId submit(RequestParams params) {
    auto id = try_submit(std::move(params));
    EXPECT_TRUE(id) << id.error().to_string();
    return id.value_or(RequestId());
  }
  const Got& got(RequestId id, int32_t choice = 0) { return got_[{id, choice}]; }
  void run() {
    for (int turn = 0; core_->step(); ++turn) ASSERT_LT(turn, 1000);
    EXPECT_TRUE(core_->scheduler().idle());
    EXPECT_EQ(core_->stats().blocks_in_use, 0);
    EXPECT_EQ(core_->num_open(), 0);
    EXPECT_EQ(core_->queue_load().requests, 0);
    EXPECT_EQ(core_->queue_load().tokens, 0);
  }
  Got run_one(RequestParams params) {
    const RequestId id = submit(std::move(params));
    run();
    EXPECT_EQ(got(id).num_finishes, 1);
    return got(id);
  }

  std::shared_ptr<testing::VirtualClock> clock_ = std::make_shared<testing::VirtualClock>();
  ScriptedExecutor* executor_ = nullptr;
  std::unique_ptr<EngineCore> core_;
  std::map<std::pair<RequestId, int32_t>, Got> got_;
};

TEST_F(EngineCoreTest, EachTokenIsAnEventUntilTheLength) {
  start({kA, kB, kCd});
  const Got got = run_one(params(3));
  EXPECT_EQ(got.text, "abcd");
  EXPECT_EQ(got.tokens, (std::vector<int32_t>{kA, kB, kCd}));
  EXPECT_EQ(got.num_events, 3);
  EXPECT_EQ(got.last.finish, FinishReason::kLength);
  EXPECT_EQ(got.last.usage.prompt_tokens, 5);
  EXPECT_EQ(got.last.usage.completion_tokens, 3);
  EXPECT_FALSE(got.last.error);
}

TEST_F(EngineCoreTest, EosStopsWithoutNamingItself) {
  start({kA, kEos});
  const Got got = run_one(params(9));
  EXPECT_EQ(got.last.finish, FinishReason::kStop);
  EXPECT_EQ(got.last.stop_token, std::nullopt);
  EXPECT_EQ(got.last.usage.completion_tokens, 2);
  EXPECT_EQ(got.text, "a");
}

TEST_F(EngineCoreTest, AnIgnoredEosIsAStopIdLikeAnyOther) {
  start({kA, kEos});
  RequestParams d = params(9);
  d.ignore_eos = true;
  EXPECT_EQ(run_one(d).last.finish, FinishReason::kLength);
  d.sampling.stop_ids = {kEos};
  EXPECT_EQ(run_one(d).last.stop_token, kEos);
}

TEST_F(EngineCoreTest, AStopIdIsNamedAndItsTextLeftOut) {
  start({kA, kB});
  RequestParams d = params(9);
  d.sampling.stop_ids = {kB};
  const Got without = run_one(d);
  EXPECT_EQ(without.last.finish, FinishReason::kStop);
  EXPECT_EQ(without.last.stop_token, kB);
  EXPECT_EQ(without.text, "a");
  EXPECT_EQ(without.tokens, (std::vector<int32_t>{kA, kB}));
  d.include_stop = true;
  EXPECT_EQ(run_one(d).text, "ab");
}

TEST_F(EngineCoreTest, SpecialTokensShowWhenAsked) {
  start({kA, kOtherStop, kB});
  RequestParams d = params(3);
  EXPECT_EQ(run_one(d).text, "ab");
  d.skip_special_tokens = false;
  EXPECT_EQ(run_one(d).text, "a<stop>b");
}

TEST_F(EngineCoreTest, AStopStringAcrossTokensCutsTheTextAndTheTokens) {
  for (const bool async : {false, true}) {
    EngineSettings settings;
    settings.async_scheduling = async;
    start({kA, kB, kCd, kA, kA, kA}, settings);
    RequestParams d = params(20);
    d.stop = {"zz", "bc"};
    const Got got = run_one(d);
    EXPECT_EQ(got.text, "a");
    EXPECT_EQ(got.tokens, (std::vector<int32_t>{kA, kB, kCd}));
    EXPECT_EQ(got.last.finish, FinishReason::kStop);
    EXPECT_EQ(got.last.stop_reason, "bc");
    EXPECT_EQ(got.last.stop_token, std::nullopt);
    EXPECT_EQ(got.last.usage.completion_tokens, 3);
    d.include_stop = true;
    EXPECT_EQ(run_one(d).text, "abc");
  }
}

TEST_F(EngineCoreTest, ARepetitionEndsTheChoiceBehindMinTokens) {
  start({kA, kB, kA, kB, kA, kB, kA, kB, kA, kB});
  RequestParams d = params(9);
  d.repetition = {.max_pattern = 4, .min_pattern = 2, .min_count = 2};
  Got got = run_one(d);
  EXPECT_EQ(got.text, "abab");
  EXPECT_EQ(got.last.finish, FinishReason::kStop);
  EXPECT_EQ(got.last.stop_reason, "repetition_detected");
  d.sampling.min_tokens = 6;
  EXPECT_EQ(run_one(d).tokens.size(), 7u);
}

// step.I9 at the engine's edge.
TEST_F(EngineCoreTest, ARepeatedStepStreamsEachTokenAtItsOwnIteration) {
  step::Capacity capacity = ScriptedExecutor::default_capacity();
  capacity.max_repeat = 16;
  EngineSettings settings;
  settings.multi_step = 8;
  start({kA, kB, kC, kD}, settings, capacity);
  const RequestId id = submit(params(30));
  int turns = 0;
  for (int seen = 0; core_->step(); ++turns) {
    EXPECT_LE(got(id).num_events, seen + 1);
    seen = got(id).num_events;
  }
  EXPECT_EQ(got(id).num_events, 30);
  EXPECT_EQ(executor_->num_launched(), 5u);  // the prompt, then 8 + 8 + 8 + 5
  const EngineStats stats = core_->stats();
  EXPECT_EQ(stats.steps, 5u);
  EXPECT_EQ(stats.iterations, 30u);
  EXPECT_EQ(stats.iteration_tokens.count, 30u);
  run();
}

TEST_F(EngineCoreTest, ARequestOrACancelWithinARepeatedStep) {
  step::Capacity capacity = ScriptedExecutor::default_capacity();
  capacity.max_repeat = 16;
  EngineSettings settings;
  settings.multi_step = 8;
  for (int before = 0; before < 20; ++before) {
    start({kA, kB, kC, kD}, settings, capacity);
    const RequestId first = submit(params(60));
    for (int i = 0; i < before; ++i) core_->step();
    const RequestId second = submit(params(3));
    int waited = 0;
    for (; got(second).num_events == 0; ++waited) core_->step();
    // The rest of a step and one ahead of it, then its own.
    EXPECT_LE(waited, 8 + 2) << before;
    const int had = got(first).num_events;
    core_->cancel(first);
    core_->step();
    EXPECT_EQ(got(first).last.finish, FinishReason::kCancelled);
    EXPECT_EQ(std::ssize(got(first).tokens), had);
    run();
    EXPECT_EQ(got(second).tokens.size(), 3u);
  }
}

// Two stop within a step; nothing is left in flight and a later request finds the engine as new.
TEST_F(EngineCoreTest, ARepeatedStepThatAllHaveLeftIsCollected) {
  step::Capacity capacity = ScriptedExecutor::default_capacity();
  capacity.max_repeat = 16;
  EngineSettings settings;
  settings.multi_step = 16;
  start({kA, kB, kEos, kD}, settings, capacity);
  const RequestId first = submit(params(60));
  const RequestId second = submit(params(60));
  run();
  EXPECT_EQ(got(first).tokens, (std::vector<int32_t>{kA, kB, kEos}));
  EXPECT_EQ(got(second).tokens, (std::vector<int32_t>{kA, kB, kEos}));
  EXPECT_GT(core_->stats().late_results, 0u);
  EXPECT_EQ(run_one(params(2)).tokens.size(), 2u);
}

TEST_F(EngineCoreTest, TextHeldForAStopStringComesAtTheEnd) {
  start({kA, kB});
  RequestParams d = params(2);
  d.stop = {"abc"};
  const Got got = run_one(d);
  EXPECT_EQ(got.text, "ab");
  EXPECT_EQ(got.last.text, "ab");  // nothing was certain before
  EXPECT_EQ(got.last.finish, FinishReason::kLength);
}

TEST_F(EngineCoreTest, AStopStringOnTheLastTokenIsAStop) {
  start({kA, kB});
  RequestParams d = params(2);
  d.stop = {"ab"};
  EXPECT_EQ(run_one(d).last.finish, FinishReason::kStop);
}

TEST_F(EngineCoreTest, StopStringsCountBehindMinTokens) {
  start({kA, kB, kA, kB});
  RequestParams d = params(4);
  d.stop = {"b"};
  d.sampling.min_tokens = 2;
  const Got got = run_one(d);
  EXPECT_EQ(got.text, "aba");
  EXPECT_EQ(got.last.finish, FinishReason::kStop);
}

TEST_F(EngineCoreTest, ACharacterOfTwoTokensComesWhole) {
  start({kA, kByteC3, kByteA9, kB});
  const RequestId id = submit(params(4));
  std::vector<std::string> seen;
  while (core_->step()) {
    if (seen.empty() || seen.back() != got(id).text) seen.push_back(got(id).text);
  }
  EXPECT_EQ(got(id).text,
            "a\xC3\xA9"
            "b");
  for (const std::string& text : seen) EXPECT_FALSE(text.ends_with('\xC3'));
}

TEST_F(EngineCoreTest, ACutCharacterAtTheEndIsReplaced) {
  start({kA, kByteC3});
  EXPECT_EQ(run_one(params(2)).text, "a\xEF\xBF\xBD");
}

TEST_F(EngineCoreTest, EchoPutsThePromptFirst) {
  start({kB});
  RequestParams d = params(2);
  d.echo_prompt_text = true;
  d.stop = {"ab"};  // in the prompt: does not count
  const Got got = run_one(d);
  EXPECT_EQ(got.text, "abcdabb");
  EXPECT_EQ(got.last.finish, FinishReason::kLength);
}

TEST_F(EngineCoreTest, ChoicesHaveTheirOwnSeedsAndEvents) {
  start({kA, kB});
  RequestParams d = params(2);
  d.n = 3;
  const RequestId id = submit(d);
  run();
  EXPECT_EQ(executor_->seeds(), (std::vector<uint64_t>{7, 8, 9}));
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got(id, i).text, "ab");
    EXPECT_EQ(got(id, i).num_finishes, 1);
  }
  EXPECT_EQ(core_->stats().finished_length, 3u);
}

TEST_F(EngineCoreTest, RequestsWithoutASeedDrawDifferentOnes) {
  start({kA});
  RequestParams d = params(1);
  d.seed.reset();
  submit(d);
  submit(d);
  run();
  EXPECT_NE(executor_->seeds()[0], executor_->seeds()[1]);
}

TEST_F(EngineCoreTest, LogprobsComeWithTheirTokens) {
  start({kA});
  RequestParams d = params(2);
  d.sampling.num_logprobs = 2;
  const Got got = run_one(d);
  ASSERT_EQ(got.last.tokens.size(), 1u);
  EXPECT_TRUE(got.last.tokens[0].has_logprobs);
  EXPECT_FLOAT_EQ(got.last.tokens[0].logprob, -0.5f);
  EXPECT_EQ(got.last.tokens[0].top.size(), 2u);
}

TEST_F(EngineCoreTest, CancelAtEveryMomentEndsOnceAndFreesEverything) {
  // Turn 0 is before the request is seen; with 2 tokens a step the prompt takes three steps.
  EngineSettings settings;
  settings.max_num_batched_tokens = 2;
  for (int turns = 0; turns < 9; ++turns) {
    for (const int32_t n : {1, 3}) {
      start({kA, kB, kCd}, settings);
      RequestParams d = params(6);
      d.n = n;
      const RequestId id = submit(d);
      for (int i = 0; i < turns; ++i) core_->step();
      core_->cancel(id);
      core_->cancel(id);
      core_->step();
      core_->step();
      EXPECT_EQ(core_->num_open(), 0);
      EXPECT_EQ(core_->scheduler().stats().blocks_in_use, 0) << "two steps after the cancel";
      run();
      for (int32_t i = 0; i < n; ++i) {
        EXPECT_EQ(got(id, i).num_finishes, 1);
        EXPECT_EQ(got(id, i).last.finish, FinishReason::kCancelled);
      }
    }
  }
}

TEST_F(EngineCoreTest, CancelOfOneLeavesTheOther) {
  start({kA, kB});
  const RequestId first = submit(params(8));
  const RequestId second = submit(params(8));
  core_->step();
  core_->cancel(first);
  core_->cancel(RequestId(999));
  run();
  EXPECT_EQ(got(first).last.finish, FinishReason::kCancelled);
  EXPECT_EQ(got(second).text, "abababab");
}

TEST_F(EngineCoreTest, NanEndsItsOwnRequestAlone) {
  start({kA, testing::kScriptNan, kB});
  const RequestId one = submit(params(1));  // ends before it
  const RequestId two = submit(params(4));
  run();
  EXPECT_EQ(got(one).last.finish, FinishReason::kLength);
  EXPECT_EQ(got(two).last.finish, FinishReason::kError);
  ASSERT_TRUE(got(two).last.error);
  EXPECT_EQ(got(two).last.error->code, ErrorCode::kNumerical);
  EXPECT_TRUE(core_->health());
}

TEST_F(EngineCoreTest, ADeadExecutorEndsAllWithATypedError) {
  for (const bool at_launch : {true, false}) {
    start({kA});
    RequestParams d = params(8);
    d.n = 2;
    const RequestId running = submit(d);
    for (int i = 0; i < 3; ++i) core_->step();
    const RequestId fresh = submit(params(8));
    at_launch ? executor_->fail_launches() : executor_->fail_collects();
    while (core_->step()) {
    }
    for (const Got* got : {&this->got(running, 0), &this->got(running, 1), &this->got(fresh)}) {
      EXPECT_EQ(got->num_finishes, 1);
      EXPECT_EQ(got->last.finish, FinishReason::kError);
      ASSERT_TRUE(got->last.error);
      EXPECT_EQ(got->last.error->code, ErrorCode::kInternal);
      EXPECT_EQ(got->last.error->message.find("device"), std::string::npos) << "for the log only";
    }
    ASSERT_FALSE(core_->health());
    EXPECT_EQ(core_->health().error().code, ErrorCode::kInternal);  // for good
    EXPECT_EQ(try_submit(params()).error().code, ErrorCode::kUnavailable);
    EXPECT_FALSE(core_->would_accept({.tokens = 1}));
    EXPECT_EQ(core_->num_open(), 0);
    EXPECT_EQ(core_->queue_load().requests, 0);
    EXPECT_FALSE(core_->step());
  }
}

TEST_F(EngineCoreTest, TheQueueIsBoundedInRequestsAndTokens) {
  EngineSettings settings;
  settings.max_num_seqs = 1;
  settings.max_num_queued_reqs = 2;
  settings.max_num_queued_tokens = 12;
  start({kA}, settings);
  submit(params());
  submit(params());
  EXPECT_EQ(core_->would_accept({.tokens = 1}).error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(try_submit(params()).error().code, ErrorCode::kOverloaded);
  core_->step();  // the first one runs: its place is free again
  EXPECT_EQ(core_->queue_load().requests, 1);
  EXPECT_EQ(core_->stats().queued_tokens, 5);
  EXPECT_TRUE(core_->would_accept({.tokens = 7}));
  RequestParams two = params();  // 5 waiting and 2 * 5 more are above 12
  two.n = 2;
  EXPECT_EQ(try_submit(two).error().code, ErrorCode::kOverloaded);
  submit(params());
  EXPECT_EQ(core_->stats().rejected, 2u);
  run();
}

TEST_F(EngineCoreTest, AClosedEngineFinishesWhatItHas) {
  start({kA, kB});
  const RequestId id = submit(params(4));
  core_->close({ErrorCode::kUnavailable, "draining", ""});
  EXPECT_EQ(try_submit(params()).error().message, "draining");
  EXPECT_EQ(core_->would_accept({.tokens = 1}).error().code, ErrorCode::kUnavailable);
  run();
  EXPECT_EQ(got(id).text, "abab");
}

TEST_F(EngineCoreTest, EndAllCancelsWhatRunsAndWhatWaits) {
  start({kA});
  const RequestId running = submit(params(50));
  core_->step();
  const RequestId posted = submit(params(50));
  core_->end_all();
  EXPECT_EQ(got(running).last.finish, FinishReason::kCancelled);
  EXPECT_EQ(got(posted).last.finish, FinishReason::kCancelled);
  EXPECT_TRUE(core_->scheduler().idle());
}

TEST_F(EngineCoreTest, ThePrefixCacheServesAndForgets) {
  start({kA});
  EXPECT_EQ(run_one(params()).last.usage.cached_tokens, 0);
  EXPECT_EQ(run_one(params()).last.usage.cached_tokens, 4);
  RequestParams salted = params();
  salted.cache_salt = "other tenant";
  EXPECT_EQ(run_one(salted).last.usage.cached_tokens, 0);
  core_->reset_prefix_cache();
  EXPECT_EQ(run_one(params()).last.usage.cached_tokens, 0);
  EXPECT_EQ(core_->stats().prompt_tokens_cached, 4u);
}

TEST_F(EngineCoreTest, StatsCountWhatHappened) {
  start({kA, kB, kEos});
  submit(params(2));
  submit(params(9));
  clock_->advance(100'000);
  run();
  const EngineStats stats = core_->stats();
  EXPECT_EQ(stats.finished_length, 1u);
  EXPECT_EQ(stats.finished_stop, 1u);
  EXPECT_EQ(stats.generation_tokens, 5u);
  EXPECT_EQ(stats.prompt_tokens, 10u);
  EXPECT_EQ(stats.time_to_first_token.count, 2u);
  EXPECT_DOUBLE_EQ(stats.time_to_first_token.sum, 0.2);
  EXPECT_EQ(stats.inter_token_latency.count, 3u);
  EXPECT_EQ(stats.queue_time.count, 2u);
  EXPECT_EQ(stats.e2e_latency.count, 2u);
  EXPECT_EQ(stats.request_generation_tokens.count, 2u);
  EXPECT_DOUBLE_EQ(stats.request_generation_tokens.sum, 5);
  EXPECT_EQ(stats.iteration_tokens.count, stats.steps);
  EXPECT_EQ(stats.num_blocks, stats.blocks_cached + stats.blocks_free);
}

TEST_F(EngineCoreTest, RefusesAnEosOutsideTheVocabulary) {
  auto core = EngineCore::create({.executor = std::make_unique<ScriptedExecutor>(std::vector{kA}),
                                  .tokenizer = testing::tiny_tokenizer(),
                                  .clock = clock_,
                                  .model_identity = "",
                                  .eos_ids = {37}},
                                 {}, {});
  ASSERT_FALSE(core);
  EXPECT_EQ(core.error().where, "eos_token_id");
}

}  // namespace
}  // namespace rudder::engine
