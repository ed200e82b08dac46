// A checkpoint without files: the tensors of an architecture in true shape, with random values that
// cost no time to make. For benches (--load-format dummy). Loaded like any other checkpoint, by the
// thread that loads.
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
