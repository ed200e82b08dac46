// How checkpoints name the tensors of one architecture: with the prefix of a whole model, of a text
// model inside one with encoders, or of the layers alone, as exporters and releases of transformers
// write them. Load time.
#pragma once

#include "rudder/model/archs/archs.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// `own` with the prefixes that this checkpoint has; `own` itself where it has none that is known.
WeightNames names_in(const WeightNames& own, const weights::Checkpoint& checkpoint);

}  // namespace rudder::model
