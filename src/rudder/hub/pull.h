// From a name to a folder: the snapshot of a repository in the cache, or one GGUF file of it,
// fetched as far as it is not there. Called once a command, on its thread; other processes may do
// the same at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/hub/download.h"
#include "rudder/hub/hub_settings.h"

namespace rudder::hub {

struct PullRequest {
  std::string model;  // "org/name" or "org/name:QUANT", as parse_model_name takes it
  std::string revision = "main";
  DownloadSettings download = {};
};

struct Pulled {
  std::string path;        // of the snapshot's folder, or of the (first) GGUF file that was named
  std::string repository;  // as it was asked for
  std::string commit;
  int64_t bytes_fetched = 0;  // by this call
};

// The receiver of a download's progress, under this label.
using MakeProgress = std::function<ProgressFn(const std::string& label)>;

// What is cached is taken where the hub is not to be asked (HF_HUB_OFFLINE, a commit) or cannot be,
// which is logged. Errors name what is wrong with the name, the access, the hub, the cache or the
// disk, and what to do.
Result<Pulled> pull(const HubSettings& settings, const PullRequest& request,
                    const MakeProgress& make_progress);

}  // namespace rudder::hub
