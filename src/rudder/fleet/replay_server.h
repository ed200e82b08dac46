// ReplayServer: sends a subscriber again what it has missed. A request is [peer][][first sequence,
// 8 bytes]; each batch from there on is answered as [peer][][topic][sequence][payload], and the end
// as the sequence 2^64 - 1 without topic and payload. A peer that reads slowly gets the rest later.
// The publisher's thread owns it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rudder/fleet/encode_events.h"
#include "rudder/fleet/replay_buffer.h"
#include "rudder/fleet/zmq_socket.h"

namespace rudder::fleet {

struct ReplayCounts {
  std::atomic<uint64_t> replays{0};  // answered to the end
  std::atomic<uint64_t> batches{0};
};

// As subscribers read it: 8 bytes, big-endian.
std::string sequence_bytes(uint64_t sequence);

class ReplayServer {
 public:
  static Result<ReplayServer> create(const ZmqContext& context, const std::string& endpoint,
                                     std::string topic);

  // What is not a request is passed over.
  void take_requests();
  // Sends what goes at once, a bounded number of batches. False when nobody waits for more.
  bool serve(const ReplayBuffer& buffer, const CacheShape& shape, ReplayCounts& counts);
  // The numbers begin again: what waits for more of before is told that this was the end.
  void begin_again();

  void* handle() const { return socket_.handle(); }
  std::string endpoint() const { return socket_.last_endpoint(); }

 private:
  struct Waiting {
    std::string peer;
    uint64_t next = 0;
    bool is_done = false;
  };

  ReplayServer(ZmqSocket socket, std::string topic)
      : socket_(std::move(socket)), topic_(std::move(topic)) {}
  void serve(Waiting& waiting, const ReplayBuffer& buffer, const CacheShape& shape,
             ReplayCounts& counts);

  ZmqSocket socket_;
  std::string topic_;
  std::vector<Waiting> waiting_;  // oldest first
};

}  // namespace rudder::fleet
