// A constraint for the simulator: a hash of every token that its matcher was told decides which
// tokens it allows. So a token too many, a token too few, or a token of another sequence changes
// the output. Sometimes it allows only the end of the text, or nothing, or fails.
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
