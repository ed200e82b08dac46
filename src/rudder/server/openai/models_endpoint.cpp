// GET /v1/models and /v1/models/{id}.
#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/json.h"
#include "rudder/server/context.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/exchange.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {
namespace {

// A name of the model, or an adapter of it.
struct ListedModel {
  std::string_view id;
  std::string_view root;
  std::string_view parent;  // empty: none
};

void append_model(std::string& out, const ServerModel& model, const ListedModel& entry) {
  out += "{\"id\":";
  append_json_string(out, entry.id);
  out += fmt::format(",\"object\":\"model\",\"created\":{},\"owned_by\":\"rudder\",\"root\":",
                     model.created);
  append_json_string(out, entry.root);
  out += ",\"parent\":";
  if (entry.parent.empty()) {
    out += "null";
  } else {
    append_json_string(out, entry.parent);
  }
  out += fmt::format(",\"max_model_len\":{}}}", model.max_model_len);
}

ListedModel entry_of(const ServerModel& model, std::string_view id) {
  return {.id = id, .root = model.root.empty() ? id : std::string_view(model.root), .parent = {}};
}

ListedModel entry_of(const ServerModel& model, const lora::NamedAdapter& adapter) {
  return {.id = adapter.name, .root = adapter.path, .parent = model.ids.front()};
}

}  // namespace

void handle_models(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const ServerModel& model = context.model();
  HttpResponse response;
  response.body = "{\"object\":\"list\",\"data\":[";
  for (const std::string& id : model.ids) {
    if (&id != &model.ids.front()) response.body.push_back(',');
    append_model(response.body, model, entry_of(model, id));
  }
  if (model.adapters != nullptr) {
    for (const auto& adapter : model.adapters->all()) {
      response.body.push_back(',');
      append_model(response.body, model, entry_of(model, *adapter));
    }
  }
  response.body += "]}";
  exchange->respond(std::move(response));
}

void handle_model(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const ServerModel& model = context.model();
  HttpResponse response;
  if (std::ranges::find(model.ids, exchange->path_tail) != model.ids.end()) {
    append_model(response.body, model, entry_of(model, exchange->path_tail));
    return exchange->respond(std::move(response));
  }
  const auto adapter =
      model.adapters == nullptr ? nullptr : model.adapters->find(exchange->path_tail);
  if (adapter == nullptr) {
    return exchange->respond(error_response(model_not_found(exchange->path_tail)));
  }
  append_model(response.body, model, entry_of(model, *adapter));
  exchange->respond(std::move(response));
}

}  // namespace rudder::server
