#include <algorithm>
#include <iterator>

#include "rudder/server/openapi/openapi_parts.h"

namespace rudder::server {
namespace {

constexpr Operation kOperations[] = {
    {"POST", "/v1/chat/completions", "An answer to a chat.", "ChatCompletionRequest",
     "ChatCompletion", "ChatCompletionChunk"},
    {"POST", "/v1/completions", "How texts go on.", "CompletionRequest", "Completion",
     "CompletionChunk"},
    {"POST", "/v1/responses", "An answer as items, which can be carried on.", "ResponseRequest",
     "Response", "ResponseEvent"},
    {"GET", "/v1/responses/{id}", "A response that is remembered.", "", "Response"},
    {"DELETE", "/v1/responses/{id}", "Forgets a response.", "", "ResponseDeleted"},
    {"POST", "/v1/responses/{id}/cancel", "Ends a response that runs in the background.", "",
     "Response"},
    {"GET", "/v1/responses/{id}/input_items", "What a response was asked with.", "",
     "ResponseInputItemList"},
    {"POST", "/v1/responses/input_tokens", "How long the prompt of a response would be.",
     "ResponseRequest", "ResponseTokens"},
    {"POST", "/v1/responses/compact", "A summary in place of a conversation.", "ResponseRequest",
     "ResponseCompaction"},
    {"POST", "/v1/messages", "An answer to a chat, as Anthropic's API has it.", "MessageRequest",
     "Message", "MessageEvent"},
    {"POST", "/v1/messages/count_tokens", "How long the prompt of a message would be.",
     "MessageCountRequest", "MessageCount"},
    {"POST", "/v1/embeddings", "Pooled states of the model.", "EmbeddingRequest", "EmbeddingList"},
    {"POST", "/v1/rerank", "Documents in the order in which they meet a query.", "RerankRequest",
     "Reranked"},
    {"POST", "/v1/score", "How well texts meet texts.", "ScoreRequest", "Scored"},
    {"POST", "/v1/chat/completions/render", "What the engine would be asked; nothing is generated.",
     "ChatCompletionRequest", "Rendered"},
    {"POST", "/v1/completions/render", "What the engine would be asked; nothing is generated.",
     "CompletionRequest", "RenderedList"},
    {"GET", "/v1/models", "The names of the model.", "", "ModelList"},
    {"GET", "/v1/models/{id}", "One name of the model.", "", "Model"},
    {"POST", "/v1/load_lora_adapter", "Loads an adapter from the server's folder.", "LoraLoad", ""},
    {"POST", "/v1/unload_lora_adapter", "Forgets an adapter.", "LoraUnload", ""},
    {"POST", "/tokenize", "Token ids of a text or a chat.", "TokenizeRequest", "Tokenized"},
    {"POST", "/detokenize", "The text of token ids.", "DetokenizeRequest", "Detokenized"},
    {"GET", "/", "A page to talk to the model.", "", ""},
    {"GET", "/docs", "This document as a page.", "", ""},
    {"GET", "/face/{id}", "A file of that page.", "", ""},
    {"GET", "/v1/steering", "What steers requests.", "", "Object"},
    {"POST", "/v1/steering/set", "Steers every request.", "GlobalSteering", "Object"},
    {"POST", "/v1/steering/clear", "Ends the steering of every request.", "", "Object"},
    {"GET", "/v1/steering/modules", "Named modules.", "", "Object"},
    {"POST", "/v1/steering/modules", "Names a module.", "SteeringModule", "Object"},
    {"POST", "/v1/steering/modules/register", "Names a module.", "SteeringModule", "Object"},
    {"POST", "/v1/steering/modules/unregister", "Forgets a module.", "SteeringModuleName",
     "Object"},
    {"DELETE", "/v1/steering/modules/{id}", "Forgets a module.", "", "Object"},
    {"GET", "/v1/steering/dictionaries", "Dictionaries whose features requests may name.", "",
     "Object"},
    {"POST", "/v1/steering/dictionaries", "Loads a dictionary from the server's folder.",
     "SteeringDictionary", "Object"},
    {"DELETE", "/v1/steering/dictionaries/{id}", "Forgets a dictionary.", "", "Object"},
    {"POST", "/v1/steering/features/encode", "The features of captured rows.", "FeatureEncode",
     "EncodedFeatures"},
    {"POST", "/v1/steering/patch_sweep", "Activation patching over a grid.", "PatchSweepRequest",
     "PatchSweep"},
    {"GET", "/health", "Whether the server takes requests and the engine makes progress.", "",
     "Status"},
    {"GET", "/livez", "Whether the process answers and may serve again.", "", "Status"},
    {"GET", "/readyz", "As /health.", "", "Status"},
    {"GET", "/ping", "As /health.", "", "Status"},
    {"POST", "/ping", "As /health.", "", "Status"},
    {"GET", "/version", "The server's version.", "", "Version"},
    {"GET", "/openapi.json", "This document.", "", "Object"},
    {"GET", "/metrics", "Metrics in Prometheus' text format.", "", ""},
    {"GET", "/server_info", "The model and every setting.", "", "ServerInfo"},
    {"GET", "/load", "How many requests are in progress.", "", "Load"},
    {"GET", "/v1/loads", "The scheduler's load, as SGLang's routers read it.", "", "Loads"},
    {"POST", "/reset_prefix_cache", "Forgets every cached prefix that nobody uses.", "", "Status"},
    {"POST", "/sleep", "Gives the model's memory back until it is woken up.", "", "RestState"},
    {"POST", "/wake_up", "Ends the sleep.", "", "RestState"},
    {"GET", "/is_sleeping", "Whether the model sleeps or pauses.", "", "RestState"},
    {"POST", "/pause", "Runs no step until it is told to resume.", "", "RestState"},
    {"POST", "/resume", "Ends the pause.", "", "RestState"},
    {"GET", "/is_paused", "Whether the model sleeps or pauses.", "", "RestState"},
    {"POST", "/v1/weights/update", "Other weights in place of the model's, whole or not at all.",
     "WeightsUpdate", "WeightsUpdated"},
};

}  // namespace

const Operation* find_operation(std::string_view method, std::string_view path) {
  const auto* found = std::find_if(
      std::begin(kOperations), std::end(kOperations),
      [&](const Operation& each) { return each.method == method && each.path == path; });
  return found == std::end(kOperations) ? nullptr : found;
}

}  // namespace rudder::server
