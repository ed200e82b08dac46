// Parses a body of POST /v1/embeddings. Each input becomes a prompt that generates one token, which
// is dropped; the capture consumer `response` pools its states behind the final norm. Runs on the
// tokenise pool.
#pragma once

#include <string_view>

#include "rudder/server/request/generation_request.h"

namespace rudder::server {

// `captures` may be null; embeddings are then refused. `pooling` is the default for requests that
// name none: "last" or "mean".
tl::expected<GenerationRequest, ApiError> parse_embeddings(std::string_view body,
                                                           const GenerationScope& scope,
                                                           steer::capture::Dispatcher* captures,
                                                           std::string_view pooling);

}  // namespace rudder::server
