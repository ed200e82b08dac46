// A GGUF file as a checkpoint in the Hugging Face layout: tensors by the names of archs/, and the
// small files that its metadata say (config.json, tokenizer.json, tokenizer_config.json,
// generation_config.json). What reads checkpoints reads it as any other. Numbers of the file that
// the model has in another form or order stay packed (weights/packed_tensor.h); vectors are
// unpacked at open.
#pragma once

#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// Of a split file, any of its parts. Errors name the file with the key or the tensor.
Result<std::shared_ptr<const weights::Checkpoint>> open_gguf(const std::string& path);

}  // namespace rudder::model
