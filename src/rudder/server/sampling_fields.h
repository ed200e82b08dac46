// The fields that chat and completions requests share: sampling, stopping, streaming.
#pragma once

#include "rudder/engine/request.h"
#include "rudder/server/field_reader.h"
#include "rudder/server/generation_request.h"

namespace rudder::server {

// Reads them into a draft that still lacks its prompt, with the model's defaults for what is
// absent. Errors stay in `reader`.
engine::RequestDraft read_sampling_fields(FieldReader& reader, const SamplingDefaults& defaults);

// stream, stream_options, return_token_ids, n.
void read_answer_fields(FieldReader& reader, AnswerOptions* answer);

// What neither endpoint can do yet is refused by name, never silently ignored; what is without
// effect on the answer's text is passed over.
void refuse_unsupported_fields(FieldReader& reader, Api api, int32_t n);

}  // namespace rudder::server
