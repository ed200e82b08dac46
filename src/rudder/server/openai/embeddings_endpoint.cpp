// POST /v1/embeddings: pooled states of the model behind its final norm.
#include "rudder/server/generation/generation_endpoint.h"
#include "rudder/server/handlers.h"
#include "rudder/server/openai/embeddings_request.h"

namespace rudder::server {

void handle_embeddings(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  run_generation(context, exchange,
                 [&context](const std::string& body, const GenerationScope& scope) {
                   const std::string& asked = context.settings.tasks.pooling;
                   return parse_embeddings(body, scope, context.engine().captures(),
                                           asked == "auto" ? scope.model.embedding.pooling : asked);
                 });
}

}  // namespace rudder::server
