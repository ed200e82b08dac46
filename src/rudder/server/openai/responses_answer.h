// Writes a response of /v1/responses without items, for GET. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "rudder/server/http/api_error.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {

// `status`: "in_progress", "failed" (with `error`) or "cancelled".
std::string response_document(const AnswerOptions& options, std::string_view status,
                              const ApiError* error = nullptr);

}  // namespace rudder::server
