// ZmqContext and ZmqSocket: libzmq's objects with an owner. Nothing here blocks: what cannot be
// sent or received at once says so. A socket belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/fleet/zmq_api.h"

namespace rudder::fleet {

// What peers may send in one frame; who sends more is disconnected.
inline constexpr size_t kMaxReceived = 1024;

enum class Sent { kDone, kFull, kGone };

class ZmqSocket {
 public:
  ZmqSocket(const ZmqApi* api, void* handle) : api_(api), handle_(handle) {}
  ZmqSocket(ZmqSocket&& other) noexcept;
  ZmqSocket& operator=(ZmqSocket&&) = delete;
  ~ZmqSocket();

  Result<void> set(int option, int value);
  // Binds or connects.
  Result<void> open(const std::string& endpoint, bool bind);
  // What an endpoint with a wildcard became.
  std::string last_endpoint() const;

  // All frames of one message, or none: kFull where there is no room, kGone where there is nobody.
  Sent send(const std::vector<std::string_view>& frames);
  // The frames of one message; none when none waits. A frame that is too long is cut off.
  std::optional<std::vector<std::string>> receive();

  void* handle() const { return handle_; }

 private:
  Error error(std::string_view what) const;

  const ZmqApi* api_;
  void* handle_;
};

class ZmqContext {
 public:
  explicit ZmqContext(const ZmqApi* api) : api_(api), handle_(api->context_new()) {}
  ZmqContext(const ZmqContext&) = delete;
  ~ZmqContext() { api_->context_term(handle_); }  // its sockets are closed before

  // `type`: ZMQ_XPUB, ZMQ_ROUTER. What is unsent when it closes is dropped.
  Result<ZmqSocket> socket(int type) const;
  const ZmqApi& api() const { return *api_; }

 private:
  const ZmqApi* api_;
  void* handle_;
};

}  // namespace rudder::fleet
