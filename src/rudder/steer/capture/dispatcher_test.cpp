#include "rudder/steer/capture/dispatcher.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "rudder/steer/capture/capture_fixture.h"

namespace rudder::steer::capture {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Two consumers in one dispatcher.
class DispatcherTest : public ::testing::Test {
 protected:
  DispatcherTest() {
    settings_.result_timeout_seconds = 10;
    a_ = std::make_shared<TestConsumer>("a");
    b_ = std::make_shared<TestConsumer>("b");
  }

  void start() {
    Result<std::unique_ptr<Dispatcher>> made = Dispatcher::create(
        {.geometry = geometry_, .limits = small_limits(), .lookup = {}, .consumers = {a_, b_}},
        settings_);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    dispatcher_ = std::move(*made);
  }

  CaptureId begin(const std::shared_ptr<const CaptureSpec>& spec, const std::string& id,
                  int32_t prompt_len, bool wait = true) {
    return dispatcher_->begin({.spec = spec,
                               .request_id = id,
                               .choice = 0,
                               .prompt_len = prompt_len,
                               .stream = false,
                               .wait = wait,
                               .on_results = inbound_.results(),
                               .on_event = inbound_.events()});
  }

  FakeStep step() { return FakeStep(geometry_); }

  ConsumerStats stats_of(const std::string& name) {
    for (ConsumerStats& stats : dispatcher_->stats().consumers) {
      if (stats.name == name) return stats;
    }
    ADD_FAILURE() << name;
    return {};
  }

  // Rows of one request at one consumer are these positions, in order, with the right values.
  void expect_rows(TestConsumer& consumer, const std::string& id, uint64_t sequence,
                   const std::vector<int32_t>& positions, size_t num_points) {
    std::vector<TestConsumer::Row> rows;
    for (TestConsumer::Row& row : consumer.rows()) {
      if (row.request == id) rows.push_back(std::move(row));
    }
    ASSERT_EQ(rows.size(), positions.size() * num_points);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].position, positions[i / num_points]);
      const int32_t width = geometry_.width(rows[i].point.point);
      ASSERT_EQ(rows[i].bytes.size(), static_cast<size_t>(width) * 2);
      for (int32_t k = 0; k < width; ++k) {
        uint16_t value = 0;
        std::memcpy(&value, rows[i].bytes.data() + 2 * k, 2);
        ASSERT_EQ(value, row_value(sequence, rows[i].position, rows[i].point, k));
      }
    }
  }

  const tap::Geometry geometry_ = small_geometry();
  CaptureSettings settings_;
  std::shared_ptr<TestConsumer> a_;
  std::shared_ptr<TestConsumer> b_;
  Inbound inbound_;  // before the dispatcher: its threads call it
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(DispatcherTest, EachConsumerGetsItsPointsAtItsPositions) {
  start();
  const auto spec = make_spec(*dispatcher_, R"({
    "a": {"sites": {"resid_post": [1, 3], "mlp_act": [2]}, "positions": "all_prompt"},
    "b": {"sites": {"resid_post": [3]}, "positions": [1, 6], "point": "post"}})");
  const CaptureId id = begin(spec, "r1", 5);
  step().add(id, 1, *spec, 0, 3).push_to(*dispatcher_);  // chunks of a prompt
  step().add(id, 1, *spec, 3, 5).push_to(*dispatcher_);
  for (int32_t p = 5; p < 9; ++p) step().add(id, 1, *spec, p, p + 1).push_to(*dispatcher_);
  dispatcher_->end(id);
  const CaptureResults results = inbound_.wait();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].consumer, "a");
  EXPECT_EQ(results[0].status, Status::kOk);
  EXPECT_EQ(results[1].status, Status::kOk);
  expect_rows(*a_, "r1", 1, {0, 1, 2, 3, 4}, 3);
  expect_rows(*b_, "r1", 1, {1, 6}, 1);
  EXPECT_EQ(stats_of("a").rows, 15u);
  EXPECT_EQ(stats_of("a").bytes, 5u * (24 + 24 + 40) * 2);
  EXPECT_EQ(stats_of("b").rows, 2u);
  EXPECT_EQ(dispatcher_->stats().open_requests, 0);
}

TEST_F(DispatcherTest, RequestsOfOneStepAreKeptApartAndMaskedRowsAreNobodys) {
  start();
  const auto spec =
      make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}, "positions": "all"}})");
  const auto other = make_spec(
      *dispatcher_, R"({"a": {"sites": {"resid_post": [0]}, "positions": "all_prompt"}})");
  EXPECT_EQ(spec->set, other->set);  // equal points are one set for the executor
  const CaptureId first = begin(spec, "r1", 1);
  const CaptureId second = begin(other, "r2", 2);
  step().add(first, 1, *spec, 0, 1).add(second, 2, *other, 0, 2).push_to(*dispatcher_);
  // r1's row had ended when this step ran; r2 goes on beyond what it asked for.
  step().add(CaptureId{}, 1, *spec, 1, 2).add(second, 2, *other, 2, 3).push_to(*dispatcher_);
  dispatcher_->end(first);
  dispatcher_->end(second);
  inbound_.wait();
  inbound_.wait();
  expect_rows(*a_, "r1", 1, {0}, 1);
  expect_rows(*a_, "r2", 2, {0, 1}, 1);
}

TEST_F(DispatcherTest, WhatRunsAgainAfterAPreemptionIsHandedOutOnce) {
  start();
  const auto spec =
      make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}, "positions": "all"}})");
  const CaptureId id = begin(spec, "r1", 4);
  step().add(id, 1, *spec, 0, 4).push_to(*dispatcher_);
  step().add(id, 1, *spec, 4, 5).push_to(*dispatcher_);
  step().add(id, 1, *spec, 0, 6).push_to(*dispatcher_);  // preempted, then recomputed
  step().add(id, 1, *spec, 6, 7).push_to(*dispatcher_);
  dispatcher_->end(id);
  inbound_.wait();
  expect_rows(*a_, "r1", 1, {0, 1, 2, 3, 4, 5, 6}, 1);
}

TEST_F(DispatcherTest, RowsThatTheExecutorLostMakeThePartialErrorOfTheirRequestAlone) {
  start();
  const auto spec =
      make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}, "positions": "all"}})");
  const CaptureId lossy = begin(spec, "r1", 2);
  const CaptureId whole = begin(spec, "r2", 2);
  step().add(lossy, 1, *spec, 0, 2).push_lost_to(*dispatcher_);
  step().add(lossy, 1, *spec, 0, 2).push_lost_to(*dispatcher_);  // again: no other tokens
  step().add(lossy, 1, *spec, 2, 3).add(whole, 2, *spec, 0, 2).push_to(*dispatcher_);
  dispatcher_->end(lossy);
  const CaptureResults partial = inbound_.wait();
  EXPECT_EQ(partial[0].status, Status::kPartialError);
  EXPECT_NE(partial[0].error.find("2 tokens"), std::string::npos) << partial[0].error;
  dispatcher_->end(whole);
  EXPECT_EQ(inbound_.wait()[0].status, Status::kOk);
  EXPECT_EQ(dispatcher_->stats().lost_tokens, 2u);
  expect_rows(*a_, "r1", 1, {2}, 1);
}

TEST_F(DispatcherTest, TheExecutorsMemoryIsGivenBackThoughAConsumerStalls) {
  Gate gate;
  a_->on_take = [&](const SessionInfo&) {
    gate.wait();
    return Result<void>();
  };
  start();
  const auto spec =
      make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}, "positions": "all"}})");
  const CaptureId id = begin(spec, "r1", 4);
  std::vector<std::shared_ptr<bool>> leases;
  for (int32_t p = 0; p < 4; ++p) {
    FakeStep one = step();
    one.add(id, 1, *spec, p, p + 1);
    leases.push_back(one.watch_lease());
    one.push_to(*dispatcher_);
  }
  dispatcher_->end(id);
  ASSERT_TRUE(eventually([&] { return dispatcher_->stats().batches >= 4; }));
  // The dispatch thread has taken all four; the last may still be in its hands.
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(*leases[i]) << i;
  gate.open();
  EXPECT_EQ(inbound_.wait()[0].status, Status::kOk);
}

TEST_F(DispatcherTest, AFailingConsumerFailsItsOwnResult) {
  a_->on_take = [](const SessionInfo& info) -> Result<void> {
    if (info.request_id != "bad") return {};
    return fail(ErrorCode::kIo, "the disk is on fire", "a");
  };
  start();
  const auto spec = make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}},
                                                "b": {"sites": {"resid_post": [0]}}})");
  const CaptureId bad = begin(spec, "bad", 1);
  const CaptureId good = begin(spec, "good", 1);
  step().add(bad, 1, *spec, 0, 1).add(good, 2, *spec, 0, 1).push_to(*dispatcher_);
  dispatcher_->end(bad);
  const CaptureResults failed = inbound_.wait();
  EXPECT_EQ(failed[0].status, Status::kError);
  EXPECT_NE(failed[0].error.find("on fire"), std::string::npos);
  EXPECT_EQ(failed[1].status, Status::kOk);
  dispatcher_->end(good);
  const CaptureResults fine = inbound_.wait();
  EXPECT_EQ(fine[0].status, Status::kOk);
  EXPECT_EQ(stats_of("a").results_error, 1u);
  EXPECT_EQ(stats_of("a").results_ok, 1u);
}

TEST_F(DispatcherTest, AStalledConsumerTimesOutAndBlocksNobody) {
  settings_.result_timeout_seconds = 1;  // long enough for the other consumer, whatever else runs
  Gate gate;
  a_->on_take = [&](const SessionInfo&) {
    gate.wait();
    return Result<void>();
  };
  start();
  const auto both = make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}},
                                                "b": {"sites": {"resid_post": [0]}}})");
  const auto only_b = make_spec(*dispatcher_, R"({"b": {"sites": {"resid_post": [0]}}})");
  const CaptureId stuck = begin(both, "stuck", 1);
  step().add(stuck, 1, *both, 0, 1).push_to(*dispatcher_);
  dispatcher_->end(stuck);
  for (int i = 0; i < 20; ++i) {
    const CaptureId id = begin(only_b, "b" + std::to_string(i), 1);
    step().add(id, 2, *only_b, 0, 1).push_to(*dispatcher_);
    dispatcher_->end(id);
    // Results of others come while `stuck` still waits, or after its time ran out.
    CaptureResults results = inbound_.wait();
    if (results.size() == 3 || results[0].consumer == "a") results = inbound_.wait();
    EXPECT_EQ(results[0].status, Status::kOk);
  }
  // The results of one request are counted one after the other.
  ASSERT_TRUE(eventually(
      [&] { return stats_of("a").results_error > 0 && stats_of("b").results_ok == 21; }));
  // The lane is known to be stuck: the next request does not wait for it. One whose time ran out
  // would say another thing.
  std::this_thread::sleep_for(milliseconds(1050));
  while (!inbound_.is_empty()) inbound_.wait();
  const CaptureId next = begin(both, "next", 1);
  dispatcher_->end(next);
  const CaptureResults results = inbound_.wait();
  EXPECT_EQ(results[0].status, Status::kError);
  EXPECT_EQ(results[0].error, "the consumer is stuck in an earlier request");
  EXPECT_EQ(results[1].status, Status::kOk);
  gate.open();
}

TEST_F(DispatcherTest, AConsumerThatNeverComesBackDoesNotHoldUpTheEnd) {
  settings_.result_timeout_seconds = 0.1;
  const auto gate = std::make_shared<Gate>();
  a_->on_take = [gate](const SessionInfo&) {
    gate->wait();
    return Result<void>();
  };
  start();
  const auto spec = make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}}})");
  const CaptureId id = begin(spec, "stuck", 1);
  step().add(id, 1, *spec, 0, 1).push_to(*dispatcher_);
  ASSERT_TRUE(eventually([&] { return stats_of("a").queued_bytes > 0; }));
  const auto before = steady_clock::now();
  dispatcher_.reset();
  EXPECT_LT(steady_clock::now() - before, std::chrono::seconds(5));
  EXPECT_EQ(inbound_.wait()[0].status, Status::kError);
  gate->open();
  // The thread that was left behind still has rows to hand to the consumer: let it end.
  ASSERT_TRUE(eventually([&] { return a_.use_count() == 1; }));
}

TEST(CaptureGate, OneThatNobodyOpensFailsTheTestInTime) {
  EXPECT_NONFATAL_FAILURE(Gate(std::chrono::milliseconds(10)).wait(), "was not opened");
  Gate opened(std::chrono::milliseconds(10));
  opened.open();
  opened.wait();
}

TEST_F(DispatcherTest, CancelGivesErrorsAndTheEndCancelsWhatIsOpen) {
  start();
  const auto spec = make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}}})");
  const CaptureId id = begin(spec, "r1", 1);
  dispatcher_->cancel(id);
  dispatcher_->end(id);  // too late: without effect
  EXPECT_EQ(inbound_.wait()[0].status, Status::kError);
  begin(spec, "r2", 1);
  dispatcher_.reset();
  EXPECT_EQ(inbound_.wait()[0].status, Status::kError);
  EXPECT_TRUE(inbound_.is_empty());
}

TEST_F(DispatcherTest, WhoDoesNotWaitIsToldWhatIsPending) {
  Gate gate;
  a_->on_take = [&](const SessionInfo&) {
    gate.wait();
    return Result<void>();
  };
  start();
  const auto spec = make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}}})");
  const CaptureId id = begin(spec, "r1", 1, false);
  step().add(id, 1, *spec, 0, 1).push_to(*dispatcher_);
  dispatcher_->end(id);
  EXPECT_EQ(inbound_.wait()[0].status, Status::kPending);
  gate.open();
  ASSERT_TRUE(eventually([&] { return stats_of("a").results_ok > 0; }));
  EXPECT_TRUE(inbound_.is_empty());
  EXPECT_EQ(dispatcher_->stats().open_requests, 0);
}

TEST_F(DispatcherTest, TheOperatorsCaptureRunsForEveryRequest) {
  settings_.global = R"({"b": {"sites": {"resid_pre": [0]}, "positions": "all_prompt"}})";
  start();
  Result<std::shared_ptr<const CaptureSpec>> plain = dispatcher_->spec(nullptr);
  ASSERT_TRUE(plain.has_value());
  ASSERT_NE(*plain, nullptr);
  const CaptureId id = begin(*plain, "r1", 2);
  step().add(id, 1, **plain, 0, 2).push_to(*dispatcher_);
  dispatcher_->end(id);
  CaptureResults results = inbound_.wait();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].status, Status::kNotRequested);
  expect_rows(*b_, "r1", 1, {0, 1}, 1);
  const auto both = make_spec(*dispatcher_, R"({"b": {"sites": {"resid_post": [2]}}})");
  const CaptureId second = begin(both, "r2", 2);
  step().add(second, 2, *both, 0, 2).push_to(*dispatcher_);
  dispatcher_->end(second);
  results = inbound_.wait();
  ASSERT_EQ(results.size(), 1u);  // the request's own
  EXPECT_EQ(results[0].status, Status::kOk);
  EXPECT_EQ(b_->num_rows(), 2u + 2u + 1u);
}

TEST_F(DispatcherTest, CaptureThatIsOffOrWrongIsRefused) {
  CaptureSettings settings;
  const auto off = Dispatcher::create({geometry_, {}, {}, {}}, settings);
  ASSERT_TRUE(off.has_value());
  EXPECT_EQ(*(*off)->spec(nullptr), nullptr);
  const boost::json::value field = {{"response", {{"sites", {{"resid_post", {1}}}}}}};
  const auto refused = (*off)->spec(&field);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().where, "capture");
  settings.global = R"({"nobody": {}})";
  EXPECT_FALSE(Dispatcher::create({geometry_, small_limits(), {}, {}}, settings).has_value());
  settings.global.clear();
  settings.consumers = {"filesystem"};
  EXPECT_FALSE(Dispatcher::create({geometry_, small_limits(), {}, {}}, settings).has_value());
  settings.consumers = {"logging", "logging"};
  EXPECT_FALSE(Dispatcher::create({geometry_, small_limits(), {}, {}}, settings).has_value());
  settings.consumers = {"logging:colour=red"};
  EXPECT_FALSE(Dispatcher::create({geometry_, small_limits(), {}, {}}, settings).has_value());
}

// One request of 200 tokens against a consumer that is closed until the gate opens, with room for
// about eight of them.
class OverloadTest : public DispatcherTest {
 protected:
  void run(const std::string& policy, int64_t spill_bytes, double block_seconds = 0.3) {
    settings_.overload_policy = policy;
    settings_.queue_bytes = 1024;  // a record of one point has 128 bytes
    settings_.spill_bytes = spill_bytes;
    settings_.spill_dir = folder_.path();
    settings_.block_timeout_seconds = block_seconds;
    a_->on_take = [&](const SessionInfo&) {
      gate_.wait();
      return Result<void>();
    };
    start();
    spec_ = make_spec(*dispatcher_, R"({"a": {"sites": {"resid_post": [0]}, "positions": "all"},
                                        "b": {"sites": {"resid_post": [0]}, "positions": "all"}})");
    id_ = begin(spec_, "r1", 1);
  }
  // Not faster than b takes it.
  void push(int32_t begin, int32_t end) {
    for (int32_t p = begin; p < end; ++p) {
      step().add(id_, 1, *spec_, p, p + 1).push_to(*dispatcher_);
      const auto count = static_cast<size_t>(p) + 1;
      ASSERT_TRUE(eventually([&] { return b_->num_rows() >= count; }));
    }
  }
  static std::vector<int32_t> upto(int32_t count) {
    std::vector<int32_t> positions(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) positions[static_cast<size_t>(i)] = i;
    return positions;
  }

  TempFolder folder_;
  Gate gate_;
  std::shared_ptr<const CaptureSpec> spec_;
  CaptureId id_;
};

TEST_F(OverloadTest, DropLosesRowsAndSaysSo) {
  run("drop", 0);
  push(0, 200);
  dispatcher_->end(id_);
  gate_.open();
  const CaptureResults results = inbound_.wait();
  EXPECT_EQ(results[0].status, Status::kPartialError);
  EXPECT_EQ(results[1].status, Status::kOk);
  const uint64_t dropped = stats_of("a").dropped_rows;
  EXPECT_GT(dropped, 150u);
  EXPECT_EQ(a_->num_rows() + dropped, 200u);
  EXPECT_NE(results[0].error.find(std::to_string(dropped) + " rows"), std::string::npos);
  expect_rows(*b_, "r1", 1, upto(200), 1);
}

TEST_F(OverloadTest, SpilledRowsArriveInOrder) {
  run("spill", 1 << 20);
  push(0, 200);
  EXPECT_GT(stats_of("a").spill_bytes, 0);
  dispatcher_->end(id_);
  gate_.open();
  const CaptureResults results = inbound_.wait();
  EXPECT_EQ(results[0].status, Status::kOk) << results[0].error;
  expect_rows(*a_, "r1", 1, upto(200), 1);
  EXPECT_GT(stats_of("a").spilled_rows, 150u);
  EXPECT_EQ(stats_of("a").dropped_rows, 0u);
  EXPECT_EQ(stats_of("a").spill_bytes, 0);
  EXPECT_TRUE(folder_.files().empty());  // the file has no name
}

TEST_F(OverloadTest, WhatIsBeyondTheSpillLimitIsDropped) {
  run("spill", 128 * 50 + 64);  // wraps around its ring in the middle of a record
  push(0, 100);
  const uint64_t dropped = stats_of("a").dropped_rows;
  EXPECT_EQ(stats_of("a").spilled_rows, 50u);
  EXPECT_GE(dropped, 40u);
  gate_.open();
  ASSERT_TRUE(eventually([&] { return a_->num_rows() + dropped >= 100; }));
  push(100, 200);  // the ring is used again
  dispatcher_->end(id_);
  EXPECT_EQ(inbound_.wait()[0].status, Status::kPartialError);
  for (const TestConsumer::Row& row : a_->rows()) {
    uint16_t value = 0;
    std::memcpy(&value, row.bytes.data(), 2);
    EXPECT_EQ(value, row_value(1, row.position, row.point, 0));
  }
}

TEST_F(OverloadTest, BlockMakesTheEngineWaitAndLosesNothing) {
  run("block", 0, 60);
  std::thread opener([&] {
    EXPECT_TRUE(
        eventually([&] { return b_->num_rows() >= 8; }));  // there is room for about as many
    std::this_thread::sleep_for(milliseconds(50));
    gate_.open();
  });
  push(0, 200);
  dispatcher_->end(id_);
  opener.join();
  const CaptureResults results = inbound_.wait();
  EXPECT_EQ(results[0].status, Status::kOk) << results[0].error;
  expect_rows(*a_, "r1", 1, upto(200), 1);
  EXPECT_GT(dispatcher_->stats().block_us, 1000u);
}

TEST_F(OverloadTest, BlockGivesUpOnAConsumerThatMakesNoProgress) {
  run("block", 0);
  const auto before = steady_clock::now();
  push(0, 200);
  const auto took = steady_clock::now() - before;
  EXPECT_GE(took, milliseconds(290));
  EXPECT_LT(took, milliseconds(30'000));  // one timeout, not two hundred: these take a minute
  gate_.open();
  dispatcher_->end(id_);
  const CaptureResults results = inbound_.wait();
  EXPECT_EQ(results[0].status, Status::kPartialError);
  EXPECT_GT(stats_of("a").dropped_rows, 100u);
  expect_rows(*b_, "r1", 1, upto(200), 1);
}

}  // namespace
}  // namespace rudder::steer::capture
