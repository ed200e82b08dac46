// Steering and capture through EngineCore: who waits for rows, what is pinned, when the last event
// of a choice comes. Over the fake executor, whose tokens depend on the programs that ran.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rudder/engine/engine_core.h"
#include "rudder/testing/fake_captures.h"
#include "rudder/testing/fake_executor.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::engine {
namespace {

using testing::FakeProgramKind;

steer::KeyedProgram program(uint64_t number) {
  return {.key = {number, 1}, .program = testing::fake_program(number, FakeProgramKind::kPlain)};
}

class EngineTapsTest : public ::testing::Test {
 protected:
  void start(int32_t num_rows, bool has_captures = true) {
    options_.capacity.vocab_size = testing::kTinyVocab;
    options_.capacity.geometry = {
        .num_layers = 2,
        .hidden = 8,
        .mlp_width = {16, 16},
        .sites = {tap::dense_sites_but(tap::Site::kAttnZ), tap::dense_sites_but(tap::Site::kAttnZ)},
        .dtype = tensor::DType::kBF16};
    options_.capacity.taps = {.num_rows = num_rows,
                              .num_ops = num_rows,
                              .num_floats = num_rows * tap::kVectorAlign,
                              .num_capture_sets = 1,
                              .capture_elements = 64 * tap::kCaptureAlign};
    auto executor = std::make_unique<testing::FakeExecutor>(options_);
    executor_ = executor.get();
    std::unique_ptr<testing::FakeCaptures> captures;
    if (has_captures) {
      captures = std::make_unique<testing::FakeCaptures>(options_.capacity.geometry);
    }
    captures_ = captures.get();
    auto core = EngineCore::create({.executor = std::move(executor),
                                    .tokenizer = testing::tiny_tokenizer(),
                                    .clock = std::make_shared<testing::VirtualClock>(),
                                    .model_identity = "test",
                                    .eos_ids = {},
                                    .captures = std::move(captures)},
                                   {}, {});
    ASSERT_TRUE(core);
    core_ = std::move(*core);
  }

  RequestParams params(const std::vector<uint64_t>& programs, int32_t max_tokens = 8) {
    RequestParams params;
    params.prompt = {2, 3, 4, 5, 6, 7};
    params.max_tokens = max_tokens;
    params.seed = 7;
    kept_.push_back(*core_->programs().keep(taps_of(programs)));
    params.taps = tap::spec_of(*kept_.back());
    return params;
  }
  static tap::SequenceTaps taps_of(const std::vector<uint64_t>& programs) {
    tap::SequenceTaps taps;
    int32_t begin = 0;
    for (const uint64_t number : programs) {
      taps.segments.push_back({begin++, program(number).key, program(number).program});
    }
    return taps;
  }
  RequestParams capturing(int32_t max_tokens = 4) {
    RequestParams params = EngineTapsTest::params({}, max_tokens);
    auto set = std::make_shared<tap::CaptureSet>();
    set->points = {{.point = {1, tap::Site::kResidPost}}};
    auto spec = std::make_shared<steer::capture::CaptureSpec>();
    spec->id = steer::capture::SpecId(7);
    spec->set = set;
    if (captures_ != nullptr) captures_->add(spec);
    params.taps.captured = {{5, tap::kNoEnd}};
    params.capture = spec->id;
    params.client_id = "r";
    return params;
  }

  // Ends with the first generated token whose row has a first element above `above`. Nobody else
  // gets the rows.
  RequestParams stopping(double above) {
    RequestParams params = EngineTapsTest::params({});
    auto set = std::make_shared<tap::CaptureSet>();
    set->points = {{.point = {1, tap::Site::kResidPost}}};
    auto vector = std::make_shared<float[]>(8);
    vector[0] = 1;
    auto spec = std::make_shared<steer::capture::CaptureSpec>();
    spec->id = steer::capture::SpecId(8);
    spec->set = set;
    spec->stop_when = {.watch = {.point = set->points[0], .vector = {vector, 0, 8}},
                       .above = above};
    spec->stop_width = 8;
    captures_->add(spec);
    params.taps.captured = {{6, tap::kNoEnd}};
    params.capture = spec->id;
    params.capture_delivery.results = false;
    return params;
  }

  RequestId submit(const RequestParams& params) {
    auto request = validate_request(params, core_->limits());
    EXPECT_TRUE(request) << request.error().to_string();
    auto id = core_->submit(std::move(*request), [this](Event&& event) {
      auto& tokens = tokens_[event.id];
      if (tokens.empty() && !event.tokens.empty()) started_.push_back(event.id);
      for (const OutputToken& token : event.tokens) tokens.push_back(token.token);
      num_capture_events_ += event.captures.size();
      if (event.finish) last_[event.id] = std::move(event);
    });
    EXPECT_TRUE(id);
    return *id;
  }
  void run() {
    for (int turn = 0; core_->step(); ++turn) ASSERT_LT(turn, 1000);
    EXPECT_TRUE(executor_->violations().empty());
  }
  std::vector<int32_t> expected(RequestParams params) {
    params.sampling.seed = *params.seed;
    const auto taps = core_->programs().resolve(params.taps);
    EXPECT_TRUE(taps);
    return testing::expected_run(params.prompt, params.sampling,
                                 static_cast<int32_t>(params.prompt.size()) + *params.max_tokens,
                                 testing::kTinyVocab, {}, &*taps)
        .tokens;
  }

  testing::FakeOptions options_;
  testing::FakeExecutor* executor_ = nullptr;
  testing::FakeCaptures* captures_ = nullptr;
  std::map<RequestId, std::vector<int32_t>> tokens_;
  std::map<RequestId, Event> last_;
  std::vector<RequestId> started_;
  size_t num_capture_events_ = 0;
  std::vector<std::shared_ptr<const tap::SequenceTaps>> kept_;
  std::unique_ptr<EngineCore> core_;
};

// tap.T3: two rows, and nobody runs without those it asked for.
TEST_F(EngineTapsTest, WhoFindsNoRowWaitsInOrderAndOthersGoOn) {
  start(3);
  const std::vector<RequestParams> asked = {params({1}, 20), params({2, 3}, 4), params({1}, 4),
                                            params({4}, 4)};
  std::vector<RequestId> ids;
  for (const RequestParams& one : asked) ids.push_back(submit(one));
  const RequestParams plain = params({}, 4);
  const RequestId unsteered = submit(plain);
  ASSERT_TRUE(core_->step());
  EXPECT_EQ(core_->num_waiting_for_taps(), 3u);  // the third too, though its row is there
  run();
  EXPECT_EQ(started_, (std::vector<RequestId>{unsteered, ids[0], ids[1], ids[2], ids[3]}));
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(tokens_[ids[i]], expected(asked[i])) << i;
  EXPECT_EQ(tokens_[unsteered], expected(plain));
  EXPECT_NE(tokens_[ids[2]], tokens_[unsteered]);
  EXPECT_FALSE(core_->tap_tables().any_held());
  const EngineStats stats = core_->stats();
  EXPECT_EQ(stats.waiting_for_taps, 0);
  EXPECT_EQ(stats.tap_rows.held, 0);
  EXPECT_EQ(stats.tap_rows.uploads, 5);  // the first program twice: it had to make room
}

TEST_F(EngineTapsTest, ARequestThatWaitsForRowsCanBeCancelled) {
  start(2);
  const RequestId first = submit(params({1}, 20));
  const RequestId second = submit(params({2}));
  const RequestId third = submit(params({1}, 4));
  core_->step();
  core_->cancel(second);
  core_->step();
  EXPECT_EQ(last_[second].finish, FinishReason::kCancelled);
  EXPECT_EQ(core_->num_waiting_for_taps(), 0u);  // the third shares the first one's row
  run();
  EXPECT_EQ(tokens_[third], expected(params({1}, 4)));
  EXPECT_EQ(last_[first].finish, FinishReason::kLength);
  EXPECT_EQ(core_->queue_load().requests, 0);
}

TEST_F(EngineTapsTest, WhatCouldNeverRunIsRefused) {
  start(3);
  const auto refused = [&](const RequestParams& params) {
    const auto request = validate_request(params, core_->limits());
    return request ? "" : request.error().where;
  };
  const auto submitted = [&](const RequestParams& params) {
    auto request = validate_request(params, core_->limits());
    EXPECT_TRUE(request);
    const auto id = core_->submit(std::move(*request), [](Event&&) {});
    return id ? Error{} : id.error();
  };
  EXPECT_EQ(submitted(params({1, 2, 1})).where, "");
  EXPECT_EQ(core_->programs().keep(taps_of({1, 2, 3})).error().where, "steering");
  // Both are kept; no table holds them together.
  RequestParams three = params({1, 2});
  const RequestParams third = params({3});
  three.taps.segments.push_back({2, third.taps.segments[0].content});
  EXPECT_EQ(submitted(three).where, "steering");
  EXPECT_EQ(submitted(three).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(submitted(capturing()).where, "");
  RequestParams wide = capturing();
  auto spec = std::make_shared<steer::capture::CaptureSpec>(*captures_->find(wide.capture));
  auto set = std::make_shared<tap::CaptureSet>();
  for (int32_t i = 0; i < 65; ++i) set->points.push_back(spec->set->points[0]);
  spec->id = steer::capture::SpecId(8);
  spec->set = set;
  captures_->add(spec);
  wide.capture = spec->id;
  EXPECT_EQ(submitted(wide).where, "capture");
  EXPECT_EQ(submitted(wide).code, ErrorCode::kInvalidArgument);
  run();
  start(3, false);
  EXPECT_EQ(refused(capturing()), "capture");
  start(0);
  RequestParams steered = params({});
  steered.taps.segments = {{0, {1, 1}}};
  EXPECT_EQ(refused(steered), "steering");
}

// Nobody keeps what these requests name: they are refused and leave nothing behind.
TEST_F(EngineTapsTest, WhatASpecNamesMustBeKnown) {
  start(3);
  RequestParams steered = params({1});
  kept_.clear();
  RequestParams captured = capturing();
  captured.capture = steer::capture::SpecId(9);
  for (const RequestParams& params : {steered, captured}) {
    auto request = validate_request(params, core_->limits());
    ASSERT_TRUE(request);
    const auto id = core_->submit(std::move(*request), [](Event&&) { FAIL(); });
    ASSERT_FALSE(id);
    EXPECT_EQ(id.error().code, ErrorCode::kUnavailable);
  }
  EXPECT_EQ(core_->num_open(), 0);
  EXPECT_EQ(core_->queue_load().requests, 0);
}

// What was resolved is the request's own: the lease may go as soon as it is submitted.
TEST_F(EngineTapsTest, ARunningRequestNeedsNoLease) {
  start(2);
  const RequestParams first = params({1}, 20);
  const RequestParams waits = params({2}, 4);
  const std::vector<int32_t> of_first = expected(first), of_waits = expected(waits);
  const RequestId one = submit(first), two = submit(waits);
  kept_.clear();
  run();
  EXPECT_EQ(tokens_[one], of_first);
  EXPECT_EQ(tokens_[two], of_waits);
  EXPECT_EQ(core_->programs().size(), 0u);
}

TEST_F(EngineTapsTest, SpecsThatAreNotInOrderAreRefused) {
  start(3);
  const auto refused = [&](tap::TapsSpec taps, uint64_t capture) {
    RequestParams params = EngineTapsTest::params({});
    params.taps = std::move(taps);
    params.capture = steer::capture::SpecId(capture);
    const auto request = validate_request(params, core_->limits());
    return request ? "" : request.error().where;
  };
  EXPECT_EQ(refused({.segments = {{0, {}}, {3, {}}}, .captured = {}}, 0), "");
  EXPECT_EQ(refused({.segments = {{1, {}}}, .captured = {}}, 0), "steering");
  EXPECT_EQ(refused({.segments = {{0, {}}, {3, {}}, {3, {}}}, .captured = {}}, 0), "steering");
  EXPECT_EQ(refused({.segments = {}, .captured = {{0, 2}, {2, tap::kNoEnd}}}, 7), "");
  EXPECT_EQ(refused({.segments = {}, .captured = {{0, 2}}}, 0), "capture");
  EXPECT_EQ(refused({.segments = {}, .captured = {{0, 2}, {1, 3}}}, 7), "capture");
  EXPECT_EQ(refused({.segments = {}, .captured = {{-1, 2}}}, 7), "capture");
  EXPECT_EQ(refused({.segments = {}, .captured = {{2, 2}}}, 7), "capture");
}

TEST_F(EngineTapsTest, PinnedProgramsAreUploadedByAnIdleEngine) {
  start(4);
  ASSERT_TRUE(core_->pin({program(1), program(2)}));
  run();
  EngineStats stats = core_->stats();
  EXPECT_EQ(stats.steps, 1u);
  EXPECT_EQ(stats.tap_rows.pinned_resident, 2);
  const RequestId id = submit(params({1}));
  run();
  EXPECT_EQ(tokens_[id], expected(params({1})));
  stats = core_->stats();
  EXPECT_EQ(stats.tap_rows.uploads, 2);
  EXPECT_EQ(stats.tap_rows.hits, 1);
  core_->unpin({program(1).key, program(2).key});
  core_->step();
  EXPECT_EQ(core_->stats().tap_rows.pinned, 0);
  EXPECT_EQ(core_->pin({program(1), program(2), program(3), program(4)}).error().where, "steering");
}

TEST_F(EngineTapsTest, TheLastEventBringsTheResultsOfTheCaptures) {
  start(2);
  RequestParams asked = capturing();
  asked.capture_delivery.events = true;
  const RequestId id = submit(asked);
  run();
  EXPECT_EQ(tokens_[id], expected(asked));  // all of them are sent
  EXPECT_FALSE(last_.contains(id));
  EXPECT_EQ(core_->num_open(), 1);
  EXPECT_FALSE(core_->tap_tables().any_held());
  ASSERT_TRUE(captures_->answer_one());
  core_->step();
  ASSERT_TRUE(last_.contains(id));
  EXPECT_EQ(last_[id].finish, FinishReason::kLength);
  EXPECT_TRUE(last_[id].tokens.empty());
  EXPECT_EQ(last_[id].usage.completion_tokens, 4);
  ASSERT_TRUE(last_[id].capture_results);
  EXPECT_EQ(last_[id].capture_results->at(0).consumer, "fake");
  EXPECT_EQ(num_capture_events_, 4u);  // the prompt's last token and three that were run
  EXPECT_EQ(captures_->take("r", 0).size(), 4u);
  EXPECT_EQ(core_->num_open(), 0);
}

TEST_F(EngineTapsTest, NobodyWaitsForCapturesOfTheOperatorAlone) {
  start(2);
  RequestParams asked = capturing();
  asked.capture_delivery.results = false;
  const RequestId id = submit(asked);
  run();
  EXPECT_EQ(last_[id].finish, FinishReason::kLength);
  EXPECT_FALSE(last_[id].tokens.empty());
  EXPECT_FALSE(last_[id].capture_results);
  EXPECT_EQ(core_->num_open(), 0);
  EXPECT_TRUE(captures_->answer_one());
  run();
  EXPECT_EQ(captures_->take("r", 0).size(), 4u);
}

TEST_F(EngineTapsTest, ACancelDoesNotWaitForCaptures) {
  start(2);
  const RequestId running = submit(capturing(40));
  for (int i = 0; i < 4; ++i) core_->step();
  core_->cancel(running);
  core_->step();
  EXPECT_EQ(last_[running].finish, FinishReason::kCancelled);
  EXPECT_FALSE(last_[running].capture_results);
  EXPECT_EQ(captures_->num_open(), 0u);
  run();

  const RequestId ended = submit(capturing());
  run();
  core_->cancel(ended);
  core_->step();
  EXPECT_EQ(last_[ended].finish, FinishReason::kLength);
  EXPECT_EQ(core_->num_open(), 0);
  while (captures_->answer_one()) {
  }
  run();  // the answers find nobody
}

TEST_F(EngineTapsTest, AStopByARowNeedsNoConsumer) {
  start(2);
  const RequestParams never = stopping(1e39);
  const RequestId whole = submit(never);
  run();
  EXPECT_EQ(tokens_[whole], expected(never));
  EXPECT_EQ(last_[whole].finish, FinishReason::kLength);
  EXPECT_EQ(captures_->num_open(), 0u);

  const RequestId stopped = submit(stopping(-1e39));
  run();
  const Event& last = last_[stopped];
  EXPECT_EQ(last.finish, FinishReason::kStop);
  EXPECT_EQ(last.stop_reason, "stop_when.probe");
  EXPECT_FALSE(last.capture_results.has_value());
  EXPECT_LT(tokens_[stopped].size(), 4u);  // a row of random bits may be a NaN
  EXPECT_EQ(std::ssize(tokens_[stopped]), last.usage.completion_tokens);
}

TEST_F(EngineTapsTest, ALostRowEndsTheChoiceThatReadsIt) {
  options_.loses_rows = true;
  start(2);
  const RequestId id = submit(stopping(1e39));
  run();
  ASSERT_EQ(last_[id].finish, FinishReason::kError);
  EXPECT_EQ(last_[id].error->code, ErrorCode::kOverloaded);
  EXPECT_EQ(last_[id].error->where, "stop_when");
  EXPECT_EQ(tokens_[id].size(), 1u);  // whose row it was
}

TEST_F(EngineTapsTest, AStopReadsEveryGeneratedToken) {
  start(2);
  RequestParams params = stopping(0);
  params.taps.captured = {{6, 9}};
  auto request = validate_request(params, core_->limits());
  ASSERT_TRUE(request);
  const auto refused = core_->submit(std::move(*request), [](Event&&) {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "stop_when");
}

}  // namespace
}  // namespace rudder::engine
