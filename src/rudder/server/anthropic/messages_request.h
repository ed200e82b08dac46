// Parses a body of POST /v1/messages or /v1/messages/count_tokens (Anthropic's API) by translating
// it into a chat request; errors name the client's own fields. Runs on the tokenise pool.
#pragma once

#include <cstdint>
#include <string_view>

#include "rudder/server/request/generation_request.h"

namespace rudder::server {

// Blocks of text, calls of tools and their results become chat messages; a last message of the
// assistant is carried on. Fields that this API does not have are passed on.
tl::expected<GenerationRequest, ApiError> parse_messages(std::string_view body,
                                                         const GenerationScope& scope);

// The length of the prompt that such a request has, max_tokens not needed.
tl::expected<int64_t, ApiError> count_message_tokens(std::string_view body,
                                                     const ServerModel& model);

}  // namespace rudder::server
