// AllowedTokens: a choice is made of these tokens and no others, in any order (allowed_token_ids).
// An end-of-sequence id that is not among them never comes: the choice then runs to its length.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "rudder/constraint/constraint.h"

namespace rudder::constraint {

// `tokens` are ids below `vocab_size`, which is the model's.
std::shared_ptr<const Constraint> allow_tokens(std::span<const int32_t> tokens, int32_t vocab_size);

}  // namespace rudder::constraint
