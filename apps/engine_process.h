// Engines in processes of their own: how the front opens a model whose engines are elsewhere, and
// the name of the command that such a process runs (run_engine_process).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model_session.h"
#include "rudder/base/result.h"

namespace rudder::apps {

inline constexpr std::string_view kEngineProcess = "engine-process";

// As open_session, but for the engine: one process a replica is started with the `arguments` of
// `rudder serve`. kUnsupported: a setting that does not go together with it.
Result<ModelSession> open_front(const std::string& model, const SessionSettings& settings,
                                const std::vector<std::string>& arguments);

}  // namespace rudder::apps
