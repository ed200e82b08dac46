// AllowedTokens: the output consists of these tokens only, in any order (allowed_token_ids). If no
// end-of-sequence id is among them, the choice runs to its length limit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "rudder/constraint/constraint.h"

namespace rudder::constraint {

// `tokens` are ids below `vocab_size`, which is the model's.
std::shared_ptr<const Constraint> allow_tokens(std::span<const int32_t> tokens, int32_t vocab_size);

}  // namespace rudder::constraint
