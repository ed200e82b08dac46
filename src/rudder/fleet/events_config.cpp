#include "rudder/fleet/events_config.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>
#include <string_view>

#include "rudder/base/json.h"

namespace rudder::fleet {
namespace {

namespace json = boost::json;

constexpr const char* kFlag = "kv-events-config";
constexpr int64_t kMaxBatches = 1'000'000;
constexpr size_t kMaxTopic = 255;
constexpr std::string_view kKnown =
    "enable_kv_cache_events, publisher, endpoint, replay_endpoint, buffer_steps, hwm, "
    "max_queue_size, topic";

tl::unexpected<Error> bad(std::string message, std::string_view key) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), fmt::format("{}.{}", kFlag, key));
}

// What the object says, whether or not it turns events on.
struct Asked {
  std::optional<bool> enabled;
  std::string publisher = "zmq";
  EventsConfig config;
};

Result<void> read_text(const json::value& value, std::string_view key, std::string* out) {
  if (!value.is_string()) return bad("must be a string", key);
  *out = value.get_string();
  if (out->find('\0') != std::string::npos) return bad("must not contain a zero byte", key);
  return {};
}

// Of TCP, or a wildcard. libzmq itself takes larger numbers and cuts off their high bits.
bool is_port(std::string_view text) {
  if (text == "*") return true;
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size();
}

Result<void> read_endpoint(const json::value& value, std::string_view key, std::string* out) {
  RUDDER_TRY_VOID(read_text(value, key, out));
  constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
  const size_t colon = out->rfind(':');
  const bool has_host = out->starts_with(kTcp) && colon > kTcp.size();
  if (has_host && is_port(std::string_view(*out).substr(colon + 1))) return {};
  if (out->starts_with(kIpc) && out->size() > kIpc.size()) return {};
  return bad(fmt::format("'{}' is neither tcp://HOST:PORT nor ipc://PATH", *out), key);
}

Result<void> read_count(const json::value& value, std::string_view key, int32_t* out) {
  const int64_t* number = value.if_int64();
  if (number == nullptr) return bad("must be an integer", key);
  if (*number < 1 || *number > kMaxBatches) {
    return bad(fmt::format("must be from 1 to {}", kMaxBatches), key);
  }
  *out = static_cast<int32_t>(*number);
  return {};
}

Result<void> read_key(std::string_view key, const json::value& value, Asked* asked) {
  EventsConfig& config = asked->config;
  if (key == "enable_kv_cache_events") {
    if (!value.is_bool()) return bad("must be true or false", key);
    asked->enabled = value.get_bool();
    return {};
  }
  if (key == "publisher") {
    RUDDER_TRY_VOID(read_text(value, key, &asked->publisher));
    if (asked->publisher == "zmq" || asked->publisher == "null") return {};
    return bad(fmt::format("'{}' is not known: zmq or null", asked->publisher), key);
  }
  if (key == "endpoint") return read_endpoint(value, key, &config.endpoint);
  if (key == "replay_endpoint") {
    if (value.is_null()) return {};
    RUDDER_TRY_VOID(read_endpoint(value, key, &config.replay_endpoint));
    if (is_bound(config.replay_endpoint)) return {};
    return bad("must be an address to bind to: tcp://*:PORT, tcp://127.0.0.1:PORT or ipc://PATH",
               key);
  }
  if (key == "buffer_steps") return read_count(value, key, &config.buffer_steps);
  if (key == "hwm") return read_count(value, key, &config.hwm);
  if (key == "max_queue_size") return read_count(value, key, &config.max_queue_size);
  if (key == "topic") {
    RUDDER_TRY_VOID(read_text(value, key, &config.topic));
    if (config.topic.size() <= kMaxTopic) return {};
    return bad(fmt::format("has more than {} bytes", kMaxTopic), key);
  }
  return bad(fmt::format("is not known; known are {}", kKnown), key);
}

}  // namespace

namespace {

Result<void> offset_endpoint(std::string& endpoint, std::string_view key, int32_t rank) {
  if (endpoint.empty() || rank == 0) return {};
  if (endpoint.starts_with("ipc://")) {
    endpoint += fmt::format("_dp{}", rank);
    return {};
  }
  const size_t colon = endpoint.rfind(':');
  const std::string_view text = std::string_view(endpoint).substr(colon + 1);
  int32_t port = 0;
  std::from_chars(text.data(), text.data() + text.size(), port);
  if (port == 0) return {};  // 0 or *: the system picks one
  port += rank;
  if (port > UINT16_MAX) {
    return bad(fmt::format("replica {} would have port {} of '{}'", rank, port, endpoint), key);
  }
  endpoint = fmt::format("{}:{}", endpoint.substr(0, colon), port);
  return {};
}

}  // namespace

Result<EventsConfig> events_of_rank(EventsConfig config, int32_t rank) {
  RUDDER_TRY_VOID(offset_endpoint(config.endpoint, "endpoint", rank));
  RUDDER_TRY_VOID(offset_endpoint(config.replay_endpoint, "replay_endpoint", rank));
  return config;
}

bool is_bound(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://") || endpoint.starts_with("tcp://127.");
}

Result<std::optional<EventsConfig>> read_events_config(const std::string& text) {
  if (text.empty()) return std::nullopt;
  RUDDER_TRY(const json::value value, parse_json(text, "--kv-events-config"));
  if (!value.is_object()) {
    return fail(ErrorCode::kInvalidArgument, "must be a JSON object", kFlag);
  }
  Asked asked;
  for (const auto& [key, field] : value.get_object()) {
    RUDDER_TRY_VOID(read_key(key, field, &asked));
  }
  if (!asked.enabled) return bad("is missing: true publishes events", "enable_kv_cache_events");
  if (!*asked.enabled || asked.publisher == "null") return std::nullopt;
  return asked.config;
}

}  // namespace rudder::fleet
