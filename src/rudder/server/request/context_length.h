// Whether a prompt and its output fit the model's context. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "rudder/base/result.h"
#include "rudder/engine/request.h"
#include "rudder/server/http/api_error.h"
#include "rudder/server/request/text_prompts.h"

namespace rudder::server {

// Clients look for the first sentence and for the code, "context_length_exceeded".
tl::expected<void, ApiError> check_length(const PromptText& prompt,
                                          std::optional<int32_t> max_tokens,
                                          const engine::RequestLimits& limits);

}  // namespace rudder::server
