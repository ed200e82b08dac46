// Parses bodies of POST /v1/rerank and /v1/score: texts against texts, for models that were trained
// to say whether a document meets a query. Runs on the tokenise pool.
#pragma once

#include <string_view>

#include "rudder/server/request/generation_request.h"

namespace rudder::server {

// Of each pair two prompts, alike but for the answer that is forced: the model's log-probability of
// its "yes", and of its "no".
tl::expected<GenerationRequest, ApiError> parse_rerank(std::string_view body,
                                                       const GenerationScope& scope);
tl::expected<GenerationRequest, ApiError> parse_score(std::string_view body,
                                                      const GenerationScope& scope);

}  // namespace rudder::server
