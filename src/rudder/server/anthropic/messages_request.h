// Parses a body of POST /v1/messages or /v1/messages/count_tokens (Anthropic's API). Runs on the
// tokenise pool.
#pragma once

#include <cstdint>
#include <string_view>

#include "rudder/server/request/generation_request.h"

namespace rudder::server {

// Blocks of text, calls of tools and their results become chat messages; a last message of the
// assistant is carried on. Fields that all APIs have here (sampling, steering and so on) are read
// as theirs.
tl::expected<GenerationRequest, ApiError> parse_messages(std::string_view body,
                                                         const GenerationScope& scope);

// The length of the prompt that such a request has, max_tokens not needed.
tl::expected<PromptCount, ApiError> count_message_tokens(std::string_view body,
                                                         const GenerationScope& scope);

}  // namespace rudder::server
