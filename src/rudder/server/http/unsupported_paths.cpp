#include "rudder/server/http/unsupported_paths.h"

#include <algorithm>
#include <iterator>

namespace rudder::server {
namespace {

struct Unsupported {
  std::string_view path;  // and what is below it
  std::string_view feature;
};

constexpr Unsupported kUnsupported[] = {
    {"/v1/audio", "audio"},
    {"/v1/realtime", "the realtime API"},
    {"/v1/images", "making images"},
    {"/v1/videos", "making videos"},
    {"/v1/classify", "classification"},
    {"/classify", "classification"},
    {"/v1/pooling", "pooling other than /v1/embeddings"},
    {"/pooling", "pooling other than /v1/embeddings"},
    {"/v2/embed", "Cohere's embedding API"},
    {"/v1/moderations", "moderation"},
    {"/v1/files", "files"},
    {"/v1/uploads", "files"},
    {"/v1/batches", "batches"},
    {"/v1/messages/batches", "batches"},
    {"/v1/chat/completions/batch", "batches in one request"},
    {"/v1/fine_tuning", "fine-tuning"},
    {"/v1/assistants", "the assistants API"},
    {"/v1/threads", "the assistants API"},
    {"/v1/conversations", "the conversations API"},
    {"/v1/vector_stores", "vector stores"},
    {"/reset_mm_cache", "a multimodal cache"},
    {"/reset_encoder_cache", "a multimodal cache"},
    {"/start_profile", "profiling over HTTP"},
    {"/stop_profile", "profiling over HTTP"},
    {"/inference/v1/generate", "vLLM's native generate"},
    {"/generate", "SGLang's and TGI's native generate"},
    {"/generate_stream", "TGI's native generate"},
    {"/completion", "llama.cpp's native completion"},
    {"/api", "Ollama's API"},
    {"/infill", "fill-in-the-middle"},
    {"/apply-template", "llama.cpp's /apply-template (/v1/chat/completions/render is here)"},
    {"/props", "llama.cpp's /props (/server_info is here)"},
    {"/slots", "llama.cpp's /slots (/metrics and /load are here)"},
    {"/lora-adapters", "LoRA adapters"},
    {"/tokenizer_info", "telling the tokenizer's configuration"},
    {"/health_generate", "a health check that generates (/health is here)"},
    {"/abort_request", "aborting by id (closing the connection ends a request)"},
    {"/abort_requests", "aborting by id (closing the connection ends a request)"},
    {"/collective_rpc", "calls into workers"},
    {"/encode", "pooling other than /v1/embeddings"},
    {"/invocations", "SageMaker's invocations"},
};

bool is_at(std::string_view path, std::string_view top) {
  return path.starts_with(top) && (path.size() == top.size() || path[top.size()] == '/');
}

}  // namespace

std::string_view unsupported_feature(std::string_view path) {
  const auto* found =
      std::find_if(std::begin(kUnsupported), std::end(kUnsupported),
                   [&](const Unsupported& unsupported) { return is_at(path, unsupported.path); });
  return found == std::end(kUnsupported) ? std::string_view() : found->feature;
}

}  // namespace rudder::server
