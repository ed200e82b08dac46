// POST /sleep, /wake_up, /pause, /resume, GET /is_sleeping, /is_paused, as vLLM has them, and POST
// /v1/weights/update, which SGLang calls /update_weights_from_disk: what trainers ask of the server
// that generates for them. Each answers when it is done.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "rudder/base/contain.h"
#include "rudder/base/json.h"
#include "rudder/server/context.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/api_error.h"
#include "rudder/server/http/exchange.h"
#include "rudder/server/http/ignored_fields.h"
#include "rudder/server/http/io_thread.h"
#include "rudder/server/openai/input_items.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {
namespace {

constexpr size_t kMaxWeightsPathBytes = 4096;
constexpr double kDefaultRestSeconds = 300;
constexpr double kMaxRestSeconds = 3600;
constexpr double kMinRestSeconds = 0.001;
constexpr std::string_view kWaits = "wait_for_inflight_requests";
constexpr std::string_view kClears = "clear_cache";
constexpr std::array<std::string_view, 6> kRestFields = {"mode",    "level", "tags",
                                                         "timeout", kWaits,  kClears};

// What the change under way is asked for, from the query or from a body, where there is one.
struct RestFields {
  std::optional<std::string> mode;
  std::optional<int64_t> level;
  std::vector<std::string> tags;
  double timeout = kDefaultRestSeconds;
  bool waits = false;                // vLLM's older word for the mode 'wait', which it beats
  bool clears = true;                // what is cached
  std::vector<std::string> ignored;  // of the body and the query, told to the client
};

// vLLM's modes; SGLang's "in_place" and "retract" both are to keep.
Result<engine::RestMode> rest_mode_of(const std::optional<std::string>& mode,
                                      engine::RestMode otherwise) {
  if (!mode) return otherwise;
  if (mode == "abort") return engine::RestMode::kAbort;
  if (mode == "wait") return engine::RestMode::kWait;
  if (mode == "keep" || mode == "in_place" || mode == "retract") return engine::RestMode::kKeep;
  return fail(ErrorCode::kInvalidArgument, "mode must be 'abort', 'wait' or 'keep'", "mode");
}

Result<void> read_rest_body(const boost::json::object& body, RestFields& fields) {
  FieldReader reader(body, "");
  float timeout = static_cast<float>(fields.timeout);
  reader.string("mode", kMaxNameBytes, &fields.mode);
  reader.integer("level", 1, 2, &fields.level);
  reader.real("timeout", &timeout);
  reader.boolean(kWaits, &fields.waits);
  reader.boolean(kClears, &fields.clears);
  fields.timeout = timeout;
  if (const boost::json::array* const tags = reader.array("tags")) {
    for (const boost::json::value& tag : *tags) {
      if (!tag.is_string()) {
        return fail(ErrorCode::kInvalidArgument, "tags must be a list of strings", "tags");
      }
      fields.tags.emplace_back(tag.as_string());
    }
  }
  for (std::string& path : reader.ignored()) fields.ignored.push_back(std::move(path));
  return reader.result();
}

Result<void> check_timeout(const RestFields& fields) {
  if (fields.timeout >= kMinRestSeconds && fields.timeout <= kMaxRestSeconds) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("timeout must be {} to {} seconds", kMinRestSeconds, kMaxRestSeconds),
              "timeout");
}

// As clients of Python write it.
Result<bool> truth_of(std::string_view text, std::string_view name) {
  for (const std::string_view yes : {"true", "True", "1"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"false", "False", "0"}) {
    if (text == no) return false;
  }
  return fail(ErrorCode::kInvalidArgument, "must be true or false", std::string(name));
}

// What is not the text of a number or of a truth is refused: a request is not ended for a slip.
Result<void> read_rest_query(std::string_view query, RestFields& fields) {
  if (const std::string_view mode = query_parameter(query, "mode"); !mode.empty()) {
    fields.mode = mode;
  }
  if (const std::string_view level = query_parameter(query, "level"); !level.empty()) {
    if (level != "1" && level != "2") {
      return fail(ErrorCode::kInvalidArgument, "level must be 1 or 2", "level");
    }
    fields.level = level == "1" ? 1 : 2;
  }
  if (const std::string_view timeout = query_parameter(query, "timeout"); !timeout.empty()) {
    const char* const end = timeout.data() + timeout.size();
    const auto [rest, error] = std::from_chars(timeout.data(), end, fields.timeout);
    if (error != std::errc() || rest != end) {
      return fail(ErrorCode::kInvalidArgument, "timeout must be a number of seconds", "timeout");
    }
  }
  if (const std::string_view waits = query_parameter(query, kWaits); !waits.empty()) {
    RUDDER_TRY(fields.waits, truth_of(waits, kWaits));
  }
  if (const std::string_view clears = query_parameter(query, kClears); !clears.empty()) {
    RUDDER_TRY(fields.clears, truth_of(clears, kClears));
  }
  boost::json::object others;
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view name = query.substr(0, std::min(query.find('='), end));
    if (query.starts_with("tags=")) {
      fields.tags.emplace_back(query.substr(5, end - 5));
    } else if (!name.empty() && std::ranges::count(kRestFields, name) == 0) {
      others[name] = true;
    }
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  fields.ignored = FieldReader(others, "").ignored();
  return {};
}

Result<RestFields> read_rest_fields(std::string_view query, const boost::json::object& body) {
  RestFields fields;
  RUDDER_TRY_VOID(read_rest_query(query, fields));
  RUDDER_TRY_VOID(read_rest_body(body, fields));
  for (const std::string& tag : fields.tags) {
    if (tag == "weights" || tag == "kv_cache") continue;
    return fail(ErrorCode::kInvalidArgument, "tags are 'weights' and 'kv_cache'", "tags");
  }
  RUDDER_TRY_VOID(check_timeout(fields));
  return fields;
}

// There need not be a body.
tl::expected<RestFields, ApiError> read_rest_fields(const Exchange& exchange) {
  const std::string& text = exchange.body.text;
  const auto body = parse_body(text.empty() ? std::string_view("{}") : text);
  if (!body) return tl::unexpected(body.error());
  Result<RestFields> fields = read_rest_fields(exchange.request.query, *body);
  if (!fields) return tl::unexpected(to_api_error(fields.error()));
  return std::move(*fields);
}

Result<ModelRest::RestWish> wish_of(const RestFields& fields, engine::RestMode otherwise) {
  RUDDER_TRY(engine::RestMode mode, rest_mode_of(fields.mode, otherwise));
  if (fields.waits) mode = engine::RestMode::kWait;
  return ModelRest::RestWish{.mode = mode,
                             .timeout_us = std::llround(fields.timeout * 1e6),
                             .keeps_cache = !fields.clears};
}

// By what gives memory back or brings other weights.
Error cache_is_lost(const char* field) {
  return {ErrorCode::kUnsupported, "false is not supported: what is cached is lost by it", field};
}

HttpResponse rest_response(const boost::json::object& object,
                           const std::vector<std::string>& ignored = {}) {
  HttpResponse response;
  response.body = to_json_text(object);
  name_ignored_fields(ignored, &response);
  return response;
}

boost::json::object rest_state_of(const ModelRest& rest) {
  return {{"is_sleeping", rest.state() == ModelRest::State::kAsleep},
          {"is_paused", rest.state() == ModelRest::State::kPaused}};
}

// A change that could not be made leaves the model as it was. Requests that still ran are no fault
// of the one who asks: 503.
HttpResponse rest_refusal(const Error& error) {
  if (error.code != ErrorCode::kTimeout) return error_response(error);
  return error_response(Error{ErrorCode::kUnavailable, error.message, error.where});
}

// Runs `change` on the thread of changes and answers with what it gives.
void answer_rest_change(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                        std::vector<std::string> ignored,
                        std::function<Result<boost::json::object>()> change) {
  auto response = std::make_shared<HttpResponse>();
  const bool runs = context.rest.run(
      [response, ignored = std::move(ignored), change = std::move(change)] {
        const Result<boost::json::object> done =
            contain([&]() -> Result<boost::json::object> { return change(); });
        *response = done ? rest_response(*done, ignored) : rest_refusal(done.error());
      },
      [exchange, response] {
        exchange->io->post([exchange, response] { exchange->respond(std::move(*response)); });
      });
  if (runs) return;
  exchange->respond(error_response(http_error(409, "another change of the model is under way")));
}

}  // namespace

void handle_sleep(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const auto fields = read_rest_fields(*exchange);
  if (!fields) return exchange->respond(error_response(fields.error()));
  const auto wish = wish_of(*fields, engine::RestMode::kAbort);
  if (!wish) return exchange->respond(error_response(wish.error()));
  if (wish->keeps_cache) return exchange->respond(error_response(cache_is_lost("clear_cache")));
  const auto level = static_cast<int32_t>(fields->level.value_or(1));
  answer_rest_change(context, exchange, fields->ignored,
                     [&rest = context.rest, level, wish = *wish]() -> Result<boost::json::object> {
                       RUDDER_TRY_VOID(rest.sleep(level, wish));
                       return rest_state_of(rest);
                     });
}

void handle_wake_up(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const auto fields = read_rest_fields(*exchange);
  if (!fields) return exchange->respond(error_response(fields.error()));
  const auto has = [&](std::string_view tag) {
    return fields->tags.empty() || std::ranges::count(fields->tags, tag) > 0;
  };
  answer_rest_change(context, exchange, fields->ignored,
                     [&rest = context.rest, weights = has("weights"),
                      sequences = has("kv_cache")]() -> Result<boost::json::object> {
                       RUDDER_TRY_VOID(rest.wake_up(weights, sequences));
                       return rest_state_of(rest);
                     });
}

void handle_pause(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const auto fields = read_rest_fields(*exchange);
  if (!fields) return exchange->respond(error_response(fields.error()));
  const auto wish = wish_of(*fields, engine::RestMode::kAbort);
  if (!wish) return exchange->respond(error_response(wish.error()));
  answer_rest_change(context, exchange, fields->ignored,
                     [&rest = context.rest, wish = *wish]() -> Result<boost::json::object> {
                       RUDDER_TRY_VOID(rest.pause(wish));
                       return rest_state_of(rest);
                     });
}

void handle_resume(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto ignored = unread_fields(exchange->body.text);
  if (!ignored) return exchange->respond(error_response(ignored.error()));
  answer_rest_change(context, exchange, std::move(*ignored),
                     [&rest = context.rest]() -> Result<boost::json::object> {
                       RUDDER_TRY_VOID(rest.resume());
                       return rest_state_of(rest);
                     });
}

void handle_rest_state(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  exchange->respond(rest_response(rest_state_of(context.rest)));
}

void handle_weights_update(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const auto object = parse_body(exchange->body.text);
  if (!object) return exchange->respond(error_response(object.error()));
  FieldReader reader(*object, "");
  std::string path;
  std::string version;
  RestFields fields;
  bool aborts = false;
  bool flushes = true;
  float timeout = kDefaultRestSeconds;
  reader.string("path", kMaxWeightsPathBytes, &path);
  reader.string("model_path", kMaxWeightsPathBytes, &path);
  reader.string("weight_version", kMaxNameBytes, &version);
  reader.string("mode", kMaxNameBytes, &fields.mode);
  reader.boolean("abort_all_requests", &aborts);
  reader.boolean("flush_cache", &flushes);
  reader.real("timeout", &timeout);
  fields.timeout = timeout;
  const Result<void> in_time = check_timeout(fields);
  if (reader.ok() && !in_time) reader.adopt(in_time.error());
  if (reader.ok() && !flushes) reader.adopt(cache_is_lost("flush_cache"));
  const auto wish = wish_of(fields, aborts ? engine::RestMode::kAbort : engine::RestMode::kWait);
  if (reader.ok() && !wish) reader.adopt(wish.error());
  // What is there and wrong is told first.
  if (path.empty() && reader.ok()) {
    reader.error(ErrorCode::kInvalidArgument, "is required: the folder of the checkpoint", "path");
  }
  if (!reader.ok()) return exchange->respond(error_response(reader.error()));
  answer_rest_change(
      context, exchange, reader.ignored(),
      [&rest = context.rest, path, version, wish = *wish]() -> Result<boost::json::object> {
        RUDDER_TRY(const ModelRest::Updated updated, rest.update(path, version, wish));
        return boost::json::object{
            {"success", true},
            {"message", fmt::format("{} tensors replaced", updated.num_tensors)},
            {"matched", updated.num_tensors},
            {"weight_version", version},
            {"identity", updated.identity}};
      });
}

}  // namespace rudder::server
