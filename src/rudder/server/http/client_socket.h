// ClientSocket: the bytes of one connection, encrypted where there is a certificate. Owned by the
// connection's session, on its I/O thread.
#pragma once

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rudder/base/clock.h"
#include "rudder/server/http/members.h"
#include "rudder/server/http/tls.h"

namespace rudder::server {

using SessionExecutor = boost::asio::io_context::executor_type;
using SessionSocket =
    boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, SessionExecutor>;
template <typename T>
using SessionTask = boost::asio::awaitable<T, SessionExecutor>;
inline constexpr boost::asio::as_tuple_t<boost::asio::use_awaitable_t<SessionExecutor>> kAwait;

// By when something must have happened. Looked at by the thread's sweep, so that it costs no timer.
class Deadline {
 public:
  explicit Deadline(const SteadyClock& clock) : clock_(clock) {}

  void set(double seconds) { at_us_ = clock_.now_us() + static_cast<int64_t>(seconds * 1e6); }
  void clear() { at_us_ = 0; }
  bool is_over(int64_t now_us) const { return at_us_ != 0 && now_us >= at_us_; }
  int64_t due_us() const { return at_us_ == 0 ? Endable::kNever : at_us_; }
  // What waits is interrupted by whoever calls this, and asks has_expired().
  void expire() {
    at_us_ = 0;
    expired_ = true;
  }
  bool has_expired() const { return expired_; }
  void forgive() { expired_ = false; }

 private:
  const SteadyClock& clock_;
  int64_t at_us_ = 0;  // 0: none
  bool expired_ = false;
};

class ClientSocket {
 public:
  // `certificate` null: without TLS. `write_timeout`: seconds that the client may take for each
  // kMinWritten bytes, or for what is left.
  ClientSocket(SessionSocket socket, std::shared_ptr<ssl_ctx_st> certificate, Deadline& deadline,
               double write_timeout);

  static constexpr size_t kMinWritten = size_t{64} << 10;

  // Appends what has arrived. Nothing waits: would_block where there is nothing. Success without
  // any byte is the channel's own affair.
  boost::system::error_code read(std::string& input);
  // Writes one piece behind the other. False: the client has gone or takes too little.
  SessionTask<bool> write(std::array<std::string_view, 3> pieces);
  // What reading made the channel say, which write() sends too.
  bool has_own_bytes() const { return tls_ && tls_->has_outgoing(); }
  // The channel can be written to.
  bool is_ready() const { return !tls_ || tls_->is_open(); }
  // The client has closed or reset the connection, also where bytes that nobody reads stand before.
  bool has_peer_left();
  // Says so, and ends our side. False: it has ended already.
  SessionTask<bool> shut_down();
  void cancel();
  void close(bool drop_unsent);

  SessionSocket& socket() { return socket_; }

 private:
  SessionTask<bool> write_encrypted(std::string_view plain);
  SessionTask<bool> write_plain(std::array<std::string_view, 3> pieces);

  SessionSocket socket_;
  std::optional<TlsChannel> tls_;
  Deadline& deadline_;
  const double write_timeout_;
};

}  // namespace rudder::server
