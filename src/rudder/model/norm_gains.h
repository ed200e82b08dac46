// The gains of a model's norms, read for those who take rows without them (dictionaries that were
// trained in front of the gain). Load time, while the checkpoint is open.
#pragma once

#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/tap/norm_gain.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// Of the norm in front of the MLP, by layer of the whole model, as the decoder multiplies by it.
Result<std::vector<tap::NormGain>> read_mlp_gains(const weights::Checkpoint& checkpoint,
                                                  const ModelSpec& spec);

}  // namespace rudder::model
