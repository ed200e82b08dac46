// IoThread: a thread with an event loop, and a mailbox through which other threads reach the
// connections of that thread. The server makes one for each I/O thread. For each event of a request
// the engine thread makes one push into the mailbox of the connection's thread. Only the first
// event of a batch wakes the loop; the loop then delivers the whole batch.
// IoThread is owned by shared pointer: whoever may still post holds one. After close() it drops
// what is posted. An exception of one task, receiver or handler ends that one; the loop goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/event.h"
#include "rudder/server/http/members.h"

namespace boost::asio {
class io_context;
}

namespace rudder::server {

// Who gets the events of a request: on the I/O thread, a batch at a time.
class EventReceiver {
 public:
  virtual ~EventReceiver() = default;
  // `source` is the number the receiver chose for the request (one receiver may have several).
  virtual void on_event(uint32_t source, engine::Event&& event) = 0;
  // After the last of a batch's events for this receiver.
  virtual void on_batch_end() = 0;
  // One of the two threw this: the receiver ends, with an error for its client.
  virtual void on_failure(const Error& error) = 0;
};

class IoThread {
 public:
  IoThread();
  ~IoThread();

  // Any thread.
  void post(std::function<void()> work);
  void deliver(std::shared_ptr<EventReceiver> receiver, uint32_t source, engine::Event&& event);

  // Grows a few times a second while the loop goes on.
  uint64_t num_sweeps() const { return num_sweeps_.load(std::memory_order_relaxed); }

  boost::asio::io_context& context() { return *context_; }

  void start();  // the thread
  // Nothing more is taken; the loop stops, the thread is joined, what is left is destroyed.
  void close();

  // The I/O thread's own. Members may leave while one of them is acted on; each leaves before it is
  // destroyed.
  void add_session(const std::shared_ptr<Endable>& session);
  void remove_session(Endable* session);
  void add_generation(const std::shared_ptr<Endable>& generation);
  void remove_generation(Endable* generation);
  void end_sessions();
  void end_generations();

 private:
  struct Mail {
    std::shared_ptr<EventReceiver> receiver;
    uint32_t source = 0;
    engine::Event event;
  };
  void schedule_locked();
  void drain_mailbox();
  void sweep();

  std::unique_ptr<boost::asio::io_context> context_;
  struct Timer;
  std::unique_ptr<Timer> sweep_timer_;
  std::thread thread_;
  std::atomic<uint64_t> num_sweeps_{0};

  std::mutex mutex_;  // guards the mailbox
  std::vector<Mail> mail_;
  std::vector<std::function<void()>> work_;
  bool scheduled_ = false;
  bool closed_ = false;

  std::vector<Mail> batch_;  // drain_mailbox's own: swapped with mail_, so that both keep capacity
  std::vector<std::function<void()>> work_batch_;

  // Of a copy: an action may end a member, which then leaves.
  static void for_each(const std::vector<std::weak_ptr<Endable>>& members,
                       const std::function<void(Endable&)>& action);
  Members sessions_;
  Members generations_;
};

}  // namespace rudder::server
