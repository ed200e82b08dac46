// /v1/steering and below: named modules, dictionaries and the steering of every request. Those that
// change something want the admin key, when there is one.
#include <boost/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/ignored_fields.h"
#include "rudder/server/http/pool_answer.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/steer/library.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

HttpResponse json_response(const json::value& value) {
  HttpResponse response;
  response.body = to_json_text(value);
  return response;
}

HttpResponse without_steering() {
  return error_response(Error{ErrorCode::kUnsupported,
                              "steering needs a server that was started with --enable-steering",
                              ""});
}

json::array point_names(const std::set<std::string_view>& names) {
  json::array out;
  for (const std::string_view name : names) out.emplace_back(json::string_view(name));
  return out;
}

// What a config touches, in the article's words.
json::object describe_reach(const steer::Config* config) {
  std::set<std::string_view> sites;
  std::set<int32_t> layers;
  if (config != nullptr) {
    for (const steer::OpSpec& spec : config->specs()) {
      sites.insert(tap::site_name(spec.point.site));
      layers.insert(spec.point.layer);
    }
  }
  return {{"status", "ok"},
          {"hook_points", point_names(sites)},
          {"layers_updated", json::array(layers.begin(), layers.end())}};
}

// The name of a body that registers something; empty where it has none.
std::string_view name_of(const json::object& body) {
  const json::value* name = body.if_contains("name");
  if (name == nullptr || !name->is_string()) return {};
  return std::string_view(name->get_string());
}

// What was registered, described; 409 where the name was taken.
template <typename Registered>
HttpResponse registered_response(const Result<std::shared_ptr<const Registered>>& registered,
                                 bool was_taken) {
  if (registered) return json_response(steer::describe(**registered));
  ApiError error = to_api_error(registered.error());
  if (was_taken && error.param == "name") {
    error.status = 409;
    error.code = "conflict";
  }
  return error_response(error);
}

HttpResponse register_module(steer::Library& library, const json::object& body) {
  const bool was_taken = library.find(name_of(body)) != nullptr;
  return registered_response(library.add_json(body), was_taken);
}

HttpResponse register_dictionary(steer::Library& library, const json::object& body) {
  const bool was_taken = library.find_dictionary(name_of(body)) != nullptr;
  return registered_response(library.add_dictionary_json(body), was_taken);
}

HttpResponse remove_dictionary(steer::Library& library, std::string_view name) {
  if (const Result<void> removed = library.remove_dictionary(name); !removed) {
    return error_response(removed.error());
  }
  return json_response(json::object{{"status", "ok"}, {"name", json::string_view(name)}});
}

HttpResponse remove_module(steer::Library& library, std::string_view name) {
  if (const Result<void> removed = library.remove(name); !removed) {
    return error_response(removed.error());
  }
  return json_response(json::object{{"status", "ok"}, {"name", json::string_view(name)}});
}

HttpResponse unregister_module(steer::Library& library, const json::object& body) {
  FieldReader reader(body, "");
  std::optional<std::string> name;
  reader.string("name", 1024, &name);
  if (!name) reader.error(ErrorCode::kInvalidArgument, "is required", "name");
  if (!reader.ok()) return error_response(reader.error());
  HttpResponse response = remove_module(library, *name);
  name_ignored_fields(reader.ignored(), &response);
  return response;
}

HttpResponse set_global(steer::Library& library, const json::object& body) {
  if (const Result<void> set = library.set_global(body); !set) return error_response(set.error());
  return json_response(describe_reach(library.global().get()));
}

using BodyHandler = HttpResponse (*)(steer::Library&, const json::object&);

// An empty body counts as {}.
void answer_body(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                 BodyHandler handler) {
  steer::Library* library = context.parts.steering;
  if (library == nullptr) return exchange->respond(without_steering());
  answer_on_pool(context, exchange, [library, handler](const std::string& body) {
    const auto object = parse_body(body.empty() ? "{}" : body);
    return object ? handler(*library, *object) : error_response(object.error());
  });
}

}  // namespace

void handle_steering(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const steer::Library* library = context.parts.steering;
  if (library == nullptr) return exchange->respond(without_steering());
  const auto stats = context.engine().stats();
  const auto global = library->global();
  json::array modules;
  for (const auto& module : library->modules()) modules.emplace_back(module->name);
  const auto& rows = stats.tap_rows;
  exchange->respond(json_response(
      json::object{{"modules", std::move(modules)},
                   {"global", global == nullptr ? json::array() : steer::describe(*global)},
                   {"rows",
                    {{"total", rows.rows},
                     {"in_use", rows.held},
                     {"cached", rows.cached},
                     {"pinned", rows.pinned},
                     {"pinned_resident", rows.pinned_resident}}},
                   {"requests_waiting", stats.waiting_for_taps}}));
}

void handle_steering_modules(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const steer::Library* library = context.parts.steering;
  if (library == nullptr) return exchange->respond(without_steering());
  json::array modules;
  for (const auto& module : library->modules()) modules.push_back(steer::describe(*module));
  const size_t count = modules.size();
  exchange->respond(json_response(json::object{{"modules", std::move(modules)}, {"count", count}}));
}

void handle_dictionaries(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const steer::Library* library = context.parts.steering;
  if (library == nullptr) return exchange->respond(without_steering());
  json::array sets;
  for (const auto& set : library->dictionaries()) sets.push_back(steer::describe(*set));
  const size_t count = sets.size();
  exchange->respond(
      json_response(json::object{{"dictionaries", std::move(sets)}, {"count", count}}));
}

void handle_dictionary_register(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_body(context, exchange, register_dictionary);
}

void handle_dictionary_remove(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  steer::Library* library = context.parts.steering;
  if (library == nullptr) return exchange->respond(without_steering());
  answer_on_pool(context, exchange, [library, name = exchange->path_tail](const std::string&) {
    return remove_dictionary(*library, name);
  });
}

void handle_steering_register(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_body(context, exchange, register_module);
}

void handle_steering_unregister(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_body(context, exchange, unregister_module);
}

void handle_steering_remove(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  steer::Library* library = context.parts.steering;
  if (library == nullptr) return exchange->respond(without_steering());
  answer_on_pool(context, exchange, [library, name = exchange->path_tail](const std::string&) {
    return remove_module(*library, name);
  });
}

void handle_steering_set(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_body(context, exchange, set_global);
}

void handle_steering_clear(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_body(context, exchange, [](steer::Library& library, const json::object& body) {
    if (const Result<void> cleared = library.clear_global(); !cleared) {
      return error_response(cleared.error());
    }
    HttpResponse response = json_response(json::object{{"status", "ok"}});
    name_ignored_fields(FieldReader(body, "").ignored(), &response);
    return response;
  });
}

}  // namespace rudder::server
