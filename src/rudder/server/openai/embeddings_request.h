// A body of POST /v1/embeddings, understood: each input is a prompt that generates nothing worth
// keeping and whose states behind the final norm are pooled by the capture consumer `response`. On
// the tokenise pool.
#pragma once

#include <string_view>

#include "rudder/server/request/generation_request.h"

namespace rudder::server {

// `captures` may be null: embeddings are refused then. `pooling` is what inputs are pooled by that
// name nothing: "last" or "mean".
tl::expected<GenerationRequest, ApiError> parse_embeddings(std::string_view body,
                                                           const GenerationScope& scope,
                                                           steer::capture::Dispatcher* captures,
                                                           std::string_view pooling);

}  // namespace rudder::server
