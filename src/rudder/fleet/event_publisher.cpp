#include "rudder/fleet/event_publisher.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/fleet/event_queue.h"
#include "rudder/fleet/replay_buffer.h"
#include "rudder/fleet/replay_server.h"
#include "rudder/fleet/zmq_socket.h"

namespace rudder::fleet {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
constexpr auto kIdle = std::chrono::milliseconds(1000);  // without a batch, then one without events
constexpr auto kReplayPoll = std::chrono::milliseconds(2);  // for room at a peer that replays
constexpr int64_t kReplayBytes = int64_t{256} << 20;
constexpr int kBatchesAtOnce = 256;  // between two looks at the other sockets

// Wakes a thread that polls; any thread may signal.
class WakeSignal {
 public:
  WakeSignal() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  WakeSignal(const WakeSignal&) = delete;
  ~WakeSignal() { ::close(fd_); }

  int fd() const { return fd_; }
  void set() const { ::eventfd_write(fd_, 1); }
  void reset() const {
    eventfd_t count = 0;
    ::eventfd_read(fd_, &count);
  }

 private:
  const int fd_;
};

Error at_key(Error error, const char* key) {
  error.where = std::string("kv-events-config.") + key;
  return error;
}

}  // namespace

class EventPublisher::Impl {
 public:
  Impl(const EventsConfig& config, const CacheShape& shape, const ZmqApi* api)
      : config_(config),
        shape_(shape),
        context_(api),
        queue_({.max_batches = config.max_queue_size}, [this] { wake_.set(); }),
        buffer_(config.buffer_steps, kReplayBytes) {}

  ~Impl() {
    stopping_.store(true, std::memory_order_release);
    wake_.set();
    if (thread_.joinable()) thread_.join();
  }

  Result<void> start() {
    if (wake_.fd() < 0) return fail(ErrorCode::kIo, "there is no file descriptor for KV events");
    RUDDER_TRY_VOID(open_sockets());
    queue_.cleared();  // what a process had before this one with its address
    queue_.step_done();
    thread_ = std::thread([this] { run(); });
    return {};
  }

  cache::BlockWatcher* watcher() { return &queue_; }

  PublisherStats stats() const {
    const EventCounts& events = queue_.counts();
    return {.subscribers = subscribers_,
            .batches = batches_,
            .stored = events.stored,
            .removed = events.removed,
            .cleared = events.cleared,
            .withheld = events.withheld,
            .dropped = events.dropped_batches,
            .replays = replays_.replays,
            .replayed = replays_.batches};
  }

  std::string endpoint_;
  std::string replay_endpoint_;

 private:
  Result<void> open_sockets() {
    // As PUB, but says who subscribes.
    RUDDER_TRY(ZmqSocket socket, context_.socket(ZMQ_XPUB));
    RUDDER_TRY_VOID(socket.set(ZMQ_XPUB_VERBOSER, 1));
    RUDDER_TRY_VOID(socket.set(ZMQ_SNDHWM, config_.hwm));
    const bool binds = is_bound(config_.endpoint);
    // libzmq ends the process when it connects again a socket whose queue of what peers say was
    // full (zeromq/libzmq issue 3937). The peer that is connected to is the operator's; each turn
    // reads all that it says.
    if (!binds) RUDDER_TRY_VOID(socket.set(ZMQ_RCVHWM, 0));
    if (auto opened = socket.open(config_.endpoint, binds); !opened) {
      return tl::unexpected(at_key(opened.error(), "endpoint"));
    }
    endpoint_ = socket.last_endpoint();
    publish_.emplace(std::move(socket));
    if (config_.replay_endpoint.empty()) return {};
    auto replay = ReplayServer::create(context_, config_.replay_endpoint, config_.topic);
    if (!replay) return tl::unexpected(at_key(replay.error(), "replay_endpoint"));
    replay_.emplace(std::move(*replay));
    replay_endpoint_ = replay_->endpoint();
    return {};
  }

  void run() {
    pthread_setname_np(pthread_self(), "rudder-kvevents");
    while (!stopping_.load(std::memory_order_acquire)) {
      // What fails for want of memory costs a batch, which subscribers see as a gap.
      const Result<void> done = contain([this] { turn(); });
      if (!done) log_error("KV events: {}", done.error().to_string());
    }
  }

  void turn() {
    wait();
    take_subscriptions();
    if (std::exchange(is_somebody_new_, false)) begin_again();
    const int count = publish_queue();
    queue_waits_ = count == kBatchesAtOnce;
    const SteadyTime now = std::chrono::steady_clock::now();
    const bool is_idle = count == 0 && now >= published_ + kIdle;
    if (is_idle) publish({.time_s = EventBatch::now_s()});
    if (count > 0 || is_idle) published_ = now;
    if (replay_) {
      replay_->take_requests();
      replays_wait_ = replay_->serve(buffer_, shape_, replays_);
    }
  }

  void wait() {
    const auto until_idle = std::chrono::ceil<std::chrono::milliseconds>(
        published_ + kIdle - std::chrono::steady_clock::now());
    auto timeout = std::max(until_idle, std::chrono::milliseconds(0));
    if (replays_wait_) timeout = std::min(timeout, kReplayPoll);
    if (queue_waits_) timeout = std::chrono::milliseconds(0);
    std::array<zmq_pollitem_t, 3> items = {
        zmq_pollitem_t{nullptr, wake_.fd(), ZMQ_POLLIN, 0},
        zmq_pollitem_t{publish_->handle(), 0, ZMQ_POLLIN, 0},
        zmq_pollitem_t{replay_ ? replay_->handle() : nullptr, 0, ZMQ_POLLIN, 0}};
    context_.api().poll(items.data(), replay_ ? 3 : 2, timeout.count());
    wake_.reset();
  }

  void take_subscriptions() {
    while (const auto frames = publish_->receive()) {
      const std::string& message = frames->front();
      if (message.empty()) continue;
      const bool is_ours = config_.topic.starts_with(std::string_view(message).substr(1));
      if (!is_ours) continue;
      const bool has_come = message[0] == 1;
      subscribers_ += has_come ? 1 : -1;
      is_somebody_new_ |= has_come;
    }
  }

  int publish_queue() {
    int count = 0;
    while (count < kBatchesAtOnce) {
      std::optional<EventBatch> batch = queue_.take();
      if (!batch) break;
      publish(std::move(*batch));
      ++count;
    }
    return count;
  }

  void publish(EventBatch batch) {
    if (buffer_.is_full()) begin_again();
    send(std::move(batch));
  }

  // To subscribers it looks as if the process had been started again with what its cache has. One
  // that has just come may know another process at this address, or this one before the numbers
  // began again: the next number could be the one that it waits for. Only 0 tells it for certain.
  void begin_again() {
    if (!replay_) return;
    std::vector<EventBatch> first = buffer_.begin_again(shape_.block_size);
    replay_->begin_again();
    sequence_ = 0;
    for (EventBatch& batch : first) send(std::move(batch));
    buffer_.forget_size();
  }

  void send(EventBatch batch) {
    sequence_ += batch.dropped_before;
    const uint64_t sequence = sequence_++;
    // Never full: it drops.
    publish_->send({config_.topic, sequence_bytes(sequence), encode_batch(batch, shape_)});
    if (replay_) buffer_.add(sequence, std::move(batch));
    ++batches_;
  }

  const EventsConfig config_;
  const CacheShape shape_;
  const WakeSignal wake_;
  const ZmqContext context_;
  EventQueue queue_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> subscribers_{0};
  std::atomic<uint64_t> batches_{0};
  ReplayCounts replays_;

  // The thread's, once it runs.
  std::optional<ZmqSocket> publish_;
  std::optional<ReplayServer> replay_;
  ReplayBuffer buffer_;
  uint64_t sequence_ = 0;                                    // of the next batch
  SteadyTime published_ = std::chrono::steady_clock::now();  // when the last one was
  bool is_somebody_new_ = false;  // a subscriber that was told nothing yet
  bool queue_waits_ = false;
  bool replays_wait_ = false;

  std::thread thread_;
};

EventPublisher::EventPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EventPublisher::~EventPublisher() = default;

Result<std::unique_ptr<EventPublisher>> EventPublisher::start(const EventsConfig& config,
                                                              const CacheShape& shape) {
  RUDDER_TRY(const ZmqApi* const api, load_zmq());
  auto impl = std::make_unique<Impl>(config, shape, api);
  RUDDER_TRY_VOID(impl->start());
  return std::unique_ptr<EventPublisher>(new EventPublisher(std::move(impl)));
}

cache::BlockWatcher* EventPublisher::watcher() {
  return impl_->watcher();
}

PublisherStats EventPublisher::stats() const {
  return impl_->stats();
}

const std::string& EventPublisher::endpoint() const {
  return impl_->endpoint_;
}

const std::string& EventPublisher::replay_endpoint() const {
  return impl_->replay_endpoint_;
}

}  // namespace rudder::fleet
