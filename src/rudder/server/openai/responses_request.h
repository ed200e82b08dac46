// Parses a body of POST /v1/responses by translating it into a chat request; errors name the
// client's own fields. Runs on the tokenise pool.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "rudder/server/openai/response_store.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {

// Items of `input` become messages, `instructions` a system message in front, the conversation of
// `previous_response_id` what lies between. Fields that this API does not have (sampling, steering
// and so on) are passed on. `store` may be null: nothing is stored then.
tl::expected<GenerationRequest, ApiError> parse_responses(
    std::string_view body, const GenerationScope& scope,
    const std::shared_ptr<ResponseStore>& store);

}  // namespace rudder::server
