#include "rudder/server/http/route_table.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "rudder/server/handlers.h"
#include "rudder/server/http/percent.h"

namespace rudder::server {
namespace {

constexpr std::string_view kTail = "{id}";

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", Access::kKey, handle_chat_completions},
    {"POST", "/v1/completions", Access::kKey, handle_completions},
    {"POST", "/v1/responses", Access::kKey, handle_responses},
    {"GET", "/v1/responses/{id}", Access::kKey, handle_response},
    {"DELETE", "/v1/responses/{id}", Access::kKey, handle_response_delete},
    {"POST", "/v1/responses/{id}/cancel", Access::kKey, handle_response_cancel},
    {"GET", "/v1/responses/{id}/input_items", Access::kKey, handle_response_input_items},
    {"POST", "/v1/responses/input_tokens", Access::kKey, handle_response_tokens},
    {"POST", "/v1/responses/compact", Access::kKey, handle_response_compact},
    {"POST", "/v1/messages", Access::kKey, handle_messages},
    {"POST", "/v1/messages/count_tokens", Access::kKey, handle_count_tokens},
    {"POST", "/v1/embeddings", Access::kKey, handle_embeddings},
    {"POST", "/v1/rerank", Access::kKey, handle_rerank},
    {"POST", "/v1/score", Access::kKey, handle_score},
    {"GET", "/v1/models", Access::kKey, handle_models},
    {"GET", "/v1/models/{id}", Access::kKey, handle_model, Tail::kPath},
    {"POST", "/v1/load_lora_adapter", Access::kAdmin, handle_load_lora_adapter},
    {"POST", "/v1/unload_lora_adapter", Access::kAdmin, handle_unload_lora_adapter},
    {"POST", "/v1/chat/completions/render", Access::kKey, handle_chat_render},
    {"POST", "/v1/completions/render", Access::kKey, handle_completions_render},
    {"POST", "/tokenize", Access::kKey, handle_tokenize},
    {"POST", "/detokenize", Access::kKey, handle_detokenize},
    {"GET", "/v1/steering", Access::kKey, handle_steering},
    {"POST", "/v1/steering/set", Access::kAdmin, handle_steering_set},
    {"POST", "/v1/steering/clear", Access::kAdmin, handle_steering_clear},
    {"GET", "/v1/steering/modules", Access::kKey, handle_steering_modules},
    {"POST", "/v1/steering/modules", Access::kAdmin, handle_steering_register},
    {"POST", "/v1/steering/modules/register", Access::kAdmin, handle_steering_register},
    {"POST", "/v1/steering/modules/unregister", Access::kAdmin, handle_steering_unregister},
    {"DELETE", "/v1/steering/modules/{id}", Access::kAdmin, handle_steering_remove, Tail::kPath},
    {"GET", "/v1/steering/dictionaries", Access::kKey, handle_dictionaries},
    {"POST", "/v1/steering/dictionaries", Access::kAdmin, handle_dictionary_register},
    {"DELETE", "/v1/steering/dictionaries/{id}", Access::kAdmin, handle_dictionary_remove,
     Tail::kPath},
    {"POST", "/v1/steering/features/encode", Access::kKey, handle_feature_encode},
    {"POST", "/v1/steering/patch_sweep", Access::kKey, handle_patch_sweep},
    {"GET", "/health", Access::kPublic, handle_readyz},
    {"GET", "/livez", Access::kPublic, handle_livez},
    {"GET", "/readyz", Access::kPublic, handle_readyz},
    {"GET", "/ping", Access::kPublic, handle_readyz},
    {"POST", "/ping", Access::kPublic, handle_readyz},
    {"GET", "/", Access::kPublic, handle_page},
    {"GET", "/docs", Access::kPublic, handle_docs},
    {"GET", "/face/{id}", Access::kPublic, handle_page_file},
    {"GET", "/version", Access::kPublic, handle_version},
    {"GET", "/openapi.json", Access::kPublic, handle_openapi},
    {"GET", "/metrics", Access::kKey, handle_metrics},
    {"GET", "/server_info", Access::kKey, handle_server_info},
    {"GET", "/load", Access::kKey, handle_load},
    {"GET", "/v1/loads", Access::kKey, handle_loads},
    {"POST", "/reset_prefix_cache", Access::kAdmin, handle_reset_prefix_cache},
    {"POST", "/sleep", Access::kAdmin, handle_sleep},
    {"POST", "/wake_up", Access::kAdmin, handle_wake_up},
    {"GET", "/is_sleeping", Access::kKey, handle_rest_state},
    {"POST", "/pause", Access::kAdmin, handle_pause},
    {"POST", "/resume", Access::kAdmin, handle_resume},
    {"GET", "/is_paused", Access::kKey, handle_rest_state},
    {"POST", "/v1/weights/update", Access::kAdmin, handle_weights_update},
};
static_assert(std::size(kRoutes) <= kMaxRoutes);

// Other servers' names for the same: llama.cpp answers without /v1 in front, SGLang has some paths
// of its own.
struct Alias {
  std::string_view path;
  std::string_view route;
};
constexpr Alias kAliases[] = {
    {"/chat/completions", "/v1/chat/completions"},
    {"/completions", "/v1/completions"},
    {"/embeddings", "/v1/embeddings"},
    {"/models", "/v1/models"},
    {"/rerank", "/v1/rerank"},
    {"/v2/rerank", "/v1/rerank"},
    {"/score", "/v1/score"},
    {"/responses", "/v1/responses"},
    {"/v1/health", "/health"},
    {"/v1/tokenize", "/tokenize"},
    {"/v1/detokenize", "/detokenize"},
    {"/flush_cache", "/reset_prefix_cache"},
    {"/update_weights_from_disk", "/v1/weights/update"},
    {"/update_weights", "/v1/weights/update"},
    {"/release_memory_occupation", "/sleep"},
    {"/resume_memory_occupation", "/wake_up"},
    {"/pause_generation", "/pause"},
    {"/continue_generation", "/resume"},
    {"/get_load", "/load"},
    {"/loads", "/v1/loads"},
    {"/get_server_info", "/server_info"},
};

std::string_view canonical(std::string_view path) {
  const auto* found = std::ranges::find(kAliases, path, &Alias::path);
  return found == std::end(kAliases) ? path : found->route;
}

bool path_matches(const Route& route, std::string_view path, std::string* tail) {
  const size_t at = route.path.find(kTail);
  if (at == std::string_view::npos) return route.path == path;
  const std::string_view stem = route.path.substr(0, at);
  const std::string_view rest = route.path.substr(at + kTail.size());
  if (path.size() <= stem.size() + rest.size() || !path.starts_with(stem) ||
      !path.ends_with(rest)) {
    return false;
  }
  const std::string_view given = path.substr(stem.size(), path.size() - stem.size() - rest.size());
  if (route.tail == Tail::kSegment && given.find('/') != std::string_view::npos) return false;
  std::optional<std::string> decoded = percent_decode(given);
  if (!decoded) return false;
  *tail = std::move(*decoded);
  return true;
}

}  // namespace

std::span<const Route> routes() {
  return kRoutes;
}

RouteMatch match_route(std::string_view method, std::string_view path) {
  RouteMatch match;
  path = canonical(path);
  // Where a path fits "/a/{id}" and "/a/{id}/b", it is the longer one's. What the table names is no
  // id; names of models and modules are the user's.
  const bool is_named = std::ranges::find(kRoutes, path, &Route::path) != std::end(kRoutes);
  std::string_view longest;
  std::string tail;
  for (const Route& route : kRoutes) {
    if (is_named && route.tail == Tail::kSegment) continue;
    const bool is_longer = route.path != path && route.path.size() > longest.size();
    if (is_longer && path_matches(route, path, &tail)) longest = route.path;
  }
  for (const Route& route : kRoutes) {
    if (route.path != path && (longest.empty() || route.path != longest)) continue;
    const bool is_get = route.method == "GET";
    if (route.method == method || (is_get && method == "HEAD")) {
      match.route = &route;
      match.tail = route.path == path ? "" : tail;
    }
    match.allow += is_get ? "GET, HEAD, " : std::string(route.method) + ", ";
  }
  if (!match.allow.empty()) match.allow += "OPTIONS";
  return match;
}

}  // namespace rudder::server
