// POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with the bodies, answers and codes of
// vLLM (entrypoints/openai/models/serving.py).
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <utility>

#include "rudder/base/log.h"
#include "rudder/lora/library.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/ignored_fields.h"
#include "rudder/server/http/pool_answer.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {
namespace {

constexpr size_t kMaxPathBytes = 4096;

HttpResponse adapter_refused(int status, std::string_view type, std::string message,
                             std::string param) {
  ApiError error = http_error(status, std::move(message));
  error.type = type;
  error.param = std::move(param);
  return error_response(error);
}

HttpResponse done(std::string_view name, std::string_view what) {
  HttpResponse response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = fmt::format("Success: LoRA adapter '{}' {} successfully.", name, what);
  return response;
}

// A file that is at fault is the client's choice.
HttpResponse not_loaded(const Error& error) {
  if (error.code == ErrorCode::kNotFound) {
    return adapter_refused(404, "NotFoundError", error.message, "lora_path");
  }
  const bool is_field = error.code == ErrorCode::kInvalidArgument;
  return adapter_refused(400, is_field ? "InvalidUserInput" : "BadRequestError",
                         is_field ? error.message : error.to_string(),
                         is_field ? error.where : "lora_path");
}

HttpResponse load(ServerContext& context, FieldReader& reader) {
  std::string name;
  std::string path;
  bool replaces = false;
  reader.string("lora_name", kMaxNameBytes, &name);
  reader.string("lora_path", kMaxPathBytes, &path);
  reader.boolean("load_inplace", &replaces);
  if (!reader.ok()) return error_response(reader.error());
  if (name.empty() || path.empty()) {
    return adapter_refused(400, "InvalidUserInput",
                           "Both 'lora_name' and 'lora_path' must be provided.",
                           name.empty() ? "lora_name" : "lora_path");
  }
  const std::vector<std::string>& ids = context.model().ids;
  if (std::ranges::find(ids, name) != ids.end()) {
    return adapter_refused(400, "InvalidUserInput",
                           fmt::format("'{}' is the name of the model that adapters change", name),
                           "lora_name");
  }
  lora::Library& library = *context.model().adapters;
  if (const Result<void> allowed = library.check_client_path(path); !allowed) {
    return not_loaded(allowed.error());
  }
  const Result<lora::Report> loaded = library.load(name, path, replaces);
  if (!loaded) return not_loaded(loaded.error());
  log_info("adapter {} loaded from {}: {}", name, path, loaded->to_text());
  return done(name, "added");
}

HttpResponse unload(ServerContext& context, FieldReader& reader) {
  std::string name;
  reader.string("lora_name", kMaxNameBytes, &name);
  if (!reader.ok()) return error_response(reader.error());
  if (name.empty()) {
    return adapter_refused(400, "InvalidUserInput",
                           "'lora_name' needs to be provided to unload a LoRA adapter.",
                           "lora_name");
  }
  if (const Result<void> removed = context.model().adapters->unload(name); !removed) {
    return adapter_refused(404, "NotFoundError", removed.error().message, "lora_name");
  }
  log_info("adapter {} unloaded", name);
  return done(name, "removed");
}

using Change = HttpResponse (*)(ServerContext&, FieldReader&);

void answer_change(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                   Change change) {
  if (context.model().adapters == nullptr) {
    return exchange->respond(error_response(Error{
        ErrorCode::kNotFound, "adapters need a server that was started with --enable-lora", ""}));
  }
  answer_on_pool(context, exchange, [&context, change](const std::string& body) {
    const auto object = parse_body(body);
    if (!object) return error_response(object.error());
    FieldReader reader(*object, "");
    HttpResponse response = change(context, reader);
    if (response.status == 200) name_ignored_fields(reader.ignored(), &response);
    return response;
  });
}

}  // namespace

void handle_load_lora_adapter(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_change(context, exchange, load);
}

void handle_unload_lora_adapter(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_change(context, exchange, unload);
}

}  // namespace rudder::server
