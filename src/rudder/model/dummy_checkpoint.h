// A checkpoint without files: the tensors of an architecture, of true shape, with random values
// that cost nothing to have. For benches of what no disk has to hold (--load-format dummy). Loaded
// as any other; read by the thread that loads.
#pragma once

#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// `config_text` is the model's config.json. Values are spread as make_model's are; those of a large
// tensor repeat themselves every 64 MiB.
Result<std::shared_ptr<const weights::Checkpoint>> make_dummy_checkpoint(
    const std::string& name, const std::string& config_text);

}  // namespace rudder::model
