#include "rudder/server/http/io_thread.h"

#include <pthread.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "rudder/base/clock.h"
#include "rudder/base/contain.h"
#include "rudder/base/log.h"

namespace rudder::server {

namespace asio = boost::asio;

namespace {

constexpr auto kSweepPeriod = std::chrono::milliseconds(100);  // how late a deadline may be seen

// False when `work` threw, which is then in the log.
template <typename Work>
bool contained(const char* what, Work&& work) {
  const Result<void> done = contain(std::forward<Work>(work));
  if (!done) log_error("I/O thread: a {} threw: {}", what, done.error().to_string());
  return done.has_value();
}

// What a receiver throws is that receiver's failure.
template <typename Work>
void hand_over(EventReceiver& receiver, Work&& work) {
  const Result<void> taken = contain(std::forward<Work>(work));
  if (taken) return;
  log_error("I/O thread: a receiver threw: {}", taken.error().to_string());
  contained("failing receiver", [&] { receiver.on_failure(taken.error()); });
}

}  // namespace

struct IoThread::Timer {
  explicit Timer(asio::io_context& context) : timer(context), guard(context.get_executor()) {}
  asio::steady_timer timer;
  asio::executor_work_guard<asio::io_context::executor_type> guard;
};

IoThread::IoThread()
    : context_(std::make_unique<asio::io_context>(1)),
      sweep_timer_(std::make_unique<Timer>(*context_)) {}

IoThread::~IoThread() {
  close();
}

void IoThread::start() {
  asio::post(*context_, [this] { sweep(); });
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "rudder-http");
    // What a handler throws ends that handler; the loop goes on with the next.
    for (bool ended = false; !ended;) ended = contained("handler", [this] { context_->run(); });
  });
}

void IoThread::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    mail_.clear();
    work_.clear();
  }
  if (!context_) return;
  context_->stop();
  if (thread_.joinable()) thread_.join();
  // Coroutines that still wait hold their sessions, and those hold this thread: break the ring.
  sweep_timer_.reset();
  context_.reset();
}

void IoThread::schedule_locked() {
  if (scheduled_) return;
  scheduled_ = true;
  asio::post(*context_, [this] { drain_mailbox(); });
}

void IoThread::post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  work_.push_back(std::move(work));
  schedule_locked();
}

void IoThread::deliver(std::shared_ptr<EventReceiver> receiver, uint32_t source,
                       engine::Event&& event) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  mail_.push_back({std::move(receiver), source, std::move(event)});
  schedule_locked();
}

void IoThread::drain_mailbox() {
  {
    std::lock_guard lock(mutex_);
    scheduled_ = false;
    batch_.swap(mail_);
    work_batch_.swap(work_);
  }
  for (std::function<void()>& work : work_batch_) contained("task", work);
  work_batch_.clear();
  for (Mail& mail : batch_) {
    hand_over(*mail.receiver, [&] { mail.receiver->on_event(mail.source, std::move(mail.event)); });
  }
  for (Mail& mail : batch_) hand_over(*mail.receiver, [&] { mail.receiver->on_batch_end(); });
  batch_.clear();
}

void IoThread::sweep() {
  num_sweeps_.fetch_add(1, std::memory_order_relaxed);
  const int64_t now_us = SteadyClock().now_us();
  for (Members* members : {&sessions_, &generations_}) {
    for_each(members->due(now_us), [now_us](Endable& member) { member.on_due(now_us); });
  }
  sweep_timer_->timer.expires_after(kSweepPeriod);
  sweep_timer_->timer.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) sweep();
  });
}

void IoThread::for_each(const std::vector<std::weak_ptr<Endable>>& members,
                        const std::function<void(Endable&)>& action) {
  for (const std::weak_ptr<Endable>& member : members) {
    const std::shared_ptr<Endable> alive = member.lock();
    if (alive != nullptr) contained("member", [&] { action(*alive); });
  }
}

void IoThread::add_session(const std::shared_ptr<Endable>& session) {
  sessions_.add(session);
}

void IoThread::remove_session(Endable* session) {
  sessions_.remove(session);
}

void IoThread::add_generation(const std::shared_ptr<Endable>& generation) {
  generations_.add(generation);
}

void IoThread::remove_generation(Endable* generation) {
  generations_.remove(generation);
}

void IoThread::end_sessions() {
  for_each(sessions_.all(), [](Endable& session) { session.end_now(); });
}

void IoThread::end_generations() {
  for_each(generations_.all(), [](Endable& generation) { generation.end_now(); });
}

}  // namespace rudder::server
