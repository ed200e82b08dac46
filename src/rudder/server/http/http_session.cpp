#include "rudder/server/http/http_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "rudder/base/log.h"
#include "rudder/server/anthropic/messages_error.h"
#include "rudder/server/http/admission.h"
#include "rudder/server/http/cors.h"
#include "rudder/server/http/exchange.h"
#include "rudder/server/http/http_parser.h"
#include "rudder/server/http/http_writer.h"
#include "rudder/server/http/request_id.h"

namespace rudder::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

using Timer =
    asio::basic_waitable_timer<std::chrono::steady_clock,
                               asio::wait_traits<std::chrono::steady_clock>, SessionExecutor>;
template <typename T>
using Task = asio::awaitable<T, SessionExecutor>;
constexpr asio::as_tuple_t<asio::use_awaitable_t<SessionExecutor>> kAwait;

constexpr size_t kMaxPipelinedBytes = size_t{64} << 10;  // read ahead while an answer is made
constexpr double kLingerSeconds = 2;
constexpr size_t kMaxLingerBytes = size_t{64} << 20;

// Where reads land: a connection that only waits owns no buffer.
std::span<char> read_scratch() {
  thread_local std::array<char, size_t{64} << 10> scratch;
  return scratch;
}

class HttpSession final : public Endable, public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(ServerContext& context, std::shared_ptr<IoThread> io, SessionSocket socket)
      : context_(context),
        io_(std::move(io)),
        socket_(std::move(socket)),
        signal_(socket_.get_executor()),
        parser_(
            HttpLimits{.max_body_bytes = static_cast<size_t>(context.settings.max_request_body)}) {
    signal_.expires_at(Timer::time_point::max());
    context_.counters.connections_open.fetch_add(1, std::memory_order_relaxed);
  }
  ~HttpSession() override {
    context_.counters.connections_open.fetch_sub(1, std::memory_order_relaxed);
  }

  Task<void> run();

  bool is_due(int64_t now_us) const override { return deadline_us_ != 0 && now_us >= deadline_us_; }
  void on_due(int64_t /*now_us*/) override {
    deadline_us_ = 0;
    expired_ = true;
    interrupt();
  }
  void end_now() override {
    ended_ = true;
    if (!exchange_) interrupt();  // idle, or in the middle of a request: nobody is owed an answer
    signal_.cancel();
  }

 private:
  enum class Ended { kKeepAlive, kClose, kAbort };
  enum class HeaderVerdict { kReadOn, kInviteBody, kRefuse };

  void set_deadline(double seconds) {
    deadline_us_ = context_.clock.now_us() + static_cast<int64_t>(seconds * 1e6);
  }
  void interrupt() {
    error_code ignored;
    socket_.cancel(ignored);
    signal_.cancel();
  }

  Task<bool> receive();
  Task<bool> read_request();
  HeaderVerdict on_header();
  bool charge_body();
  Task<Ended> answer();
  Task<bool> refuse(HttpResponse response);
  void append_head(bool keep_alive);
  Task<bool> write_all();
  void watch();
  Task<void> stop_watching();
  Task<void> linger();

  ServerContext& context_;
  const std::shared_ptr<IoThread> io_;
  SessionSocket socket_;
  Timer signal_;  // never expires: cancelled to wake the coroutine
  HttpParser parser_;
  std::string input_;   // received and not yet parsed
  std::string output_;  // framed and not yet written
  std::shared_ptr<Exchange> exchange_;
  std::optional<HttpResponse> early_answer_;  // decided from the header alone
  asio::cancellation_signal watch_cancel_;
  int64_t deadline_us_ = 0;
  bool watching_ = false;
  bool peer_gone_ = false;
  bool expired_ = false;
  bool ended_ = false;
};

Task<void> HttpSession::run() {
  const std::shared_ptr<HttpSession> self = shared_from_this();
  io_->add_session(self);
  Ended how = Ended::kClose;
  try {
    do {
      how = Ended::kClose;
      if (!co_await read_request()) break;
      how = co_await answer();
      exchange_.reset();
      early_answer_.reset();
    } while (how == Ended::kKeepAlive);
    if (how == Ended::kClose && !ended_) co_await linger();
  } catch (const std::exception& exception) {
    log_error("connection dropped: {}", exception.what());
    if (exchange_) exchange_->abandon();
    how = Ended::kAbort;
  }
  error_code ignored;
  if (how == Ended::kAbort) {
    // What a slow reader has not taken is not worth keeping in the kernel.
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  }
  socket_.close(ignored);
  io_->remove_session(this);
}

// More bytes into input_. False: the peer has gone, the deadline has passed or the server ends.
Task<bool> HttpSession::receive() {
  const std::span<char> scratch = read_scratch();
  while (!expired_ && !ended_) {
    error_code ec;
    const size_t got = socket_.read_some(asio::buffer(scratch.data(), scratch.size()), ec);
    if (!ec) {
      input_.append(scratch.data(), got);
      co_return true;
    }
    if (ec != asio::error::would_block && ec != asio::error::try_again) break;
    const auto [wait_ec] = co_await socket_.async_wait(SessionSocket::wait_read, kAwait);
    if (wait_ec) break;
  }
  co_return false;
}

// Leaves a whole request in parser_. False: there is none and the connection is done with.
Task<bool> HttpSession::read_request() {
  parser_.reset();
  bool header_seen = false;
  bool begun = !input_.empty();
  set_deadline(begun ? context_.settings.header_timeout : context_.settings.timeout_keep_alive);
  while (true) {
    size_t consumed = 0;
    while (parser_.stage() != HttpParser::Stage::kDone) {
      const auto used = parser_.feed(std::string_view(input_).substr(consumed));
      if (!used) {
        context_.counters.malformed_requests.fetch_add(1, std::memory_order_relaxed);
        co_return co_await refuse(error_response(used.error()));
      }
      consumed += *used;
      if (parser_.stage() != HttpParser::Stage::kHeader && !header_seen) {
        header_seen = true;
        input_.erase(0, std::exchange(consumed, 0));
        const HeaderVerdict verdict = on_header();
        if (verdict == HeaderVerdict::kRefuse) {
          co_return co_await refuse(std::move(*early_answer_));
        }
        if (verdict == HeaderVerdict::kInviteBody) {
          output_ = "HTTP/1.1 100 Continue\r\n\r\n";
          if (!co_await write_all()) co_return false;
        }
        set_deadline(context_.settings.body_timeout);
      } else if (*used == 0) {
        break;
      }
    }
    input_.erase(0, consumed);
    if (header_seen && !charge_body()) {
      co_return co_await refuse(
          error_response(http_error(503, "too many request bodies are held at once")));
    }
    if (parser_.stage() == HttpParser::Stage::kDone) break;
    if (!co_await receive()) {
      if (expired_ && begun) {
        co_await refuse(error_response(http_error(408, "the request did not arrive in time")));
      }
      co_return false;
    }
    if (!begun) set_deadline(context_.settings.header_timeout);
    begun = true;
  }
  deadline_us_ = 0;
  exchange_->body.text = std::move(parser_.request().body);
  co_return true;
}

// The header is complete: decides whether the body is wanted.
HttpSession::HeaderVerdict HttpSession::on_header() {
  exchange_ = std::make_shared<Exchange>(
      std::move(parser_.request()), io_,
      PendingLimits{.output = static_cast<size_t>(context_.settings.max_pending_output),
                    .captured = static_cast<size_t>(context_.settings.max_pending_captures)});
  exchange_->received_us = context_.clock.now_us();
  exchange_->request_id = make_request_id(exchange_->request.field("x-request-id"));
  early_answer_ = judge_header(context_, *exchange_);
  if (parser_.stage() == HttpParser::Stage::kDone) return HeaderVerdict::kReadOn;
  if (early_answer_) return HeaderVerdict::kRefuse;
  const bool waits = exchange_->request.expect_continue && input_.empty();
  return waits ? HeaderVerdict::kInviteBody : HeaderVerdict::kReadOn;
}

bool HttpSession::charge_body() {
  const auto held = static_cast<int64_t>(parser_.request().body.size());
  if (held == 0) return true;
  if (!exchange_->body.charge) {
    exchange_->body.charge = std::make_unique<ByteCharge>(context_.body_bytes);
  }
  return exchange_->body.charge->grow_to(held, context_.settings.max_buffered_bodies);
}

// Answers a request that was not read to its end: the connection cannot be used after it.
Task<bool> HttpSession::refuse(HttpResponse response) {
  expired_ = false;
  if (!exchange_) {
    exchange_ = std::make_shared<Exchange>(std::move(parser_.request()), io_, PendingLimits{});
    exchange_->request_id = make_request_id(exchange_->request.field("x-request-id"));
  }
  exchange_->respond(std::move(response));
  append_head(false);
  co_await write_all();
  exchange_.reset();
  co_return false;
}

// Appends the head of the exchange's answer, with the body where it is whole.
void HttpSession::append_head(bool keep_alive) {
  HttpResponse& head = exchange_->head();
  const HttpRequest& request = exchange_->request;
  if (head.error != nullptr && request.path.starts_with(kMessagesPath)) {
    head.body = messages_error_body(*head.error, exchange_->request_id);
  }
  head.fields.push_back({"x-request-id", exchange_->request_id});
  add_cors_fields(context_.settings.allowed_origins, request, head);
  BodyFraming framing = BodyFraming::kLength;
  if (head.status == 204) framing = BodyFraming::kNone;
  if (exchange_->streaming()) {
    framing = request.http_1_1 ? BodyFraming::kChunked : BodyFraming::kClose;
  }
  append_response_head(output_, head, framing, keep_alive);
  if (framing == BodyFraming::kLength && request.method != "HEAD") output_ += head.body;
  context_.counters.count_response(exchange_->route, head.status);
}

Task<HttpSession::Ended> HttpSession::answer() {
  Exchange& exchange = *exchange_;
  exchange.set_wake([this] {
    if (exchange_->too_slow()) interrupt();
    signal_.cancel();
  });
  if (early_answer_) {
    exchange.respond(std::move(*early_answer_));
  } else {
    exchange.route->handler(context_, exchange_);
  }
  const bool chunked = exchange.request.http_1_1;
  bool keep_alive = exchange.request.keep_alive;
  bool head_sent = false;
  bool tail_sent = false;
  while (true) {
    if (exchange.too_slow() || peer_gone_ || (ended_ && !exchange.complete())) break;
    if (exchange.head_ready() && !head_sent) {
      keep_alive = keep_alive && !exchange.head().close && !ended_ && !context_.draining &&
                   (chunked || !exchange.streaming());
      append_head(keep_alive);
      head_sent = true;
    }
    if (head_sent && exchange.streaming() && !exchange.output().empty()) {
      if (chunked) {
        append_chunk(output_, exchange.output());
      } else {
        output_ += exchange.output();
      }
      exchange.output_taken();
    }
    if (head_sent && exchange.complete() && !tail_sent) {
      tail_sent = true;
      if (exchange.streaming() && chunked) output_ += kLastChunk;
    }
    if (!output_.empty()) {
      if (!co_await write_all()) break;
      continue;
    }
    if (tail_sent) {
      co_await stop_watching();
      co_return keep_alive && !ended_ ? Ended::kKeepAlive : Ended::kClose;
    }
    watch();
    co_await signal_.async_wait(kAwait);
  }
  if (exchange.too_slow() || expired_) {  // mostly found out in the middle of a write
    context_.counters.slow_readers.fetch_add(1, std::memory_order_relaxed);
  } else if (!ended_) {
    context_.counters.client_disconnects.fetch_add(1, std::memory_order_relaxed);
  }
  exchange.abandon();
  co_await stop_watching();
  co_return Ended::kAbort;
}

// Writes output_ and empties it. False: the peer has gone or takes nothing for too long.
Task<bool> HttpSession::write_all() {
  size_t written = 0;
  bool ok = true;
  while (ok && written < output_.size()) {
    set_deadline(context_.settings.write_timeout);
    const auto [ec, n] = co_await socket_.async_write_some(
        asio::buffer(output_.data() + written, output_.size() - written), kAwait);
    written += n;
    ok = !ec && !expired_;
  }
  deadline_us_ = 0;
  output_.clear();
  co_return ok;
}

// While an answer is made: notices the end of the connection, and keeps what is pipelined. A client
// that shuts down its sending side counts as gone, as it does for other servers.
void HttpSession::watch() {
  if (watching_ || peer_gone_ || input_.size() >= kMaxPipelinedBytes) return;
  watching_ = true;
  socket_.async_wait(
      SessionSocket::wait_read,
      asio::bind_cancellation_slot(
          watch_cancel_.slot(), [self = shared_from_this()](error_code ec) {
            self->watching_ = false;
            if (!ec) {
              const std::span<char> scratch = read_scratch();
              const size_t got =
                  self->socket_.read_some(asio::buffer(scratch.data(), scratch.size()), ec);
              if (!ec) {
                self->input_.append(scratch.data(), got);
              } else if (ec != asio::error::would_block && ec != asio::error::try_again) {
                self->peer_gone_ = true;
              }
            }
            self->signal_.cancel();
          }));
}

Task<void> HttpSession::stop_watching() {
  exchange_->set_wake(nullptr);
  if (watching_) watch_cancel_.emit(asio::cancellation_type::all);
  while (watching_) co_await signal_.async_wait(kAwait);
}

// Closes our side and reads the other to its end, so that the last answer is not lost to a reset
// that unread bytes would cause.
Task<void> HttpSession::linger() {
  error_code ec;
  socket_.shutdown(SessionSocket::shutdown_send, ec);
  if (ec) co_return;
  set_deadline(kLingerSeconds);
  size_t discarded = 0;
  do {
    discarded += input_.size();
    input_.clear();
  } while (discarded < kMaxLingerBytes && co_await receive());
}

}  // namespace

void start_http_session(ServerContext& context, std::shared_ptr<IoThread> io,
                        SessionSocket socket) {
  const auto executor = socket.get_executor();
  auto session = std::make_shared<HttpSession>(context, std::move(io), std::move(socket));
  asio::co_spawn(
      executor, [session]() -> Task<void> { return session->run(); }, asio::detached);
}

}  // namespace rudder::server
