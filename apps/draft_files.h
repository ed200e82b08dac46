// DraftFiles: the folder of the model or heads that guess for a model (the methods of
// draft::folder_methods()).
// Opened on the main thread; closed once the weights are loaded.
#pragma once

#include <memory>

#include "rudder/base/result.h"
#include "rudder/draft/settings.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::apps {

struct ModelFiles;  // model_session.h

// Null where the method needs none; the model's own where that has what guesses. An Error names
// speculative-config.model: the folder is no model, or a token of its tokenizer is another than the
// model's. Heads have no tokenizer.
Result<std::shared_ptr<const weights::Checkpoint>> open_draft_files(
    const draft::Speculation& speculation, const ModelFiles& model);

}  // namespace rudder::apps
