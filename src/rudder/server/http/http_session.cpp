#include "rudder/server/http/http_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
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
using Task = SessionTask<T>;

constexpr size_t kMaxPipelinedBytes = size_t{64} << 10;  // read ahead while an answer is made
constexpr double kLingerSeconds = 2;
constexpr size_t kMaxLingerBytes = size_t{64} << 20;

class HttpSession final : public Endable,
                          public Evictable,
                          public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(ServerContext& context, std::shared_ptr<IoThread> io, SessionSocket socket,
              std::unique_ptr<ConnectionTable::Entry> entry)
      : context_(context),
        io_(std::move(io)),
        entry_(std::move(entry)),
        deadline_(context.clock),
        client_(std::move(socket), context.certificate ? context.certificate->current() : nullptr,
                deadline_, context.settings.write_timeout),
        signal_(client_.socket().get_executor()),
        parser_(
            HttpLimits{.max_body_bytes = static_cast<size_t>(context.settings.max_request_body)}) {
    signal_.expires_at(Timer::time_point::max());
    context_.counters.connections_open.fetch_add(1, std::memory_order_relaxed);
  }
  ~HttpSession() override {
    context_.counters.connections_open.fetch_sub(1, std::memory_order_relaxed);
  }

  Task<void> run();

  int64_t due_us() const override { return is_read_ahead_full() ? 0 : deadline_.due_us(); }
  void on_due(int64_t now_us) override {
    // What stands behind bytes that nobody reads has to be asked for.
    const bool has_left = is_read_ahead_full() && client_.has_peer_left();
    peer_gone_ = peer_gone_ || has_left;
    if (deadline_.is_over(now_us)) deadline_.expire();
    if (has_left || deadline_.has_expired()) interrupt();
  }
  void end_now() override {
    ended_ = true;
    if (!exchange_) interrupt();  // idle, or in the middle of a request: nobody is owed an answer
    signal_.cancel();
  }
  void ask_to_close() override {
    io_->post([weak = weak_from_this()] {
      const std::shared_ptr<HttpSession> self = weak.lock();
      if (self == nullptr || !self->is_idle_) return;
      self->ended_ = true;
      self->interrupt();
    });
  }

 private:
  enum class Ended { kKeepAlive, kClose, kAbort };
  enum class HeaderVerdict { kReadOn, kInviteBody, kRefuse };

  void interrupt() {
    client_.cancel();
    signal_.cancel();
  }

  bool is_read_ahead_full() const { return answering_ && input_.size() >= kMaxPipelinedBytes; }
  void set_idle(bool is_idle);

  Task<bool> receive();
  Task<bool> shake_hands();
  Task<bool> read_request();
  Task<Ended> serve_requests();
  HeaderVerdict on_header();
  bool charge_body();
  Task<Ended> answer();
  Task<bool> refuse(HttpResponse response);
  void append_head(bool keep_alive);
  bool has_bytes_to_write() const {
    return !output_.empty() || !body_.empty() || !tail_.empty() || client_.has_own_bytes();
  }
  Task<bool> write_all();
  void watch();
  Task<void> stop_watching();
  Task<void> linger();

  ServerContext& context_;
  const std::shared_ptr<IoThread> io_;
  const std::unique_ptr<ConnectionTable::Entry> entry_;
  Deadline deadline_;
  ClientSocket client_;
  Timer signal_;  // never expires: cancelled to wake the coroutine
  HttpParser parser_;
  std::string input_;  // received and not yet parsed
  // Not yet written, in this order: heads and framing, a body or a chunk of one, and what ends it.
  std::string output_;
  std::string body_;
  SharedText shared_body_;  // instead of body_
  std::string_view tail_;
  std::shared_ptr<Exchange> exchange_;
  std::optional<HttpResponse> early_answer_;  // decided from the header alone
  asio::cancellation_signal watch_cancel_;
  bool watching_ = false;
  bool answering_ = false;
  bool is_idle_ = false;  // waits for a request
  bool peer_gone_ = false;
  bool ended_ = false;
};

Task<void> HttpSession::run() {
  const std::shared_ptr<HttpSession> self = shared_from_this();
  io_->add_session(self);
  Ended how = Ended::kClose;
  try {
    if (co_await shake_hands()) how = co_await serve_requests();
    if (how == Ended::kClose && !ended_) co_await linger();
  } catch (const std::exception& exception) {
    log_error("connection dropped: {}", exception.what());
    if (exchange_) exchange_->abandon();
    how = Ended::kAbort;
  }
  set_idle(false);
  client_.close(how == Ended::kAbort);  // with what a slow reader has not taken
  io_->remove_session(this);
}

Task<HttpSession::Ended> HttpSession::serve_requests() {
  if (entry_->is_refused()) {
    co_await refuse(error_response(http_error(503, "too many connections")));
    co_return Ended::kClose;
  }
  while (co_await read_request()) {
    const Ended how = co_await answer();
    context_.counters.count_duration(exchange_->route,
                                     context_.clock.now_us() - exchange_->received_us);
    exchange_.reset();
    early_answer_.reset();
    if (how != Ended::kKeepAlive) co_return how;
  }
  co_return Ended::kClose;
}

void HttpSession::set_idle(bool is_idle) {
  if (std::exchange(is_idle_, is_idle) == is_idle) return;
  if (is_idle) {
    entry_->set_idle(this);
  } else {
    entry_->set_busy();
  }
}

// Something has come of the client, mostly more bytes of input_. False: it has gone, the deadline
// has passed or the server ends.
Task<bool> HttpSession::receive() {
  while (!deadline_.has_expired() && !ended_) {
    const error_code ec = client_.read(input_);
    if (client_.has_own_bytes() && !co_await client_.write({})) break;
    if (!ec) co_return true;
    if (ec != asio::error::would_block && ec != asio::error::try_again) break;
    const auto [wait_ec] = co_await client_.socket().async_wait(SessionSocket::wait_read, kAwait);
    if (wait_ec) break;
  }
  co_return false;
}

// False: what arrives is not TLS, or comes too slowly.
Task<bool> HttpSession::shake_hands() {
  const double seconds = entry_->is_refused() ? kLingerSeconds : context_.settings.header_timeout;
  const int64_t start_us = context_.clock.now_us();
  while (!client_.is_ready()) {
    deadline_.set(seconds - static_cast<double>(context_.clock.now_us() - start_us) * 1e-6);
    if (!co_await receive()) co_return false;
  }
  co_return true;
}

// Leaves a whole request in parser_. False: there is none and the connection is done with.
Task<bool> HttpSession::read_request() {
  parser_.reset();
  bool header_seen = false;
  bool begun = !input_.empty();
  set_idle(!begun);
  deadline_.set(begun ? context_.settings.header_timeout : context_.settings.timeout_keep_alive);
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
        deadline_.set(context_.settings.body_timeout);
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
      if (deadline_.has_expired() && begun) {
        co_await refuse(error_response(http_error(408, "the request did not arrive in time")));
      }
      co_return false;
    }
    if (begun || input_.empty()) continue;
    deadline_.set(context_.settings.header_timeout);
    begun = true;
    set_idle(false);
  }
  deadline_.clear();
  exchange_->body.text = std::move(parser_.request().body);
  co_return true;
}

// The header is complete: decides whether the body is wanted.
HttpSession::HeaderVerdict HttpSession::on_header() {
  exchange_ =
      std::make_shared<Exchange>(std::move(parser_.request()), io_, context_.output_limits());
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
  return exchange_->body.charge->set(held, context_.settings.max_buffered_bodies);
}

// Answers a request that was not read to its end: the connection cannot be used after it.
Task<bool> HttpSession::refuse(HttpResponse response) {
  deadline_.forgive();
  if (!exchange_) {
    exchange_ =
        std::make_shared<Exchange>(std::move(parser_.request()), io_, context_.output_limits());
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
  if (framing == BodyFraming::kLength && request.method != "HEAD") {
    body_ = std::move(head.body);
    shared_body_ = std::move(head.shared_body);
  }
  context_.counters.count_response(exchange_->route, head.status);
}

Task<HttpSession::Ended> HttpSession::answer() {
  Exchange& exchange = *exchange_;
  answering_ = true;
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
      keep_alive = keep_alive && !exchange.head().close && !ended_ && !context_.ending.draining &&
                   (chunked || !exchange.streaming());
      append_head(keep_alive);
      head_sent = true;
    }
    if (head_sent && exchange.streaming() && !exchange.output().empty()) {
      exchange.take_output(body_);
      if (chunked) append_chunk_head(output_, body_.size());
      tail_ = chunked ? kChunkEnd : "";
    }
    if (head_sent && exchange.complete() && !tail_sent) {
      tail_sent = true;
      if (exchange.streaming() && chunked) tail_ = body_.empty() ? kLastChunk : kEndAndLastChunk;
    }
    if (has_bytes_to_write()) {
      if (!co_await write_all()) break;
      exchange.output_written();
      continue;
    }
    if (tail_sent) {
      co_await stop_watching();
      co_return keep_alive && !ended_ ? Ended::kKeepAlive : Ended::kClose;
    }
    watch();
    co_await signal_.async_wait(kAwait);
  }
  if (exchange.too_slow() ||
      deadline_.has_expired()) {  // mostly found out in the middle of a write
    context_.counters.slow_readers.fetch_add(1, std::memory_order_relaxed);
  } else if (!ended_) {
    context_.counters.client_disconnects.fetch_add(1, std::memory_order_relaxed);
  }
  exchange.abandon();
  co_await stop_watching();
  co_return Ended::kAbort;
}

// Writes what there is and empties it. False: the client has gone or takes too little.
Task<bool> HttpSession::write_all() {
  // In the argument itself, GCC 12 reads *shared_body_ also where it is null.
  const std::string_view body = shared_body_ ? std::string_view(*shared_body_) : body_;
  const bool ok = co_await client_.write({output_, body, tail_});
  shared_body_ = nullptr;
  tail_ = {};
  for (std::string* buffer : {&output_, &body_}) {
    buffer->clear();
    if (buffer->capacity() > ClientSocket::kMinWritten) buffer->shrink_to_fit();
  }
  co_return ok;
}

// While an answer is made: notices the end of the connection, and keeps what is pipelined. A client
// that shuts down its sending side counts as gone, as it does for other servers.
void HttpSession::watch() {
  if (watching_ || peer_gone_ || is_read_ahead_full()) return;
  watching_ = true;
  client_.socket().async_wait(SessionSocket::wait_read,
                              asio::bind_cancellation_slot(
                                  watch_cancel_.slot(), [self = shared_from_this()](error_code ec) {
                                    self->watching_ = false;
                                    if (!ec) {
                                      ec = self->client_.read(self->input_);
                                      const bool is_quiet = !ec || ec == asio::error::would_block ||
                                                            ec == asio::error::try_again;
                                      if (!is_quiet) self->peer_gone_ = true;
                                    }
                                    self->signal_.cancel();
                                  }));
}

Task<void> HttpSession::stop_watching() {
  answering_ = false;
  exchange_->set_wake(nullptr);
  if (watching_) watch_cancel_.emit(asio::cancellation_type::all);
  while (watching_) co_await signal_.async_wait(kAwait);
}

// Closes our side and reads the other to its end, so that the last answer is not lost to a reset
// that unread bytes would cause.
Task<void> HttpSession::linger() {
  if (!co_await client_.shut_down()) co_return;
  deadline_.set(kLingerSeconds);
  size_t discarded = 0;
  do {
    discarded += input_.size();
    input_.clear();
  } while (discarded < kMaxLingerBytes && co_await receive());
}

}  // namespace

void start_http_session(ServerContext& context, std::shared_ptr<IoThread> io, SessionSocket socket,
                        std::unique_ptr<ConnectionTable::Entry> entry) {
  const auto executor = socket.get_executor();
  auto session =
      std::make_shared<HttpSession>(context, std::move(io), std::move(socket), std::move(entry));
  asio::co_spawn(
      executor, [session]() -> Task<void> { return session->run(); }, asio::detached);
}

}  // namespace rudder::server
