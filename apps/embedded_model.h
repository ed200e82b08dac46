// The demo model inside the binary (models/demo); commands use it when no MODEL is given.
#pragma once

#include <vector>

#include "rudder/weights/checkpoint.h"

namespace rudder::apps {

// config.json, model.safetensors, tokenizer.json, ...; the bytes live as long as the program.
std::vector<weights::MemoryFile> embedded_model();

}  // namespace rudder::apps
