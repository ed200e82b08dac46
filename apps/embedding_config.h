// Reads what an embedding checkpoint says of its answers: modules.json and the file of its pooling,
// as sentence-transformers writes them. Called once at start.
#pragma once

#include "rudder/base/result.h"
#include "rudder/server/model.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::apps {

// Without modules.json: the last token, of length 1. kUnsupported names the module or the pooling
// that is not served.
Result<server::EmbeddingDefaults> read_embedding_config(const weights::Checkpoint& checkpoint);

}  // namespace rudder::apps
