// A constraint for the simulator: what it allows is a hash of every token that it was told, so that
// one too many, one too few or one of another sequence changes what comes next. Now and then it
// allows the end of the text alone, or nothing, or fails.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rudder/constraint/constraint.h"
#include "rudder/engine/request.h"

namespace rudder::testing {

std::shared_ptr<const constraint::Constraint> sim_constraint(uint64_t seed);

// The mask after `output` of a request under sim_constraints of these seeds, worked out from the
// first token; nothing where it ends with an error.
std::optional<std::vector<uint32_t>> sim_mask(std::span<const uint64_t> seeds,
                                              const engine::RequestParams& validated,
                                              int32_t vocab_size, std::span<const int32_t> output);

}  // namespace rudder::testing
