// GET /version, /server_info and /openapi.json.
#include <fmt/format.h>

#include "rudder/base/json.h"
#include "rudder/server/context.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/exchange.h"

namespace rudder::server {

void handle_version(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.body = "{\"version\":";
  append_json_string(response.body, context.parts.version);
  response.body.push_back('}');
  exchange->respond(std::move(response));
}

void handle_server_info(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const ServerModel& model = context.model();
  HttpResponse response;
  std::string& out = response.body;
  out = "{\"version\":";
  append_json_string(out, context.parts.version);
  out += ",\"model\":";
  append_json_string(out, model.ids.front());
  out += ",\"dtype\":";
  append_json_string(out, model.dtype);
  out += fmt::format(",\"max_model_len\":{},\"chat_template\":{},\"draining\":{},\"settings\":{{",
                     model.max_model_len, model.chat != nullptr, context.ending.draining.load());
  if (context.parts.all_settings != nullptr) {
    bool first = true;
    for (const Setting& setting : context.parts.all_settings->all()) {
      if (!first) out.push_back(',');
      first = false;
      append_json_string(out, setting.name);
      out.push_back(':');
      // Secrets are told only to whoever brings them.
      const bool secret = setting.name.ends_with("api-key") || setting.name.ends_with("secret");
      const std::string value = setting.get();
      append_json_string(out, secret && !value.empty() ? "(set)" : value);
    }
  }
  out += "}}";
  exchange->respond(std::move(response));
}

void handle_openapi(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.shared_body = context.openapi;
  exchange->respond(std::move(response));
}

}  // namespace rudder::server
