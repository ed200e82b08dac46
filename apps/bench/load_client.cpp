#include "bench/load_client.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio.hpp>
#include <boost/beast.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <random>
#include <string_view>

#include "rudder/base/json.h"

namespace rudder::apps {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace json = boost::json;
using asio::ip::tcp;
using SteadyTime = std::chrono::steady_clock::time_point;

double seconds_since(SteadyTime start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Reads "data: {...}" lines as they come and notes when tokens arrived.
class StreamTimer {
 public:
  StreamTimer(RequestTiming* timing, SteadyTime start) : timing_(timing), start_(start) {}

  void feed(std::string_view bytes) {
    buffer_.append(bytes);
    size_t begin = 0;
    for (size_t end = buffer_.find('\n'); end != std::string::npos;
         end = buffer_.find('\n', begin)) {
      line(std::string_view(buffer_).substr(begin, end - begin));
      begin = end + 1;
    }
    buffer_.erase(0, begin);
  }

 private:
  void line(std::string_view text) {
    constexpr std::string_view kPrefix = "data: ";
    if (!text.starts_with(kPrefix)) return;
    text.remove_prefix(kPrefix.size());
    if (text.starts_with("[DONE]")) return;
    const Result<json::value> chunk = parse_json(text, "stream chunk");
    if (!chunk || !chunk->is_object()) {
      timing_->error = "a chunk is not a JSON object";
      return;
    }
    const json::object& object = chunk->get_object();
    if (const json::value* error = object.if_contains("error")) {
      timing_->error = to_json_text(*error);
      return;
    }
    if (const json::value* usage = object.if_contains("usage"); usage && usage->is_object()) {
      timing_->output_len = usage->at("completion_tokens").to_number<int32_t>();
      timing_->input_len = usage->at("prompt_tokens").to_number<int32_t>();
    }
    const json::value* choices = object.if_contains("choices");
    if (choices != nullptr && choices->is_array() && !choices->get_array().empty()) token_chunk();
  }

  void token_chunk() {
    const double now = seconds_since(start_);
    if (timing_->ttft == 0) {
      timing_->ttft = now;
    } else {
      timing_->itl.push_back(now - last_);
    }
    last_ = now;
  }

  RequestTiming* timing_;
  SteadyTime start_;
  std::string buffer_;
  double last_ = 0;
};

http::request<http::string_body> make_request(const LoadTarget& target, http::verb verb,
                                              std::string_view path) {
  http::request<http::string_body> request(verb, {path.data(), path.size()}, 11);
  request.set(http::field::host, target.host);
  request.set(http::field::content_type, "application/json");
  if (!target.api_key.empty()) {
    request.set(http::field::authorization, "Bearer " + target.api_key);
  }
  return request;
}

class LoadRun {
 public:
  LoadRun(const LoadTarget& target, const LoadShape& shape, const std::vector<std::string>& bodies,
          const ProgressFn& progress)
      : target_(target),
        shape_(shape),
        bodies_(bodies),
        progress_(progress),
        timings_(bodies.size()) {}

  std::vector<RequestTiming> run(double* duration) {
    boost::system::error_code ec;
    tcp::resolver resolver(io_);
    endpoints_ = resolver.resolve(target_.host, target_.port, ec);
    start_ = std::chrono::steady_clock::now();
    asio::co_spawn(io_, arrivals(), asio::detached);
    io_.run();
    *duration = seconds_since(start_);
    return std::move(timings_);
  }

 private:
  // Starts each request at its time, when there is a free place.
  asio::awaitable<void> arrivals() {
    std::mt19937_64 random(shape_.seed);
    std::gamma_distribution<double> gap(
        shape_.burstiness, 1.0 / (std::max(shape_.request_rate, 1e-9) * shape_.burstiness));
    asio::steady_timer timer(co_await asio::this_coro::executor);
    double due = 0;
    for (size_t i = 0; i < bodies_.size(); ++i) {
      if (shape_.request_rate > 0) {
        due += gap(random);
        timer.expires_at(start_ + std::chrono::duration_cast<SteadyTime::duration>(
                                      std::chrono::duration<double>(due)));
        co_await timer.async_wait(asio::use_awaitable);
      }
      while (shape_.max_concurrency > 0 && open_ >= shape_.max_concurrency) {
        boost::system::error_code ec;
        slot_free_.expires_at(SteadyTime::max());
        co_await slot_free_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      }
      ++open_;
      asio::co_spawn(io_, one(i), asio::detached);
    }
  }

  asio::awaitable<void> one(size_t index) {
    RequestTiming& timing = timings_[index];
    timing.start = seconds_since(start_);
    const SteadyTime begin = std::chrono::steady_clock::now();
    try {
      co_await exchange(index, begin);
    } catch (const std::exception& error) {
      timing.error = error.what();
    }
    timing.latency = seconds_since(begin);
    if (timing.error.empty() && timing.ttft == 0) timing.error = "no token arrived";
    --open_;
    slot_free_.cancel();
    progress_(++done_, static_cast<int64_t>(bodies_.size()));
  }

  asio::awaitable<void> exchange(size_t index, SteadyTime begin) {
    RequestTiming& timing = timings_[index];
    beast::tcp_stream stream(co_await asio::this_coro::executor);
    co_await stream.async_connect(endpoints_, asio::use_awaitable);
    stream.socket().set_option(tcp::no_delay(true));
    http::request<http::string_body> request =
        make_request(target_, http::verb::post, "/v1/completions");
    request.body() = bodies_[index];
    request.prepare_payload();
    co_await http::async_write(stream, request, asio::use_awaitable);

    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    co_await http::async_read_header(stream, buffer, parser, asio::use_awaitable);
    const bool accepted = parser.get().result() == http::status::ok;
    StreamTimer timer(&timing, begin);
    std::string refusal;
    std::array<char, 16384> chunk;
    while (!parser.is_done()) {
      parser.get().body().data = chunk.data();
      parser.get().body().size = chunk.size();
      boost::system::error_code ec;
      co_await http::async_read_some(stream, buffer, parser,
                                     asio::redirect_error(asio::use_awaitable, ec));
      if (ec && ec != http::error::need_buffer) throw boost::system::system_error(ec);
      const std::string_view bytes(chunk.data(), chunk.size() - parser.get().body().size);
      accepted ? timer.feed(bytes) : void(refusal.append(bytes));
    }
    if (!accepted) timing.error = fmt::format("HTTP {}: {}", parser.get().result_int(), refusal);
  }

  const LoadTarget& target_;
  const LoadShape& shape_;
  const std::vector<std::string>& bodies_;
  const ProgressFn& progress_;
  std::vector<RequestTiming> timings_;
  asio::io_context io_{1};
  asio::steady_timer slot_free_{io_};
  tcp::resolver::results_type endpoints_;
  SteadyTime start_;
  int32_t open_ = 0;
  int64_t done_ = 0;
};

}  // namespace

Result<void> parse_base_url(const std::string& url, LoadTarget* target) {
  constexpr std::string_view kScheme = "http://";
  std::string_view rest = url;
  if (!rest.starts_with(kScheme)) {
    return fail(ErrorCode::kInvalidArgument, "must begin with http://", "base-url");
  }
  rest.remove_prefix(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t colon = rest.rfind(':');
  if (rest.empty() || rest.find('/') != std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument, "must be http://host:port", "base-url");
  }
  target->host = std::string(rest.substr(0, colon));
  target->port = colon == std::string_view::npos ? "80" : std::string(rest.substr(colon + 1));
  return {};
}

Result<std::string> first_model(const LoadTarget& target) {
  try {
    asio::io_context io;
    beast::tcp_stream stream(io);
    stream.connect(tcp::resolver(io).resolve(target.host, target.port));
    http::write(stream, make_request(target, http::verb::get, "/v1/models"));
    beast::flat_buffer buffer;
    http::response<http::string_body> response;
    http::read(stream, buffer, response);
    RUDDER_TRY(const json::value models, parse_json(response.body(), "/v1/models"));
    return std::string(models.at("data").at(0).at("id").as_string());
  } catch (const std::exception& error) {
    return fail(ErrorCode::kUnavailable, error.what(),
                fmt::format("http://{}:{}/v1/models", target.host, target.port));
  }
}

std::string completion_body(const LoadTarget& target, const WorkItem& item,
                            const std::string& prompt_text) {
  json::object body;
  body["model"] = target.model;
  body["prompt"] =
      target.text_prompts ? json::value(prompt_text) : json::value(json::value_from(item.prompt));
  body["max_tokens"] = item.output_len;
  body["temperature"] = target.temperature;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (target.ignore_eos) body["ignore_eos"] = true;
  return to_json_text(body);
}

std::vector<RequestTiming> run_load(const LoadTarget& target, const LoadShape& shape,
                                    const std::vector<std::string>& bodies,
                                    const ProgressFn& progress, double* duration) {
  return LoadRun(target, shape, bodies, progress).run(duration);
}

}  // namespace rudder::apps
