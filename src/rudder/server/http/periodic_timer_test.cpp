#include "rudder/server/http/periodic_timer.h"

#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <optional>
#include <thread>

namespace rudder::server {
namespace {

using std::chrono::milliseconds;

TEST(PeriodicTimer, CallsAgainAndAgainUntilItGoes) {
  boost::asio::io_context io;
  int calls = 0;
  std::optional<PeriodicTimer> timer;
  timer.emplace(io, milliseconds(1), [&] {
    if (++calls == 3) timer.reset();
  });
  io.run();  // returns when nothing waits any more
  EXPECT_EQ(calls, 3);
}

// The timer runs out while another handler runs, so both its call and its end are queued, the end
// first.
TEST(PeriodicTimer, IsNotCalledOnceItIsGoneThoughItWasDue) {
  boost::asio::io_context io;
  int calls = 0;
  std::optional<PeriodicTimer> timer;
  timer.emplace(io, milliseconds(20), [&] { ++calls; });
  boost::asio::post(io, [&] {
    std::this_thread::sleep_for(milliseconds(40));
    boost::asio::post(io, [&] { timer.reset(); });
  });
  io.run();
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace rudder::server
