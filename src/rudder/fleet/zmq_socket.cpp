#include "rudder/fleet/zmq_socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace rudder::fleet {

ZmqSocket::ZmqSocket(ZmqSocket&& other) noexcept
    : api_(other.api_), handle_(std::exchange(other.handle_, nullptr)) {}

ZmqSocket::~ZmqSocket() {
  if (handle_ != nullptr) api_->close(handle_);
}

Error ZmqSocket::error(std::string_view what) const {
  return {ErrorCode::kIo, fmt::format("{}: {}", what, api_->error_text(api_->last_errno())), ""};
}

Result<void> ZmqSocket::set(int option, int value) {
  if (api_->set_option(handle_, option, &value, sizeof(value)) == 0) return {};
  return tl::unexpected(error(fmt::format("option {} of a ZeroMQ socket", option)));
}

Result<void> ZmqSocket::open(const std::string& endpoint, bool bind) {
  const auto function = bind ? api_->bind : api_->connect;
  if (function(handle_, endpoint.c_str()) == 0) return {};
  return tl::unexpected(
      error(fmt::format("cannot {} {}", bind ? "bind to" : "connect to", endpoint)));
}

std::string ZmqSocket::last_endpoint() const {
  std::array<char, 256> text = {};
  size_t size = text.size();
  if (api_->get_option(handle_, ZMQ_LAST_ENDPOINT, text.data(), &size) != 0) return {};
  return text.data();
}

Sent ZmqSocket::send(const std::vector<std::string_view>& frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    if (api_->send(handle_, frames[i].data(), frames[i].size(), ZMQ_DONTWAIT | more) >= 0) {
      continue;
    }
    return api_->last_errno() == EAGAIN ? Sent::kFull : Sent::kGone;
  }
  return Sent::kDone;
}

std::optional<std::vector<std::string>> ZmqSocket::receive() {
  std::vector<std::string> frames;
  std::array<char, kMaxReceived> bytes;
  for (;;) {
    const int size = api_->receive(handle_, bytes.data(), bytes.size(), ZMQ_DONTWAIT);
    if (size < 0) return std::nullopt;
    // Frames beyond the few that any peer has a reason to send are read and not kept.
    constexpr size_t kMaxFrames = 8;
    if (frames.size() < kMaxFrames) {
      frames.emplace_back(bytes.data(), std::min(static_cast<size_t>(size), bytes.size()));
    }
    int more = 0;
    size_t more_size = sizeof(more);
    api_->get_option(handle_, ZMQ_RCVMORE, &more, &more_size);
    if (more == 0) return frames;
  }
}

Result<ZmqSocket> ZmqContext::socket(int type) const {
  void* handle = handle_ == nullptr ? nullptr : api_->socket(handle_, type);
  if (handle == nullptr) {
    return fail(ErrorCode::kIo,
                fmt::format("ZeroMQ gives no socket: {}", api_->error_text(api_->last_errno())));
  }
  ZmqSocket socket(api_, handle);
  RUDDER_TRY_VOID(socket.set(ZMQ_LINGER, 0));
  RUDDER_TRY_VOID(socket.set(ZMQ_IPV6, 1));
  const auto max_received = static_cast<int64_t>(kMaxReceived);
  api_->set_option(handle, ZMQ_MAXMSGSIZE, &max_received, sizeof(max_received));
  constexpr int kHeartbeatMs = 10'000;  // a peer that is gone without a word is noticed
  RUDDER_TRY_VOID(socket.set(ZMQ_HEARTBEAT_IVL, kHeartbeatMs));
  RUDDER_TRY_VOID(socket.set(ZMQ_HEARTBEAT_TIMEOUT, 3 * kHeartbeatMs));
  return socket;
}

}  // namespace rudder::fleet
