// From MODEL, as a person writes it, to the folder or GGUF file that it means: one that is there,
// or what the hub has under this name, fetched into its cache. Called on the main thread, before
// signals are held back: a download is ended by Ctrl-C.
#pragma once

#include <string>

#include "rudder/base/result.h"
#include "rudder/hub/pull.h"

namespace rudder::apps {

// `revision` is for names alone; empty is the hub's default. Empty stays empty: the demo model.
Result<std::string> find_model(const std::string& model, const std::string& revision);

// What the hub has under a name, whatever folders there are.
Result<hub::Pulled> pull_model(const hub::PullRequest& request);

// The environment's, with this program's name for the hub's log.
Result<hub::HubSettings> hub_settings();

}  // namespace rudder::apps
