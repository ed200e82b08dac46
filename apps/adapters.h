// The LoRA adapters of a session: those of the settings, and the library that clients add to. Made
// on the main thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/base/settings.h"
#include "rudder/lora/library.h"
#include "rudder/step/executor.h"

namespace rudder::apps {

struct AdapterSettings {
  std::vector<std::string> modules;  // "name=path" or JSON
  int32_t max_cpu_loras = 64;
  std::string root;  // empty: clients load no adapter

  void declare(SettingsTable& table);
};

// Null where the executor takes no adapters; an Error when there are any all the same, or one does
// not load. `base` outlives the library. Keys of adapters are hashed under `secret`, or where it
// is empty under one that is drawn.
Result<std::unique_ptr<lora::Library>> make_adapters(const step::Capacity& capacity,
                                                     lora::Targets targets, lora::BaseReader base,
                                                     const AdapterSettings& settings,
                                                     const std::string& secret);

}  // namespace rudder::apps
