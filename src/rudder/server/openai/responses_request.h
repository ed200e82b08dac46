// Parses a body of POST /v1/responses. Runs on the tokenise pool.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "rudder/server/openai/response_store.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {

// Items of `input` become messages, `instructions` a system message in front, the conversation of
// `previous_response_id` what lies between. Fields that all APIs have here (sampling, steering and
// so on) are read as theirs. `store` may be null: nothing is stored then.
tl::expected<GenerationRequest, ApiError> parse_responses(
    std::string_view body, const GenerationScope& scope,
    const std::shared_ptr<ResponseStore>& store);

// A body of POST /v1/responses/compact, as a request for a summary of its conversation.
tl::expected<GenerationRequest, ApiError> parse_compaction(
    std::string_view body, const GenerationScope& scope,
    const std::shared_ptr<ResponseStore>& store);

// The length of the prompt that a response would have.
tl::expected<PromptCount, ApiError> count_response_tokens(
    std::string_view body, const GenerationScope& scope,
    const std::shared_ptr<ResponseStore>& store);

}  // namespace rudder::server
