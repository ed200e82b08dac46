// Reads the fields that the APIs share: sampling, stopping, streaming.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/engine/request.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {

// Those that every generating API has, into parameters that still lack their prompt, with the
// model's defaults for what is absent. Errors stay in `reader`.
engine::RequestParams read_sampling_fields(FieldReader& reader, const SamplingDefaults& defaults);
// `cache_salt`, empty where it is absent.
std::string read_cache_salt(FieldReader& reader);

// Strings that end the answer: a list, or one.
void read_stop(FieldReader& reader, std::string_view name, std::vector<std::string>* stop);
// Chat's `max_completion_tokens`, which goes before `max_tokens`.
void read_max_tokens(FieldReader& reader, bool chat, std::optional<int32_t>* out);

// Numbers within their ranges (field_ranges.h). Left alone when absent. `range`: the path whose
// range it is, where the API has another name for it.
void read_integer(FieldReader& reader, std::string_view name, std::optional<int64_t>* out,
                  std::string_view range = {});
void read_integer(FieldReader& reader, std::string_view name, int32_t* out);
void read_real(FieldReader& reader, std::string_view name, float* out);

// `stream` and `sse_ping_interval`.
void read_stream_fields(FieldReader& reader, AnswerOptions* answer);
// What answers of chat and completions have beside: choices, token ids, usage in a stream.
void read_choice_fields(FieldReader& reader, AnswerOptions* answer, engine::RequestParams* params);

// What no endpoint can do is refused by name, never silently ignored; what is without effect on the
// answer's text is passed over.
void refuse_unsupported_fields(FieldReader& reader);
// The same of fields that conversations alone have, or prompts of text.
void refuse_fields_of_chat(FieldReader& reader);
void refuse_fields_of_completions(FieldReader& reader, int32_t n);

}  // namespace rudder::server
