// What is thrown on an I/O thread ends whom it was thrown by, and the loop goes on.
#include "rudder/server/http/io_thread.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "rudder/base/log.h"

namespace rudder::server {
namespace {

// Notes what it gets; throws where it is told to.
struct NotingReceiver final : EventReceiver {
  void on_event(uint32_t source, engine::Event&&) override {
    if (source == throws_at) throw std::runtime_error("event");
    sources.push_back(source);
  }
  void on_batch_end() override {
    if (throws_at_end) throw 42;
    ++batch_ends;
  }
  void on_failure(const Error& error) override {
    failures.push_back(error);
    if (throws_at_failure) throw std::bad_alloc();
  }

  uint32_t throws_at = UINT32_MAX;
  bool throws_at_end = false;
  bool throws_at_failure = false;
  std::vector<uint32_t> sources;
  std::vector<Error> failures;
  int batch_ends = 0;
};

struct DueMember final : Endable {
  explicit DueMember(bool throws) : throws_(throws) {}
  int64_t due_us() const override { return calls < 2 ? 0 : kNever; }
  void on_due(int64_t) override {
    if (++calls == 2) twice.set_value();
    if (throws_) throw std::runtime_error("due");
  }
  void end_now() override {}

  int calls = 0;
  std::promise<void> twice;

 private:
  const bool throws_;
};

struct DueLater final : Endable {
  explicit DueLater(int64_t due) : due(due) {}
  int64_t due_us() const override {
    ++times;
    return due;
  }
  void on_due(int64_t) override {}
  void end_now() override {}

  int64_t due;
  mutable int times = 0;
};

// Two seconds of sweeps.
TEST(MembersTest, FewAreLookedAt) {
  Members members;
  std::vector<std::shared_ptr<DueLater>> all;
  for (const int64_t due : {Endable::kNever, int64_t{1'250'000}, Endable::kNever, int64_t{0}}) {
    members.add(all.emplace_back(std::make_shared<DueLater>(due)));
  }
  members.remove(all[0].get());  // the last one has its index
  members.remove(all[0].get());
  int64_t first_us = 0;
  size_t found = 0;
  for (int64_t now_us = 0; now_us <= 2'000'000; now_us += 100'000) {
    for (const std::weak_ptr<Endable>& due : members.due(now_us)) {
      ++found;
      if (due.lock() == all[1] && first_us == 0) first_us = now_us;
    }
  }
  EXPECT_EQ(all[0]->times, 0);
  EXPECT_LE(all[2]->times, 5) << "one that is never due";
  EXPECT_EQ(first_us, 1'300'000) << "the first sweep behind the time that it had said";
  EXPECT_EQ(found, size_t{21 + 8});
  all[2]->due = 2'050'000;
  members.due(2'100'000);
  EXPECT_EQ(members.due(2'000'000 + Members::kLookUs).size(), 3u) << "said later";
  EXPECT_EQ(members.all().size(), 3u);
}

class IoThreadTest : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }
  void TearDown() override {
    thread_.close();
    set_log_level(LogLevel::kInfo);
  }

  static bool comes(std::future<void> future) {
    return future.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  }
  // Runs on the thread behind everything that was posted and delivered before.
  bool settles() {
    std::promise<void> done;
    std::future<void> future = done.get_future();
    thread_.post([&] { boost::asio::post(thread_.context(), [&] { done.set_value(); }); });
    return comes(std::move(future));
  }

  IoThread thread_;
};

TEST_F(IoThreadTest, AReceiverThatThrowsFailsAlone) {
  const auto bad = std::make_shared<NotingReceiver>();
  const auto worse = std::make_shared<NotingReceiver>();
  const auto good = std::make_shared<NotingReceiver>();
  bad->throws_at = 1;
  worse->throws_at_end = true;
  worse->throws_at_failure = true;
  for (uint32_t source = 0; source < 3; ++source) {
    for (const auto& receiver : {bad, worse, good}) thread_.deliver(receiver, source, {});
  }
  thread_.start();
  ASSERT_TRUE(settles());
  EXPECT_EQ(good->sources, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(good->batch_ends, 3);
  EXPECT_TRUE(good->failures.empty());
  ASSERT_EQ(bad->failures.size(), 1u);
  EXPECT_EQ(bad->failures[0].message, "event");
  EXPECT_EQ(bad->sources, (std::vector<uint32_t>{0, 2}));  // it may have ended itself
  EXPECT_EQ(worse->failures.size(), 3u);
}

TEST_F(IoThreadTest, TasksAndHandlersThatThrowEndThemselvesAlone) {
  thread_.start();
  int ran = 0;
  thread_.post([] { throw std::runtime_error("task"); });
  thread_.post([&] { ++ran; });
  ASSERT_TRUE(settles());
  boost::asio::post(thread_.context(), [] { throw std::bad_alloc(); });
  ASSERT_TRUE(settles());
  thread_.post([&] { ++ran; });
  ASSERT_TRUE(settles());
  EXPECT_EQ(ran, 2);
}

TEST_F(IoThreadTest, AMemberThatThrowsHoldsUpNoOther) {
  const auto bad = std::make_shared<DueMember>(true);
  const auto good = std::make_shared<DueMember>(false);
  thread_.add_session(bad);
  thread_.add_generation(good);
  std::future<void> seen_bad = bad->twice.get_future(), seen_good = good->twice.get_future();
  thread_.start();
  EXPECT_TRUE(comes(std::move(seen_bad)));
  EXPECT_TRUE(comes(std::move(seen_good)));
}

}  // namespace
}  // namespace rudder::server
