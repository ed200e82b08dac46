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
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path;
}

void check_cache(const std::string& cache, Findings& findings) {
  const fs::path there = existing_part(cache);
  std::error_code ignored;
  if (!fs::is_directory(there, ignored)) {
    findings.push_back(
        {Verdict::kNote, "cache", fmt::format("{}: {} is not a folder", cache, there.string())});
    return;
  }
  struct statvfs status = {};
  const std::string space =
      statvfs(there.c_str(), &status) == 0 && status.f_blocks != 0
          ? fmt::format("{:.1f} GiB free", static_cast<double>(status.f_bavail) *
                                               static_cast<double>(status.f_frsize) / (1 << 30))
          : "free space unknown";
  const auto models = hub::scan_cache(cache);
  const bool is_writable = access(there.c_str(), W_OK | X_OK) == 0;
  findings.push_back(
      {is_writable ? Verdict::kFine : Verdict::kNote, "cache",
       fmt::format("{}: {} models, {}{}", cache, models ? models->size() : 0, space,
                   is_writable ? ""
                               : "; it cannot be written, so nothing can be fetched: HF_HUB_CACHE "
                                 "names another folder")});
}

}  // namespace

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
