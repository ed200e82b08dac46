#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "doctor/findings.h"
#include "model_folder.h"
#include "rudder/hub/cache_scan.h"
#include "rudder/hub/curl_api.h"

namespace rudder::apps {
namespace fs = std::filesystem;

namespace {

// The folder itself, or the nearest one above it that is there.
fs::path existing_part(const std::string& folder) {
  fs::path path = fs::absolute(folder);
  std::error_code ignored;
  const auto is_there = [&] {  // a link to nothing is there, too
    return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
  };
  while (!is_there() && path.has_relative_path()) path = path.parent_path();
  return path;
}

// Why nothing can be written into it; empty: something can.
std::string why_not_written(const std::string& cache) {
  const fs::path there = existing_part(cache);
  std::error_code ignored;
  if (!fs::is_directory(there, ignored)) return there.string() + " is not a folder";
  if (access(there.c_str(), W_OK | X_OK) == 0) return {};
  return there.string() + " cannot be written; HF_HUB_CACHE names another folder";
}

void check_cache(const std::string& cache, Findings& findings) {
  const fs::path there = existing_part(cache);
  const std::string why = why_not_written(cache);
  struct statvfs status = {};
  const std::string space =
      statvfs(there.c_str(), &status) == 0 && status.f_blocks != 0
          ? fmt::format("{:.1f} GiB free", static_cast<double>(status.f_bavail) *
                                               static_cast<double>(status.f_frsize) / (1 << 30))
          : "free space unknown";
  const auto models = hub::scan_cache(cache);
  findings.push_back({why.empty() ? Verdict::kFine : Verdict::kNote, "cache",
                      fmt::format("{}: {} models, {}{}", cache, models ? models->size() : 0, space,
                                  why.empty() ? "" : "; nothing can be fetched: " + why)});
}

}  // namespace

std::string why_not_fetched(const hub::HubSettings& settings) {
  if (settings.offline) return "HF_HUB_OFFLINE is set";
  if (const auto curl = hub::load_curl(); !curl) return curl.error().message;
  return why_not_written(settings.cache);
}

void check_hub(Findings& findings) {
  const Result<hub::HubSettings> settings = hub_settings();
  if (!settings) {  // a start by folder does not ask
    findings.push_back({Verdict::kNote, "hub", settings.error().message});
    return;
  }
  check_cache(settings->cache, findings);
  const Result<const hub::CurlApi*> curl = hub::load_curl();
  findings.push_back({curl ? Verdict::kFine : Verdict::kNote, "libcurl",
                      curl ? (*curl)->version() : curl.error().message});
  findings.push_back(
      {Verdict::kFine, "hub",
       fmt::format("{}{}, {}", settings->endpoint,
                   settings->offline ? " (not asked: HF_HUB_OFFLINE)" : "",
                   settings->token.empty() ? std::string("no token")
                                           : "a token of " + settings->token_source)});
}

}  // namespace rudder::apps
