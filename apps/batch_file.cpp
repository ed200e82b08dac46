#include "batch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <boost/beast.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/server.h"
#include "rudder/server/steering/tap_names.h"
#include "served_model.h"

namespace rudder::apps {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace json = boost::json;
using asio::local::stream_protocol;

constexpr int kMostAtOnce = 256;  // the queue holds more
constexpr unsigned kUnavailable = 503;

std::string_view text_at(const json::object& row, std::string_view name) {
  const json::value* value = row.if_contains(name);
  return value != nullptr && value->is_string() ? std::string_view(value->get_string())
                                                : std::string_view();
}

// What is wrong with a line; empty: nothing.
std::string fault_of(const PromptLine& line, std::set<std::string>* ids) {
  if (line.fault) return fmt::format("{} {}", line.where, line.fault->message);
  if (line.is_plain) return fmt::format("{} is no JSON object", line.where);
  const json::object& row = line.row;
  const std::string_view id = text_at(row, "custom_id");
  if (id.empty()) return "custom_id: a text is required";
  if (!ids->insert(std::string(id)).second) return "custom_id: another line has the same";
  if (text_at(row, "method") != "POST") return "method: only POST";
  if (!text_at(row, "url").starts_with('/')) return "url: a path, as /v1/chat/completions";
  const json::value* body = row.if_contains("body");
  if (body == nullptr || !body->is_object()) return "body: an object is required";
  for (const auto& [name, value] : row) {
    if (server::says_taps(name)) return fmt::format("{}: a field of body", std::string_view(name));
  }
  for (const char* field : {"stream", "background"}) {
    const json::value* asked = body->get_object().if_contains(field);
    if (asked != nullptr && asked->is_bool() && asked->get_bool()) {
      return fmt::format("body.{}: not in a batch, whose answers are whole", field);
    }
  }
  return {};
}

json::object answer_of(size_t number, const json::object& row) {
  const json::value* id = row.if_contains("custom_id");
  return {{"id", fmt::format("batch_req_{:08x}", number)},
          {"custom_id", id == nullptr ? json::value() : *id},
          {"response", nullptr},
          {"error", nullptr}};
}

// A server's socket in a folder of its own, which goes with it.
class SocketFolder {
 public:
  static Result<SocketFolder> make() {
    std::string path = (std::filesystem::temp_directory_path() / "rudder-batch-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) return fail(ErrorCode::kIo, "cannot be made", path);
    return SocketFolder(std::move(path));
  }
  SocketFolder(SocketFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  SocketFolder& operator=(SocketFolder&&) = delete;
  ~SocketFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  std::string socket() const { return path_ + "/socket"; }

 private:
  explicit SocketFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

// Sends the bodies, many at once, each on a connection of its own.
class BatchRun {
 public:
  BatchRun(std::string socket, const json::object& fields, const ProgressFn& progress,
           std::vector<PromptLine>* lines)
      : socket_(std::move(socket)), fields_(fields), progress_(progress), lines_(*lines) {}

  void run() {
    for (int i = 0; i < kMostAtOnce; ++i) asio::co_spawn(io_, work(), asio::detached);
    io_.run();
  }

 private:
  asio::awaitable<void> work() {
    for (size_t i = next_++; i < lines_.size(); i = next_++) {
      json::object& row = lines_[i].row;
      json::object answer = answer_of(i, row);
      const std::string fault = fault_of(lines_[i], &ids_);
      std::string failure;
      if (fault.empty()) {
        try {
          json::object response = co_await ask(row);
          answer["response"] = std::move(response);
        } catch (const std::exception& error) {
          failure = error.what();
        }
      }
      if (!fault.empty()) answer["error"] = {{"code", "invalid_request"}, {"message", fault}};
      if (!failure.empty()) answer["error"] = {{"code", "server_error"}, {"message", failure}};
      row = std::move(answer);
      progress_(++done_, static_cast<int64_t>(lines_.size()));
    }
  }

  // Where the server is busy with others of the batch, again and again.
  asio::awaitable<json::object> ask(const json::object& row) {
    const std::string url(text_at(row, "url"));
    json::object body = row.at("body").as_object();
    constexpr std::string_view kVersion = "/v1";
    std::string_view path = url;
    if (path.starts_with(kVersion)) path.remove_prefix(kVersion.size());
    if (path == "/completions" || path == "/chat/completions") {
      for (const auto& [name, value] : fields_) body.insert(json::object::value_type(name, value));
    }
    asio::steady_timer pause(io_);
    while (true) {
      const http::response<http::string_body> got = co_await exchange(url, to_json_text(body));
      if (got.result_int() == kUnavailable && got.find(http::field::retry_after) != got.end()) {
        pause.expires_after(std::chrono::milliseconds(200));
        co_await pause.async_wait(asio::use_awaitable);
        continue;
      }
      const Result<json::value> read = parse_json(got.body(), "answer");
      co_return json::object{{"status_code", got.result_int()},
                             {"request_id", std::string(got["x-request-id"])},
                             {"body", read ? *read : json::value(got.body())}};
    }
  }

  asio::awaitable<http::response<http::string_body>> exchange(std::string url, std::string body) {
    beast::basic_stream<stream_protocol> stream(co_await asio::this_coro::executor);
    co_await stream.async_connect(stream_protocol::endpoint(socket_), asio::use_awaitable);
    http::request<http::string_body> request(http::verb::post, url, 11);
    request.set(http::field::host, "localhost");
    request.set(http::field::content_type, "application/json");
    request.set(http::field::connection, "close");
    request.body() = std::move(body);
    request.prepare_payload();
    co_await http::async_write(stream, request, asio::use_awaitable);
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    co_await http::async_read(stream, buffer, parser, asio::use_awaitable);
    co_return parser.release();
  }

  const std::string socket_;
  const json::object& fields_;
  const ProgressFn& progress_;
  std::vector<PromptLine>& lines_;
  asio::io_context io_{1};
  std::set<std::string> ids_;
  size_t next_ = 0;
  int64_t done_ = 0;
};

}  // namespace

bool is_batch(const std::vector<PromptLine>& lines) {
  return std::ranges::any_of(lines, [](const PromptLine& line) {
    return line.row.contains("body") && (line.row.contains("custom_id") ||
                                         line.row.contains("method") || line.row.contains("url"));
  });
}

Result<void> answer_batch(const ModelSession& session, const json::object& fields,
                          const ProgressFn& progress, std::vector<PromptLine>* lines) {
  RUDDER_TRY(const SocketFolder folder, SocketFolder::make());
  server::ServerSettings settings;
  settings.uds = folder.socket();
  settings.disable_log_stats = true;
  settings.disable_access_log = true;
  settings.max_connections_per_address = settings.max_connections;
  RUDDER_TRY(
      const std::unique_ptr<server::Server> server,
      server::Server::start({.engine = session.engine.get(),
                             .model = served_model(session),
                             .steering = session.steering ? &session.steering->library() : nullptr},
                            settings));
  BatchRun(folder.socket(), fields, progress, lines).run();
  return {};
}

}  // namespace rudder::apps
