// allowed_token_ids and bad_words: fields of generation requests that become constraints.
#pragma once

#include <vector>

#include "rudder/constraint/constraint_spec.h"
#include "rudder/engine/request.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/text/tokenizer.h"

namespace rudder::server {

// Appends what the fields ask for to `constraints`. Errors stay in `reader`. Encodes words: called
// where prompts are.
void read_token_lists(FieldReader& reader, const text::Tokenizer& tokenizer,
                      const engine::RequestLimits& limits,
                      std::vector<constraint::ConstraintSpec>* constraints);

}  // namespace rudder::server
