// Reads what an embedding checkpoint says of its answers: modules.json, the files of its modules
// and config_sentence_transformers.json, as sentence-transformers writes them. Called once at
// start.
#pragma once

#include "rudder/base/result.h"
#include "rudder/server/model.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::apps {

// Without modules.json: the last token, of length 1. Each key is obeyed or known to be without
// effect; kUnsupported names the module, the pooling or the key that is not served.
Result<server::EmbeddingDefaults> read_embedding_config(const weights::Checkpoint& checkpoint);

}  // namespace rudder::apps
