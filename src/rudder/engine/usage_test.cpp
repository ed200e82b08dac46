// What the counters say is the sum of what each answer's usage says. Token ids are
// tiny_tokenizer's.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rudder/engine/engine_core.h"
#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::engine {
namespace {

class UsageTest : public ::testing::Test {
 protected:
  UsageTest() {
    // a, b, cd, a, end
    auto made = EngineCore::create({.executor = std::make_unique<testing::ScriptedExecutor>(
                                        std::vector<int32_t>{2, 3, 25, 2, testing::kTinyEos}),
                                    .tokenizer = testing::tiny_tokenizer(),
                                    .clock = std::make_shared<testing::VirtualClock>(),
                                    .model_identity = "test",
                                    .eos_ids = {testing::kTinyEos}},
                                   {}, {});
    EXPECT_TRUE(made) << made.error().to_string();
    core_ = std::move(*made);
  }

  static RequestParams asking_for(int32_t max_tokens) {
    RequestParams params;
    params.prompt = {2, 3, 4, 5, 2};
    params.max_tokens = max_tokens;
    params.seed = 7;
    return params;
  }

  RequestId submit(RequestParams params) {
    auto request = validate_request(std::move(params), core_->limits());
    EXPECT_TRUE(request);
    return core_
        ->submit(std::move(*request),
                 [this](Event&& event) {
                   if (event.finish) last_[{event.id, event.choice}] = std::move(event);
                 })
        .value();
  }
  void run() {
    for (int turn = 0; core_->step(); ++turn) ASSERT_LT(turn, 1000);
  }

  std::unique_ptr<EngineCore> core_;
  std::map<std::pair<RequestId, int32_t>, Event> last_;  // of each choice
};

// Of every way in which a request can end.
TEST_F(UsageTest, CountersAreTheSumsOfWhatUsageSays) {
  std::vector<RequestParams> asked(7, asking_for(4));
  asked[1].n = 3;
  asked[2].stop = {"bc"};
  asked[3].max_tokens = 9;  // to the end of the script
  asked[4].max_tokens = 60;
  asked[4].ignore_eos = true;
  asked[5].max_tokens = 1;
  asked[6].max_tokens = 1;
  asked[6].counts_output = false;
  std::vector<RequestId> ids;
  for (const RequestParams& one : asked) ids.push_back(submit(one));
  for (int turn = 0; turn < 5; ++turn) core_->step();
  core_->cancel(ids[4]);
  run();
  submit(asking_for(2));  // its prompt is cached
  run();
  const EngineStats stats = core_->stats();
  uint64_t generated = 0, prompt = 0, cached = 0, most = 0;
  std::map<FinishReason, uint64_t> finished;
  std::map<RequestId, int32_t> most_of;
  for (const auto& [key, event] : last_) {
    const Usage& usage = event.usage;
    generated += static_cast<uint64_t>(usage.completion_tokens);
    prompt += static_cast<uint64_t>(usage.prompt_tokens);
    cached += static_cast<uint64_t>(usage.cached_tokens);
    finished[*event.finish] += 1;
    most_of[key.first] = std::max(most_of[key.first], usage.completion_tokens);
  }
  for (const auto& [id, tokens] : most_of) most += static_cast<uint64_t>(tokens);
  EXPECT_EQ(stats.generation_tokens, generated);
  EXPECT_EQ(stats.request_generation_tokens.sum, static_cast<double>(generated));
  EXPECT_EQ(stats.request_generation_tokens.count, last_.size());
  EXPECT_EQ(stats.request_most_generation_tokens.sum, static_cast<double>(most));
  EXPECT_EQ(stats.request_most_generation_tokens.count, most_of.size());
  EXPECT_EQ(stats.prompt_tokens, prompt);
  EXPECT_EQ(stats.prompt_tokens_cached, cached);
  EXPECT_EQ(stats.request_prefill_computed_tokens.sum, static_cast<double>(prompt - cached));
  EXPECT_EQ(stats.inter_token_latency.count + stats.time_to_first_token.count, generated);
  EXPECT_EQ(stats.finished_stop, finished[FinishReason::kStop]);
  EXPECT_EQ(stats.finished_length, finished[FinishReason::kLength]);
  EXPECT_EQ(stats.finished_cancelled, finished[FinishReason::kCancelled]);
  EXPECT_EQ(stats.finished_error, finished[FinishReason::kError]);
  EXPECT_GT(stats.finished_stop, 0u);
  EXPECT_EQ(stats.finished_cancelled, 1u);
  EXPECT_EQ(stats.num_running + stats.num_waiting, 0);
}

}  // namespace
}  // namespace rudder::engine
