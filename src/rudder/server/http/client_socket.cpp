#include "rudder/server/http/client_socket.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <span>
#include <utility>

namespace rudder::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Where reads land: a connection that only waits owns no buffer.
std::span<char> read_scratch() {
  thread_local std::array<char, size_t{64} << 10> scratch;
  return scratch;
}

}  // namespace

ClientSocket::ClientSocket(SessionSocket socket, std::shared_ptr<ssl_ctx_st> certificate,
                           Deadline& deadline, double write_timeout)
    : socket_(std::move(socket)), deadline_(deadline), write_timeout_(write_timeout) {
  if (certificate != nullptr) tls_.emplace(std::move(certificate));
}

error_code ClientSocket::read(std::string& input) {
  const std::span<char> scratch = read_scratch();
  error_code ec;
  const size_t got = socket_.read_some(asio::buffer(scratch.data(), scratch.size()), ec);
  if (ec) return ec;
  const std::string_view bytes(scratch.data(), got);
  if (!tls_) {
    input += bytes;
  } else if (!tls_->receive(bytes, input)) {
    return asio::error::eof;
  }
  return {};
}

SessionTask<bool> ClientSocket::write(std::array<std::string_view, 3> pieces) {
  if (!tls_) co_return co_await write_plain(pieces);
  for (const std::string_view piece : pieces) {
    if (!co_await write_encrypted(piece)) co_return false;
  }
  co_return true;
}

// Behind what the channel itself has to say.
SessionTask<bool> ClientSocket::write_encrypted(std::string_view plain) {
  std::string encrypted;
  do {
    const std::string_view part = plain.substr(0, kMinWritten);
    plain.remove_prefix(part.size());
    if (!tls_->send(part)) co_return false;
    encrypted.clear();
    encrypted.swap(tls_->outgoing());
    if (!co_await write_plain({encrypted, {}, {}})) co_return false;
  } while (!plain.empty());
  co_return true;
}

SessionTask<bool> ClientSocket::write_plain(std::array<std::string_view, 3> pieces) {
  size_t left = pieces[0].size() + pieces[1].size() + pieces[2].size();
  size_t left_at_deadline = left;
  while (left > 0) {
    if (left <= left_at_deadline) {
      deadline_.set(write_timeout_);
      left_at_deadline = left - std::min(left, kMinWritten);
    }
    std::array<asio::const_buffer, 3> buffers;
    for (size_t i = 0; i < pieces.size(); ++i) {
      buffers[i] = asio::buffer(pieces[i].data(), pieces[i].size());
    }
    auto [ec, taken] = co_await socket_.async_write_some(buffers, kAwait);
    if (ec || deadline_.has_expired()) break;
    left -= taken;
    for (std::string_view& piece : pieces) {
      const size_t of_piece = std::min(taken, piece.size());
      piece.remove_prefix(of_piece);
      taken -= of_piece;
    }
  }
  deadline_.clear();
  co_return left == 0;
}

bool ClientSocket::has_peer_left() {
  pollfd asked = {.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&asked, 1, 0) > 0;
}

SessionTask<bool> ClientSocket::shut_down() {
  if (tls_) {
    tls_->close();
    co_await write_encrypted({});
  }
  error_code ec;
  socket_.shutdown(SessionSocket::shutdown_send, ec);
  co_return !ec;
}

void ClientSocket::cancel() {
  error_code ignored;
  socket_.cancel(ignored);
}

void ClientSocket::close(bool drop_unsent) {
  error_code ignored;
  if (drop_unsent) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  socket_.close(ignored);
}

}  // namespace rudder::server
