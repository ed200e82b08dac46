// The demo models inside the binary; commands use one when no MODEL is given.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/weights/checkpoint.h"

namespace rudder::apps {

enum class Demo : uint8_t {
  kLlama,  // models/demo
  kHp1,    // models/demo-hp1: gates in place of softmaxes
};

// config.json, model.safetensors, tokenizer.json, ...; the bytes live as long as the program.
std::vector<weights::MemoryFile> embedded_model(Demo demo);

}  // namespace rudder::apps
