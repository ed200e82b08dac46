// What consumers and those who take results throw stays theirs.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "rudder/base/log.h"
#include "rudder/steer/capture/capture_fixture.h"

namespace rudder::steer::capture {
namespace {

// Two consumers, `a` and `b`, in one dispatcher.
class CaptureContainmentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kOff);
    auto made = Dispatcher::create(
        {.geometry = geometry_, .limits = small_limits(), .lookup = {}, .consumers = {a_, b_}}, {});
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    dispatcher_ = std::move(*made);
  }
  void TearDown() override { set_log_level(LogLevel::kInfo); }

  // One row of a request whose prompt is one token.
  void run(const std::string& id, const std::shared_ptr<const CaptureSpec>& spec,
           std::function<void(CaptureResults&&)> on_results) {
    const CaptureId capture = dispatcher_->begin({.spec = spec,
                                                  .request_id = id,
                                                  .choice = 0,
                                                  .prompt_len = 1,
                                                  .stream = false,
                                                  .wait = true,
                                                  .on_results = std::move(on_results),
                                                  .on_event = {}});
    FakeStep(geometry_).add(capture, 1, *spec, 0, 1).push_to(*dispatcher_);
    dispatcher_->end(capture);
  }

  const tap::Geometry geometry_ = small_geometry();
  const std::shared_ptr<TestConsumer> a_ = std::make_shared<TestConsumer>("a");
  const std::shared_ptr<TestConsumer> b_ = std::make_shared<TestConsumer>("b");
  Inbound inbound_;  // before the dispatcher: its threads call it
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(CaptureContainmentTest, AConsumerThatThrowsFailsItsOwnResultOfThatRequest) {
  const auto throw_at = [](const char* request) {
    return [request](const SessionInfo& info) {
      if (info.request_id == request) throw std::runtime_error("thrown at " + info.request_id);
    };
  };
  a_->on_open = throw_at("open");
  a_->on_take = [check = throw_at("take")](const SessionInfo& info) -> Result<void> {
    check(info);
    return {};
  };
  a_->on_finish = throw_at("finish");
  const auto spec = make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}},
                                                "b": {"sites": {"resid_post": [0]}}})");
  for (const std::string name : {"open", "take", "finish", "fine"}) {
    run(name, spec, inbound_.results());
    const CaptureResults results = inbound_.wait();
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].status, name == "fine" ? Status::kOk : Status::kError) << name;
    const bool is_told = results[0].error.find("thrown at " + name) != std::string::npos;
    EXPECT_EQ(is_told, name != "fine") << results[0].error;
    EXPECT_EQ(results[1].status, Status::kOk) << name;
  }
}

TEST_F(CaptureContainmentTest, WhoThrowsAtItsResultsThrowsForItselfAlone) {
  const auto spec = make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}}})");
  std::atomic<int> calls{0};
  run("bad", spec, [&](CaptureResults&&) {
    ++calls;
    throw std::runtime_error("results");
  });
  run("good", spec, inbound_.results());
  EXPECT_EQ(inbound_.wait()[0].status, Status::kOk);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace rudder::steer::capture
