// ThinkingBudget: a constraint that bounds the tokens of each thought of an answer
// (thinking_token_budget). At the bound it allows only the mark that ends the thought.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "rudder/constraint/constraint.h"

namespace rudder::constraint {

// `begin` and `end` are the marks as tokens, neither empty, ids below the vocabulary's size.
// `open`: the prompt ends in the middle of a thought, or the answer begins as one.
std::shared_ptr<const Constraint> limit_thinking(std::span<const int32_t> begin,
                                                 std::span<const int32_t> end, int32_t budget,
                                                 bool open);

}  // namespace rudder::constraint
