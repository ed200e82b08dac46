// The engine of processes: engine::Engine over one engine process a replica. Whoever uses it sees
// an engine; a process that ends takes the answers in progress with it, and nothing else. Normative
// text: docs/contracts/engine.md, "Processes"; decision: ADR 0131.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/engine.h"
#include "rudder/engine/settings.h"
#include "rudder/remote/engine_process.h"

namespace rudder::remote {

struct StartedEngine {
  std::unique_ptr<engine::Engine> engine;
  std::string dtype;  // of the weights in its memory
};

// Starts a process for each command, and returns when all serve. An Error is what the first of them
// that does not serve has said. `settings`: those of the processes.
Result<StartedEngine> start_engine(const std::vector<EngineCommand>& commands,
                                   const engine::EngineSettings& settings);

}  // namespace rudder::remote
