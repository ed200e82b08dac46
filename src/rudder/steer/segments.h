// Makes the segments of a sequence, with one program each, from a Config and the shape of the
// prompt. Called once for each request on the server's threads; pure functions.
#pragma once

#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/config.h"
#include "rudder/steer/selector.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::steer {

// The steering half of a sequence's taps: `segments`, `thoughts`, `needs_whole_prompt`,
// `is_controlled`, `is_scheduled`. There are thoughts only where a selector tells them from the
// rest of an answer. Neighbouring segments differ; equal ones share their program. Segments are
// empty when no token of this sequence is steered. The key of a segment whose ops have a schedule
// covers the prompt's length too, since the same program then changes the same tokens differently.
// kInvalidArgument (`where` = "steering") when a selector needs roles and the shape has none.
Result<tap::SequenceTaps> make_taps(const Config& config, const PromptShape& shape);

// The programs that a request with this config runs for most prompts: those of long prompts and
// long generations without roles. The server puts them on the device when it registers a module.
std::vector<KeyedProgram> usual_programs(const Config& config);

}  // namespace rudder::steer
