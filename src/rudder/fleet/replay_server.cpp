#include "rudder/fleet/replay_server.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace rudder::fleet {
namespace {

constexpr size_t kMaxWaiting = 64;   // past it the oldest is given up
constexpr int kReplayedAtOnce = 64;  // to one peer
constexpr int kUnreadBatches = 1000;
constexpr uint64_t kEnd = UINT64_MAX;

std::optional<uint64_t> read_sequence(const std::string& bytes) {
  if (bytes.size() != sizeof(uint64_t)) return std::nullopt;
  uint64_t sequence = 0;
  for (const char ch : bytes) sequence = sequence << 8 | static_cast<uint8_t>(ch);
  return sequence;
}

}  // namespace

std::string sequence_bytes(uint64_t sequence) {
  std::string bytes(sizeof(sequence), '\0');
  for (size_t i = bytes.size(); i-- > 0; sequence >>= 8) {
    bytes[i] = static_cast<char>(sequence & 0xFF);
  }
  return bytes;
}

Result<ReplayServer> ReplayServer::create(const ZmqContext& context, const std::string& endpoint,
                                          std::string topic) {
  RUDDER_TRY(ZmqSocket socket, context.socket(ZMQ_ROUTER));
  RUDDER_TRY_VOID(socket.set(ZMQ_ROUTER_MANDATORY, 1));  // says that a peer is gone, or full
  RUDDER_TRY_VOID(socket.set(ZMQ_SNDHWM, kUnreadBatches));
  RUDDER_TRY_VOID(socket.open(endpoint, true));
  return ReplayServer(std::move(socket), std::move(topic));
}

void ReplayServer::take_requests() {
  while (const auto frames = socket_.receive()) {
    if (frames->size() != 3 || !(*frames)[1].empty()) continue;
    const std::optional<uint64_t> first = read_sequence((*frames)[2]);
    if (!first) continue;
    if (waiting_.size() == kMaxWaiting) waiting_.erase(waiting_.begin());
    waiting_.push_back({.peer = (*frames)[0], .next = *first});
  }
}

void ReplayServer::begin_again() {
  for (Waiting& waiting : waiting_) waiting.next = kEnd;
}

bool ReplayServer::serve(const ReplayBuffer& buffer, const CacheShape& shape,
                         ReplayCounts& counts) {
  for (Waiting& waiting : waiting_) serve(waiting, buffer, shape, counts);
  std::erase_if(waiting_, [](const Waiting& waiting) { return waiting.is_done; });
  return !waiting_.empty();
}

void ReplayServer::serve(Waiting& waiting, const ReplayBuffer& buffer, const CacheShape& shape,
                         ReplayCounts& counts) {
  for (int i = 0; i < kReplayedAtOnce; ++i) {
    const ReplayBuffer::Entry* entry = buffer.at_or_after(waiting.next);
    const std::string sequence = sequence_bytes(entry == nullptr ? kEnd : entry->sequence);
    const Sent sent =
        entry == nullptr
            ? socket_.send({waiting.peer, "", "", sequence, ""})
            : socket_.send({waiting.peer, "", topic_, sequence, encode_batch(entry->batch, shape)});
    if (sent == Sent::kFull) return;
    waiting.is_done = sent == Sent::kGone || entry == nullptr;
    if (sent == Sent::kDone) ++(entry == nullptr ? counts.replays : counts.batches);
    if (waiting.is_done) return;
    waiting.next = entry->sequence + 1;
  }
}

}  // namespace rudder::fleet
