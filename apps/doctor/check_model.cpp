#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>

#include "doctor/findings.h"
#include "model_folder.h"
#include "rudder/hub/cache_layout.h"
#include "rudder/hub/model_name.h"
#include "rudder/hub/snapshot.h"

namespace rudder::apps {
namespace {

// The folder to look at; nullopt: there is none, and the finding says so.
std::optional<std::string> cached_folder(const std::string& model, const std::string& revision,
                                         Findings& findings) {
  std::error_code ignored;
  if (model.empty() || std::filesystem::exists(model, ignored) || hub::is_path_only(model)) {
    return model;
  }
  const Result<hub::ModelName> name = hub::parse_model_name(model);
  const Result<hub::HubSettings> settings = hub_settings();
  if (!name || !settings) {
    findings.push_back(
        {Verdict::kFails, "model", !name ? name.error().message : settings.error().message});
    return std::nullopt;
  }
  const hub::CachedRepository cached(settings->cache, name->repository);
  const std::string wanted = revision.empty() ? "main" : revision;
  const Result<void> checked = hub::check_revision(wanted);
  const auto commit = checked ? cached.commit_of(wanted) : std::nullopt;
  std::string missing = "its files";
  if (commit && name->quant.empty()) {
    missing = hub::missing_of_snapshot(cached, *commit).value_or("");
    if (missing.empty()) return cached.snapshot(*commit);
  } else if (commit) {
    const auto file = hub::cached_gguf(cached, *commit, name->quant);
    if (file) return cached.snapshot(*commit) + "/" + *file;
    missing = "it";
  }
  const std::string why = why_not_fetched(*settings);
  findings.push_back(
      {!why.empty() || !checked ? Verdict::kFails : Verdict::kNote, "model",
       !checked ? checked.error().message
                : fmt::format("{} is not in the cache (without {}); a start {}", model, missing,
                              why.empty() ? "fetches it first" : "does not fetch it: " + why)});
  return std::nullopt;
}

}  // namespace

void check_model(const std::string& model, const SessionSettings& settings, Findings& findings) {
  SessionSettings looked_at = settings;
  const auto folder = cached_folder(model, settings.load.revision, findings);
  if (!folder) return;
  if (*folder != model) looked_at.load.revision.clear();
  const Result<ModelFiles> files = open_model_files(*folder, looked_at.load);
  if (!files) {
    findings.push_back({Verdict::kFails, "model", files.error().to_string()});
    return;
  }
  const Result<exec::MemoryBudget> budget = budget_session(*files, looked_at);
  if (budget) check_addresses(budget->total_bytes(), findings);
  findings.push_back({budget ? Verdict::kFine : Verdict::kFails, "model",
                      budget ? fmt::format("{}: {} sequences of up to {} tokens fit", files->name,
                                           budget->max_num_seqs, budget->max_seq_len)
                             : fmt::format("{}: {}", files->name, budget.error().to_string())});
}

}  // namespace rudder::apps
