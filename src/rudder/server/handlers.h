// Declares the handlers that the route table names. Each handler is defined in the file of its
// endpoint.
#pragma once

#include <memory>

namespace rudder::server {

class Exchange;
struct ServerContext;

void handle_chat_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_models(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_model(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_load_lora_adapter(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_unload_lora_adapter(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_embeddings(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_rerank(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_score(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_responses(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_response(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_response_delete(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_response_input_items(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_response_tokens(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_response_compact(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_response_cancel(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_messages(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_count_tokens(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_chat_render(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_completions_render(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_load(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_loads(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_reset_prefix_cache(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_tokenize(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_detokenize(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_livez(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_readyz(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_version(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_metrics(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_steering(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_steering_modules(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_dictionaries(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_dictionary_register(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_dictionary_remove(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_feature_encode(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_patch_sweep(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_steering_register(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_steering_unregister(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_steering_remove(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_steering_set(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_steering_clear(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_openapi(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_docs(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_page(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_page_file(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_sleep(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_wake_up(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_pause(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_resume(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_rest_state(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_weights_update(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_server_info(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

}  // namespace rudder::server
