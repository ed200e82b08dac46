#include "rudder/testing/async_ops.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "rudder/base/queue.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

constexpr std::chrono::microseconds kCopyPause(300);
constexpr size_t kQueuedCalls = 1 << 16;

// How often an event was recorded, and how many of these records the stream has reached.
class EventState {
 public:
  void recorded() {
    std::lock_guard lock(mutex_);
    ++num_recorded_;
  }
  void reached() {
    std::lock_guard lock(mutex_);
    ++num_reached_;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_reached_ == num_recorded_; });
  }
  int64_t num_recorded() {
    std::lock_guard lock(mutex_);
    return num_recorded_;
  }
  void wait_for(int64_t record) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_reached_ >= record; });
  }
  bool done() {
    std::lock_guard lock(mutex_);
    return num_reached_ == num_recorded_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_recorded_ = 0;
  int64_t num_reached_ = 0;
};

struct AsyncEvent final : ops::Event {
  explicit AsyncEvent(std::shared_ptr<std::atomic<bool>> fault) : has_fault(std::move(fault)) {}
  Result<void> wait() override {
    state->wait();
    if (*has_fault) return fail(ErrorCode::kInternal, "device fault");
    return {};
  }
  bool done() override { return state->done(); }

  const std::shared_ptr<EventState> state = std::make_shared<EventState>();
  const std::shared_ptr<std::atomic<bool>> has_fault;
};

struct AsyncMessage final : ops::HostMessage {
  using HostMessage::HostMessage;
  bool has_arrived() override { return state->done(); }

  const std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

class AsyncOps final : public ForwardingOps, public ops::GraphOps {
 public:
  AsyncOps(std::unique_ptr<ops::Ops> inner, std::shared_ptr<std::atomic<bool>> has_fault)
      : ForwardingOps(std::move(inner)),
        has_fault_(std::move(has_fault)),
        queue_(kQueuedCalls),
        aside_queue_(kQueuedCalls) {
    stream_ = std::thread([this] {
      while (const auto call = queue_.pop()) (*call)(*inner_);
    });
    aside_ = std::thread([this] {
      while (const auto call = aside_queue_.pop()) (*call)(*inner_);
    });
  }
  ~AsyncOps() override {
    queue_.close();
    stream_.join();
    aside_queue_.close();
    aside_.join();
  }

  std::string name() const override { return inner_->name() + "-async"; }

  Result<View> allocate(DType dtype, tensor::Shape shape) override {
    return idle().allocate(dtype, shape);
  }
  Result<View> upload(const View& host, DType dtype) override { return idle().upload(host, dtype); }
  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    return idle().make_linear(parts);
  }
  Result<View> allocate_staging(int64_t bytes) override { return idle().allocate_staging(bytes); }

  void copy_in(const View& device, const View& staging) override {
    forward([=](ops::Ops& ops) {
      std::this_thread::sleep_for(kCopyPause);
      ops.copy_in(device, staging);
    });
  }
  void copy_out(const View& staging, const View& device) override {
    forward([=](ops::Ops& ops) {
      std::this_thread::sleep_for(kCopyPause);
      ops.copy_out(staging, device);
    });
  }
  // Later than the main stream would have been, which goes on meanwhile.
  void copy_out_aside(const View& staging, const View& device, ops::Event& done) override {
    const auto state = static_cast<AsyncEvent&>(done).state;
    state->recorded();
    const Call copy = [=](ops::Ops& ops) {
      std::this_thread::sleep_for(3 * kCopyPause);
      ops.copy_out(staging, device);
      state->reached();
    };
    forward([this, copy](ops::Ops&) { aside_queue_.push(copy); });
  }
  std::unique_ptr<ops::Event> make_event() override {
    return std::make_unique<AsyncEvent>(has_fault_);
  }
  void record(ops::Event& event) override {
    const auto state = static_cast<AsyncEvent&>(event).state;
    state->recorded();
    forward([state](ops::Ops&) { state->reached(); });
  }
  Result<std::unique_ptr<ops::Message>> make_message(int64_t bytes) override {
    return std::make_unique<AsyncMessage>(bytes);
  }
  void post(ops::Message& message) override {
    const auto state = static_cast<AsyncMessage&>(message).state;
    state->recorded();
    forward([state](ops::Ops&) { state->reached(); });
  }
  void await(ops::Message& message) override {
    const auto state = static_cast<AsyncMessage&>(message).state;
    forward([state, record = state->num_recorded()](ops::Ops&) { state->wait_for(record); });
  }
  void copy(const View& to, const View& from) override {
    forward([=](ops::Ops& ops) { ops.copy(to, from); });
  }
  Result<void> status() override {
    if (*has_fault_) return fail(ErrorCode::kInternal, "device fault");
    return {};
  }

  ops::GraphOps* graph_ops() override { return this_if<ops::GraphOps>(inner_->graph_ops(), this); }
  // Copies aside could go on during a capture, but the inner device may have one tape for all.
  void begin_capture() override {
    EventState reached;
    reached.recorded();
    forward([&](ops::Ops&) { aside_queue_.push([&](ops::Ops&) { reached.reached(); }); });
    reached.wait();
    inner_->graph_ops()->begin_capture();
  }
  Result<std::unique_ptr<ops::Graph>> end_capture() override {
    return idle().graph_ops()->end_capture();
  }
  void replay(ops::Graph& graph) override {
    forward([&graph](ops::Ops& ops) { ops.graph_ops()->replay(graph); });
  }

 private:
  void forward(Call call) override { queue_.push(std::move(call)); }

  // The inner device, when it has run all that is queued.
  ops::Ops& idle() {
    EventState reached;
    reached.recorded();
    forward([&reached](ops::Ops&) { reached.reached(); });
    reached.wait();
    return *inner_;
  }

  const std::shared_ptr<std::atomic<bool>> has_fault_;
  BoundedQueue<Call> queue_;
  BoundedQueue<Call> aside_queue_;
  std::thread stream_;
  std::thread aside_;
};

}  // namespace

std::unique_ptr<ops::Ops> make_async_ops(std::unique_ptr<ops::Ops> inner,
                                         std::shared_ptr<std::atomic<bool>> has_fault) {
  return std::make_unique<AsyncOps>(std::move(inner), std::move(has_fault));
}

}  // namespace rudder::testing
