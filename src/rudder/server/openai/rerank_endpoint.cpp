// POST /v1/rerank and /v1/score, as vLLM (and Jina, and Cohere) have them.
#include "rudder/server/generation/generation_endpoint.h"
#include "rudder/server/handlers.h"
#include "rudder/server/openai/rerank_request.h"

namespace rudder::server {

void handle_rerank(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  run_generation(context, exchange, parse_rerank);
}

void handle_score(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  run_generation(context, exchange, parse_score);
}

}  // namespace rudder::server
