// GenerationAsk: what a body asks for, typed. The reader of each API fills it from the client's own
// JSON, so that errors name the client's fields; from there on all APIs are one. Runs on the
// tokenise pool.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/engine/request.h"
#include "rudder/server/request/conversation.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/server/request/prompt_truncation.h"
#include "rudder/server/request/structured_output.h"
#include "rudder/server/request/text_prompts.h"
#include "rudder/server/request/tool_fields.h"
#include "rudder/server/steering/tap_fields.h"

namespace rudder::server {

// What clients of an API call the fields that the engine's errors are about.
struct FieldNames {
  std::string_view max_tokens = "max_tokens";
  std::string_view logprobs = "logprobs";
  std::string_view stop = "stop";
};

struct GenerationAsk {
  FieldNames names;
  AnswerOptions answer;
  engine::RequestParams params;
  ToolFields tools;
  std::optional<int32_t> thinking_budget;
  StructuredOutput structured;
  Truncation truncation;
  TapFields taps;
  bool echo = false;
  std::string echoed;  // of a conversation; of prompts of text, their own
};

// Model, ids, sampling and `stream`: what comes first of every body. `id_prefix` is the answer's id
// up to the request's.
tl::expected<GenerationAsk, ApiError> begin_ask(FieldReader& reader, Api api,
                                                std::string_view id_prefix,
                                                const GenerationScope& scope);

// `thinking_token_budget`, or what an API has instead: a budget that was read, where there is one.
void read_thinking_budget(FieldReader& reader, const dialect::ReasoningDialect* reasoning,
                          std::optional<int32_t>* budget);

// What every API has beside its own fields: steering and capture, truncation, token lists; and what
// no API can do is refused. Called behind the API's own fields.
tl::expected<void, ApiError> read_common_fields(FieldReader& reader,
                                                const boost::json::object& body,
                                                const GenerationScope& scope, GenerationAsk* ask);

// The engine's requests for these prompts.
tl::expected<GenerationRequest, ApiError> make_generation(FieldReader& reader, GenerationAsk ask,
                                                          std::vector<PromptText> prompts,
                                                          const GenerationScope& scope);
// The same of one conversation.
tl::expected<GenerationRequest, ApiError> make_generation(FieldReader& reader, GenerationAsk ask,
                                                          Conversation conversation,
                                                          const GenerationScope& scope);

}  // namespace rudder::server
