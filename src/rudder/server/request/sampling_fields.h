// Reads the fields that chat and completions requests share: sampling, stopping, streaming.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "rudder/engine/request.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/generation_request.h"

namespace rudder::server {

// Reads them into parameters that still lack their prompt, with the model's defaults for what is
// absent. Errors stay in `reader`.
engine::RequestParams read_sampling_fields(FieldReader& reader, const SamplingDefaults& defaults);
// `cache_salt`, empty where it is absent.
std::string read_cache_salt(FieldReader& reader);

// Numbers within their ranges (field_ranges.h). Left alone when absent.
void read_integer(FieldReader& reader, std::string_view name, std::optional<int64_t>* out);
void read_integer(FieldReader& reader, std::string_view name, int32_t* out);
void read_real(FieldReader& reader, std::string_view name, float* out);

// stream, stream_options, return_token_ids and how else the answer is to look.
void read_answer_fields(FieldReader& reader, AnswerOptions* answer);

// What neither endpoint can do yet is refused by name, never silently ignored; what is without
// effect on the answer's text is passed over.
void refuse_unsupported_fields(FieldReader& reader, Api api, int32_t n);

}  // namespace rudder::server
