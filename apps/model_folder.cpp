#include "model_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "rudder/base/log.h"
#include "rudder/base/progress.h"
#include "rudder/hub/model_name.h"
#include "rudder/server/http/descriptors.h"
#include "version.h"

namespace rudder::apps {
namespace {

ProgressFn show_progress(const std::string& label) {
  // Who waits at a terminal sees why, whatever is logged.
  if (!log_enabled(LogLevel::kInfo) && isatty(STDERR_FILENO) == 0) return {};
  // Its clock starts with its work.
  return [label, bar = std::shared_ptr<Progress>()](int64_t done, int64_t total) mutable {
    if (bar == nullptr) bar = std::make_shared<Progress>(label, true);
    bar->update(done, total);
  };
}

}  // namespace

Result<hub::HubSettings> hub_settings() {
  RUDDER_TRY(hub::HubSettings settings, hub::read_hub_settings());
  settings.user_agent = fmt::format("rudder/{}", kVersion);
  return settings;
}

Result<hub::Pulled> pull_model(const hub::PullRequest& request) {
  // A lock and the bytes of every file that is fetched are open until all are there.
  constexpr int32_t kMostDescriptors = 1 << 15;
  server::make_descriptor_room(kMostDescriptors, 0);
  RUDDER_TRY(const hub::HubSettings settings, hub_settings());
  return hub::pull(
      settings, request,
      settings.shows_progress ? hub::MakeProgress(show_progress) : hub::MakeProgress());
}

Result<std::string> find_model(const std::string& model, const std::string& revision) {
  std::error_code ignored;
  const bool is_there = !model.empty() && std::filesystem::exists(model, ignored);
  const bool is_path = hub::is_path_only(model);
  if (is_path && !is_there && !model.empty()) {
    return fail(ErrorCode::kNotFound,
                fmt::format("there is no folder and no file '{}', and names of the hub look like "
                            "Qwen/Qwen3-8B (with --revision for a branch or a tag)",
                            model),
                "model");
  }
  if (model.empty() || is_there) {
    if (revision.empty()) return model;
    return fail(ErrorCode::kInvalidArgument,
                "it is of a model that is named as on the hub (org/name), and MODEL is none",
                "revision");
  }
  hub::PullRequest request;
  request.model = model;
  if (!revision.empty()) request.revision = revision;
  Result<hub::Pulled> pulled = pull_model(request);
  if (pulled) return pulled->path;
  // Who meant a folder reads that first.
  pulled.error().message = fmt::format("there is no folder '{}', and as a name of the hub: {}",
                                       model, pulled.error().message);
  return tl::unexpected<Error>(std::move(pulled.error()));
}

}  // namespace rudder::apps
