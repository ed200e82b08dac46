#include "rudder/server/admin/model_rest.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rudder/server/testing/scripted_engine.h"

namespace rudder::server {
namespace {

// Notes what it is asked for, in order.
class NotedResidence final : public Residence {
 public:
  class Weights final : public NewWeights {
   public:
    Weights(std::vector<std::string>& notes, std::string path)
        : notes_(notes), path_(std::move(path)) {}
    void put_in_place() override { notes_.push_back("put " + path_); }
    int64_t num_tensors() const override { return 3; }
    std::string identity() const override { return "model@" + path_; }

   private:
    std::vector<std::string>& notes_;
    const std::string path_;
  };

  Result<void> can_sleep() const override { return {}; }
  Result<void> can_update() const override { return {}; }
  Result<std::unique_ptr<NewWeights>> read_weights(const std::string& path,
                                                   const std::string& /*version*/) override {
    if (path == "wrong") return fail(ErrorCode::kInvalidArgument, "it does not fit", "a.weight");
    notes.push_back("read " + path);
    return std::unique_ptr<NewWeights>(std::make_unique<Weights>(notes, path));
  }
  void give_back_sequences() override { notes.emplace_back("sequences"); }
  void give_back_weights() override { notes.emplace_back("weights"); }

  std::vector<std::string> notes;
};

class ModelRestTest : public ::testing::Test {
 protected:
  using Notes = std::vector<std::string>;
  static constexpr ModelRest::RestWish kWish = {.mode = engine::RestMode::kKeep,
                                                .timeout_us = 1'000'000};

  ScriptedEngine engine_{[](const engine::RequestParams&) { return say({"a"}); }};
  NotedResidence residence_;
  ModelRest rest_{engine_, &residence_};
};

TEST_F(ModelRestTest, AnUpdateRestsAndGoesOnUnderAnotherName) {
  const Result<ModelRest::Updated> updated = rest_.update("one", "", kWish);
  ASSERT_TRUE(updated);
  EXPECT_EQ(updated->num_tensors, 3);
  EXPECT_EQ(residence_.notes, (Notes{"read one", "put one"}));
  EXPECT_EQ(engine_.rests(), (Notes{"2", "model@one"}));
  EXPECT_EQ(rest_.state(), ModelRest::State::kAwake);
}

TEST_F(ModelRestTest, WhatDoesNotFitOrHasNoTimeChangesNothing) {
  EXPECT_EQ(rest_.update("wrong", "", kWish).error().where, "a.weight");
  EXPECT_TRUE(engine_.rests().empty());
  engine_.set_never_rests(true);
  EXPECT_EQ(rest_.update("one", "", kWish).error().code, ErrorCode::kTimeout);
  EXPECT_EQ(residence_.notes, (Notes{"read one"}));
  EXPECT_FALSE(rest_.sleep(1, kWish));
  EXPECT_FALSE(rest_.pause(kWish));
  EXPECT_EQ(rest_.state(), ModelRest::State::kAwake);
}

TEST_F(ModelRestTest, TheLightSleepEndsWithBothParts) {
  ASSERT_TRUE(rest_.sleep(1, kWish));
  EXPECT_EQ(rest_.state(), ModelRest::State::kAsleep);
  EXPECT_EQ(residence_.notes, (Notes{"sequences"}));
  EXPECT_EQ(engine_.would_accept({}).error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(rest_.sleep(2, kWish)) << "it sleeps already";
  EXPECT_FALSE(rest_.pause(kWish));
  ASSERT_TRUE(rest_.wake_up(true, false));
  EXPECT_EQ(rest_.state(), ModelRest::State::kAsleep);
  ASSERT_TRUE(rest_.wake_up(false, true));
  EXPECT_EQ(rest_.state(), ModelRest::State::kAwake);
  EXPECT_TRUE(engine_.would_accept({}));
  EXPECT_EQ(engine_.rests(), (Notes{"2", "goes on"}));
}

TEST_F(ModelRestTest, TheDeepSleepEndsWithNewWeightsAlone) {
  ASSERT_TRUE(rest_.sleep(2, kWish));
  EXPECT_EQ(residence_.notes, (Notes{"sequences", "weights"}));
  EXPECT_EQ(rest_.wake_up(true, true).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(rest_.state(), ModelRest::State::kAsleep);
  ASSERT_TRUE(rest_.wake_up(true, false));
  ASSERT_TRUE(rest_.update("one", "", kWish));
  EXPECT_EQ(rest_.state(), ModelRest::State::kAsleep) << "new weights do not wake it up";
  ASSERT_TRUE(rest_.wake_up(false, true));
  EXPECT_EQ(engine_.rests(), (Notes{"2", "model@one"}));
}

TEST_F(ModelRestTest, APauseKeepsWhatIsCachedWhereItIsAskedTo) {
  ModelRest::RestWish keeps = kWish;
  keeps.keeps_cache = true;
  ASSERT_TRUE(rest_.pause(keeps));
  ASSERT_TRUE(rest_.pause(keeps)) << "it pauses so already";
  ASSERT_TRUE(rest_.pause({.mode = engine::RestMode::kAbort, .timeout_us = 1'000'000}))
      << "who pauses is not ended, but forgets";
  ASSERT_TRUE(rest_.pause(keeps)) << "nothing is left to keep";
  ASSERT_TRUE(rest_.resume());
  ASSERT_TRUE(rest_.pause(keeps));
  ASSERT_TRUE(rest_.sleep(1, kWish)) << "its memory goes, and what is cached with it";
  EXPECT_EQ(engine_.rests(), (Notes{"2 with its cache", "2", "goes on", "2 with its cache", "2"}));
}

TEST_F(ModelRestTest, OneChangeAtATimeAndNoneBehindTheEnd) {
  std::promise<void> goes_on;
  std::future<void> told = goes_on.get_future();
  ASSERT_TRUE(rest_.run([&] { told.wait(); }));
  EXPECT_FALSE(rest_.run([] {}));
  goes_on.set_value();
  while (!rest_.run([] {})) std::this_thread::yield();
  rest_.stop();
  EXPECT_FALSE(rest_.run([] {}));
}

TEST_F(ModelRestTest, WhoIsToldOfTheEndMayBeginTheNextChange) {
  for (int i = 0; i < 200; ++i) {
    std::promise<void> told;
    std::future<void> ended = told.get_future();
    ASSERT_TRUE(rest_.run([] {}, [&] { told.set_value(); })) << i;
    ended.wait();
  }
}

TEST(ModelRestAlone, WithoutAResidenceItSaysWhatIsMissing) {
  ScriptedEngine engine([](const engine::RequestParams&) { return say({"a"}); });
  ModelRest rest(engine, nullptr);
  EXPECT_EQ(rest.sleep(1, {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(rest.pause({}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(rest.update("one", "", {}).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace rudder::server
