// PeriodicTimer: calls a function each period on the thread of an io_context, until it goes. What
// Boost's timer has already queued when it is cancelled runs all the same; here it finds that the
// timer is gone. Made before the context runs, destroyed on its thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace rudder::server {

class PeriodicTimer {
 public:
  PeriodicTimer(boost::asio::io_context& io, std::chrono::microseconds period,
                std::function<void()> call)
      : state_(std::make_shared<State>(io, period, std::move(call))) {
    wait(state_);
  }
  ~PeriodicTimer() {
    state_->is_gone = true;
    state_->timer.cancel();
  }
  PeriodicTimer(const PeriodicTimer&) = delete;
  PeriodicTimer& operator=(const PeriodicTimer&) = delete;

 private:
  struct State {
    State(boost::asio::io_context& io, std::chrono::microseconds every, std::function<void()> call)
        : timer(io), period(every), function(std::move(call)) {}

    boost::asio::steady_timer timer;
    const std::chrono::microseconds period;
    const std::function<void()> function;
    bool is_gone = false;
  };

  static void wait(const std::shared_ptr<State>& state) {
    state->timer.expires_after(state->period);
    state->timer.async_wait([state](const boost::system::error_code& ec) {
      if (ec || state->is_gone) return;
      state->function();
      if (!state->is_gone) wait(state);
    });
  }

  const std::shared_ptr<State> state_;
};

}  // namespace rudder::server
