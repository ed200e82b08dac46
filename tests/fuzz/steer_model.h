// The small model that fuzz targets of steering and capture steer: hidden size 4, 16 layers. One
// module is registered, "mood".
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "require.h"
#include "rudder/steer/config.h"
#include "rudder/steer/parse.h"

namespace rudder::fuzz {

steer::Model fuzz_model();
const steer::Names& fuzz_names();

// Ops of an accepted spec: each stands at a point of the model with finite vectors of its width.
void require_ops(const std::vector<steer::OpSpec>& ops, const steer::Model& model);

// Keys of the programs that the ops make when all selectors hold, and when none does; nothing where
// they are refused together.
std::vector<tap::ContentKey> keys_of(const std::vector<steer::OpSpec>& ops,
                                     const steer::Model& model);

// A module's file of the format that `extension` names: what is accepted has such ops, what is not
// gives an error at the file.
void require_module(std::string_view bytes, std::string_view extension);

}  // namespace rudder::fuzz
