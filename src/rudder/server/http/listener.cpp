#include "rudder/server/http/listener.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <climits>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/server/http/http_session.h"

namespace rudder::server {

namespace asio = boost::asio;
using boost::system::error_code;
using Protocol = asio::generic::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<Protocol, SessionExecutor>;

struct Listener::Impl {
  Impl(ServerContext& server_context, std::vector<std::shared_ptr<IoThread>> io_threads)
      : context(server_context),
        threads(std::move(io_threads)),
        acceptor(threads[0]->context().get_executor()) {}

  Result<void> listen(const Protocol::endpoint& endpoint, bool is_tcp, std::string_view setting);
  asio::awaitable<void, SessionExecutor> accept_loop();
  std::string address_of(const SessionSocket& socket) const;
  void hand_over(std::shared_ptr<IoThread> thread, SessionSocket socket);

  ServerContext& context;
  const std::vector<std::shared_ptr<IoThread>> threads;
  Acceptor acceptor;
  std::string address;
  std::string unix_path;
  uint16_t port = 0;
  bool loopback = true;
};

Result<void> Listener::Impl::listen(const Protocol::endpoint& endpoint, bool is_tcp,
                                    std::string_view setting) {
  error_code ec;
  acceptor.open(endpoint.protocol(), ec);
  if (!ec && is_tcp) acceptor.set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) {
    return fail(ErrorCode::kIo, fmt::format("cannot listen on {}: {}", address, ec.message()),
                std::string(setting));
  }
  return {};
}

// What counts as one client: an IPv4 address, the network of an IPv6 address (its first 64 bits,
// which is what one gets to choose addresses in); empty on a Unix socket.
std::string Listener::Impl::address_of(const SessionSocket& socket) const {
  error_code ec;
  const Protocol::endpoint remote = socket.remote_endpoint(ec);
  asio::ip::tcp::endpoint endpoint;
  if (ec || port == 0 || remote.size() > endpoint.capacity()) return {};
  std::memcpy(endpoint.data(), remote.data(), remote.size());
  endpoint.resize(remote.size());
  const asio::ip::address ip = endpoint.address();
  if (ip.is_v4()) return ip.to_string();
  const asio::ip::address_v6 v6 = ip.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string();
  const asio::ip::address_v6::bytes_type bytes = v6.to_bytes();
  return {bytes.begin(), bytes.begin() + 8};
}

void Listener::Impl::hand_over(std::shared_ptr<IoThread> thread, SessionSocket socket) {
  context.counters.connections_accepted.fetch_add(1, std::memory_order_relaxed);
  error_code ec;
  auto entry = context.connections->admit(address_of(socket));
  if (entry == nullptr || entry->is_refused()) {
    context.counters.connections_refused.fetch_add(1, std::memory_order_relaxed);
  }
  if (entry == nullptr) return;
  if (port != 0) socket.set_option(asio::ip::tcp::no_delay(true), ec);
  if (const int64_t bytes = context.settings.socket_send_buffer; bytes > 0) {
    // Left alone it grows with what a slow reader leaves unread, and nobody counts it.
    const auto size = static_cast<int>(std::min<int64_t>(bytes, INT_MAX));
    socket.set_option(asio::socket_base::send_buffer_size(size), ec);
  }
  // std::function wants copies: what cannot be copied travels in a shared pointer.
  auto carried = std::make_shared<std::pair<SessionSocket, decltype(entry)>>(std::move(socket),
                                                                             std::move(entry));
  IoThread& target = *thread;
  target.post([this, thread = std::move(thread), carried] {
    start_http_session(context, thread, std::move(carried->first), std::move(carried->second));
  });
}

asio::awaitable<void, SessionExecutor> Listener::Impl::accept_loop() {
  constexpr asio::as_tuple_t<asio::use_awaitable_t<SessionExecutor>> await;
  size_t next = 0;
  while (acceptor.is_open()) {
    const std::shared_ptr<IoThread>& thread = threads[next++ % threads.size()];
    SessionSocket socket(thread->context().get_executor());
    const auto [ec] = co_await acceptor.async_accept(socket, await);
    if (ec == asio::error::operation_aborted || !acceptor.is_open()) break;
    if (!ec) {
      error_code mode_ec;
      socket.non_blocking(true, mode_ec);
      if (mode_ec) continue;
      const Result<void> taken = contain([&] { hand_over(thread, std::move(socket)); });
      if (!taken) log_warn("a connection is dropped: {}", taken.error().to_string());
      continue;
    }
    // Out of descriptors or memory: wait for some to come back.
    log_warn("cannot accept a connection: {}", ec.message());
    asio::steady_timer pause(threads[0]->context(), std::chrono::milliseconds(100));
    co_await pause.async_wait(await);
  }
}

Result<std::unique_ptr<Listener>> Listener::open(ServerContext& context,
                                                 std::vector<std::shared_ptr<IoThread>> threads) {
  const ServerSettings& settings = context.settings;
  auto impl = std::make_unique<Impl>(context, std::move(threads));
  error_code ec;
  if (!settings.uds.empty()) {
    using Local = asio::local::stream_protocol;
    constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
    if (settings.uds.size() > kMaxPath) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the socket's path has more than {} bytes", kMaxPath), "uds");
    }
    // A socket that a dead server left behind is in the way; anything else there is not ours.
    struct stat info {};
    if (::lstat(settings.uds.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) {
      Local::socket probe(impl->threads[0]->context());
      probe.connect(Local::endpoint(settings.uds), ec);
      if (!ec) {
        return fail(ErrorCode::kIo,
                    fmt::format("cannot listen on unix:{}: another process does", settings.uds),
                    "uds");
      }
      ::unlink(settings.uds.c_str());
    }
    impl->address = "unix:" + settings.uds;
    RUDDER_TRY_VOID(impl->listen(Local::endpoint(settings.uds), false, "uds"));
    impl->unix_path = settings.uds;
  } else {
    using asio::ip::tcp;
    tcp::resolver resolver(impl->threads[0]->context());
    const auto found =
        resolver.resolve(settings.host, std::to_string(settings.port), tcp::resolver::passive, ec);
    if (ec || found.empty()) {
      return fail(ErrorCode::kIo,
                  fmt::format("cannot resolve '{}': {}", settings.host, ec.message()), "host");
    }
    const tcp::endpoint endpoint = *found.begin();
    const std::string_view scheme = context.certificate != nullptr ? "https" : "http";
    const bool v6 = endpoint.address().is_v6();
    const std::string shown = endpoint.address().to_string();
    impl->address =
        fmt::format("{}://{}{}{}:{}", scheme, v6 ? "[" : "", shown, v6 ? "]" : "", settings.port);
    RUDDER_TRY_VOID(impl->listen(endpoint, true, "port"));
    const Protocol::endpoint bound = impl->acceptor.local_endpoint(ec);
    tcp::endpoint bound_tcp = endpoint;
    if (!ec) {
      std::memcpy(bound_tcp.data(), bound.data(), std::min(bound.size(), bound_tcp.capacity()));
    }
    impl->port = bound_tcp.port();
    impl->address =
        fmt::format("{}://{}{}{}:{}", scheme, v6 ? "[" : "", shown, v6 ? "]" : "", impl->port);
    impl->loopback = endpoint.address().is_loopback();
  }
  return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

Listener::Listener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Listener::~Listener() {
  close();
}

uint16_t Listener::port() const {
  return impl_->port;
}

std::string Listener::address() const {
  return impl_->address;
}

bool Listener::is_loopback() const {
  return impl_->loopback;
}

void Listener::start() {
  asio::co_spawn(
      impl_->acceptor.get_executor(), [impl = impl_.get()] { return impl->accept_loop(); },
      asio::detached);
}

void Listener::close() {
  error_code ignored;
  impl_->acceptor.close(ignored);
  if (!impl_->unix_path.empty()) ::unlink(std::exchange(impl_->unix_path, {}).c_str());
}

}  // namespace rudder::server
