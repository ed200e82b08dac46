#include "rudder/hub/cache_scan.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "rudder/hub/cache_layout.h"
#include "rudder/hub/file_lock.h"
#include "rudder/hub/model_name.h"
#include "rudder/hub/snapshot.h"

namespace rudder::hub {
namespace fs = std::filesystem;

namespace {

// Entries of a folder by name; none where it cannot be read. Links are not followed.
std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(*at);
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::map<std::string, std::vector<std::string>> refs_by_commit(const CachedRepository& cached) {
  std::map<std::string, std::vector<std::string>> refs;
  const fs::path folder = cached.folder() + "/refs";
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    if (!at->is_regular_file(ignored)) continue;
    const std::string name = at->path().lexically_relative(folder).generic_string();
    if (const auto commit = cached.commit_of(name)) refs[*commit].push_back(name);
  }
  return refs;
}

int64_t bytes_of_snapshot(const fs::path& folder) {
  std::set<std::pair<dev_t, ino_t>> seen;
  int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    struct stat status = {};
    if (stat(at->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (seen.emplace(status.st_dev, status.st_ino).second) bytes += status.st_size;
  }
  return bytes;
}

CachedModel scan_model(const CachedRepository& cached) {
  CachedModel model{.repository = cached.name()};
  for (const fs::directory_entry& entry : entries_of(cached.folder() + "/blobs")) {
    // A blob may be a link to a store that repositories share.
    struct stat status = {};
    if (stat(entry.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const bool is_incomplete = entry.path().extension() == ".incomplete";
    // One that is not all there has gaps.
    const int64_t bytes = is_incomplete ? int64_t{status.st_blocks} * 512 : status.st_size;
    model.bytes += bytes;
    if (is_incomplete) model.incomplete_bytes += bytes;
    model.last_used_s =
        std::max<int64_t>(model.last_used_s, std::max(status.st_atime, status.st_mtime));
  }
  const auto refs = refs_by_commit(cached);
  for (const fs::directory_entry& entry : entries_of(cached.folder() + "/snapshots")) {
    const std::string commit = entry.path().filename().string();
    if (!is_commit(commit)) continue;
    CachedSnapshot snapshot{.commit = commit, .bytes = bytes_of_snapshot(entry.path())};
    if (const auto at = refs.find(commit); at != refs.end()) snapshot.refs = at->second;
    if (!has_gguf_alone(cached, commit)) {
      snapshot.missing = missing_of_snapshot(cached, commit).value_or("");
    }
    model.snapshots.push_back(std::move(snapshot));
  }
  return model;
}

// Whoever fetches a blob holds its lock, whichever tool it is.
Result<std::vector<FileLock>> take_all_locks(const CachedRepository& cached) {
  std::vector<FileLock> locks;
  std::vector<std::string> paths = {cached.own_lock()};
  for (const fs::directory_entry& entry : entries_of(cached.locks())) {
    if (entry.path().extension() == ".lock" && entry.path() != paths[0]) {
      paths.push_back(entry.path().string());
    }
  }
  for (const std::string& path : paths) {
    Result<FileLock> lock = FileLock::try_acquire(path);
    if (!lock && lock.error().code == ErrorCode::kUnavailable) {
      return fail(ErrorCode::kUnavailable,
                  fmt::format("another process fetches {} just now", cached.name()), "model");
    }
    if (!lock) return tl::unexpected<Error>(lock.error());
    locks.push_back(std::move(*lock));
  }
  return locks;
}

}  // namespace

Result<std::vector<CachedModel>> scan_cache(const std::string& cache) {
  std::vector<CachedModel> models;
  std::error_code error;
  if (!fs::exists(cache, error)) return models;
  if (!fs::is_directory(cache, error)) {
    return fail(ErrorCode::kIo, "the cache is not a folder", cache);
  }
  for (const fs::directory_entry& entry : entries_of(cache)) {
    const auto repository = repository_of_folder(entry.path().filename().string());
    std::error_code ignored;
    if (!repository || !entry.is_directory(ignored)) continue;
    models.push_back(scan_model(CachedRepository(cache, *repository)));
  }
  return models;
}

Result<int64_t> remove_cached(const std::string& cache, const std::string& repository) {
  const CachedRepository cached(cache, repository);
  std::error_code error;
  if (!fs::is_directory(cached.folder(), error)) {
    return fail(ErrorCode::kNotFound, fmt::format("{} is not in {}", repository, cache), "model");
  }
  int64_t freed = 0;
  {
    RUDDER_TRY(const std::vector<FileLock> locks, take_all_locks(cached));
    for (const fs::directory_entry& entry : entries_of(cached.folder() + "/blobs")) {
      struct stat status = {};
      if (lstat(entry.path().c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
        freed += int64_t{status.st_blocks} * 512;
      }
    }
    // Under another name first: a reader finds all of it, or nothing.
    const std::string gone =
        fmt::format("{}/.removed-{}", cache, fs::path(cached.folder()).filename().string());
    fs::remove_all(gone, error);
    fs::rename(cached.folder(), gone, error);
    if (error) return fail(ErrorCode::kIo, error.message(), cached.folder());
    fs::remove_all(gone, error);
    if (error) return fail(ErrorCode::kIo, error.message(), gone);
    fs::remove_all(cached.locks(), error);
  }
  return freed;
}

}  // namespace rudder::hub
