// EventPublisher: publishes what the prefix cache holds over ZeroMQ, as vLLM 0.33 does: messages of
// three frames [topic][sequence, 8 bytes big-endian][batch], and a socket that replays them. A
// thread of its own takes the batches from the queue that the engine thread fills; subscribers that
// do not read lose messages and hold nobody up. The first batch says that the cache is empty, and
// each second without a change has a batch without events, so that a subscriber soon learns what it
// has missed. apps/ makes it; it outlives the engine. Decisions: docs/adr/0040-kv-events.md,
// docs/adr/0048-replays-without-a-gap.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/cache/block_watcher.h"
#include "rudder/fleet/encode_events.h"
#include "rudder/fleet/events_config.h"

namespace rudder::fleet {

struct PublisherStats {
  int64_t subscribers = 0;  // whose topic is ours
  uint64_t batches = 0;     // published, empty ones included
  uint64_t stored = 0;      // blocks
  uint64_t removed = 0;     // blocks
  uint64_t cleared = 0;     // times
  uint64_t withheld = 0;    // blocks with salt or steering, which are not published
  uint64_t dropped = 0;     // batches for which the queue had no room
  uint64_t replays = 0;
  uint64_t replayed = 0;  // batches
};

class EventPublisher {
 public:
  // Opens the sockets and starts the thread. kUnavailable: no libzmq. kIo, where = the key of the
  // configuration: an endpoint that cannot be bound.
  static Result<std::unique_ptr<EventPublisher>> start(const EventsConfig& config,
                                                       const CacheShape& shape);
  ~EventPublisher();  // joins the thread
  EventPublisher(const EventPublisher&) = delete;

  // For the engine; the publisher owns it.
  cache::BlockWatcher* watcher();
  PublisherStats stats() const;  // any thread
  // What was bound, also where the configuration has port 0.
  const std::string& endpoint() const;
  const std::string& replay_endpoint() const;  // empty: none

 private:
  class Impl;
  explicit EventPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rudder::fleet
