#include "rudder/hub/pull.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "rudder/base/log.h"
#include "rudder/hub/cache_layout.h"
#include "rudder/hub/file_lock.h"
#include "rudder/hub/file_selection.h"
#include "rudder/hub/hub_client.h"
#include "rudder/hub/model_name.h"
#include "rudder/hub/partial_file.h"
#include "rudder/hub/snapshot.h"

namespace rudder::hub {
namespace fs = std::filesystem;

namespace {

constexpr int64_t kSpareBytes = int64_t{64} << 20;  // that a disk keeps

std::string size_text(int64_t bytes) {
  const bool is_large = bytes >= int64_t{1} << 30;
  return fmt::format("{:.1f} {}iB", static_cast<double>(bytes) / (1 << (is_large ? 30 : 20)),
                     is_large ? 'G' : 'M');
}

// Bytes free below `folder`; nullopt where the file system does not say.
std::optional<int64_t> free_bytes(const std::string& folder) {
  struct statvfs status = {};
  if (statvfs(folder.c_str(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

bool has_blob(const std::string& path, int64_t size) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size == size;
}

// Backup programs leave out a folder with this file.
void tag_cache(const std::string& cache) {
  const std::string path = cache + "/CACHEDIR.TAG";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    std::ofstream(path) << "Signature: 8a477f597d28d172789f06886806bc55\n"
                           "# A cache of models, which can be fetched again.\n";
  }
}

class Puller {
 public:
  Puller(const HubSettings& settings, const PullRequest& request, ModelName name,
         const MakeProgress& make_progress)
      : settings_(settings),
        request_(request),
        quant_(std::move(name.quant)),
        cached_(settings.cache, std::move(name.repository)),
        asked_{cached_.name(), request.revision, ""},
        make_progress_(make_progress) {}

  Result<Pulled> run() {
    const std::optional<std::string> known = cached_.commit_of(request_.revision);
    if (known && is_commit(request_.revision) && is_whole(*known)) return done(*known);
    if (settings_.offline) return from_cache_alone(known);
    RUDDER_TRY(client_, HubClient::create(settings_));
    const bool is_servable = known && missing_of(*known).empty();
    Result<RepositoryState> state = client_->resolve(asked_, is_servable ? 1 : kMaxTries);
    if (!state) {
      // A revision that is gone is what was asked for; for the rest there is what was fetched.
      if (!is_servable || state.error().where == "revision") return tl::unexpected(state.error());
      log_warn("{}; taking what the cache has of {}, commit {}", state.error().message,
               cached_.name(), *known);
      return done(*known);
    }
    if (!state->id.empty() && state->id != cached_.name()) {
      log_warn("{} is called {} today: a later start should name it so", cached_.name(), state->id);
    }
    if (!is_whole(state->commit)) RUDDER_TRY_VOID(fetch_commit(state->commit));
    const Result<void> written = cached_.write_ref(request_.revision, state->commit);
    if (!written) log_debug("the cache cannot be written: {}", written.error().to_string());
    return done(state->commit);
  }

 private:
  Result<Pulled> done(const std::string& commit) const {
    std::string path = cached_.snapshot(commit);
    if (!quant_.empty()) {
      path += "/" + cached_gguf(cached_, commit, quant_).value_or(std::string());
    }
    return Pulled{.path = std::move(path),
                  .repository = cached_.name(),
                  .commit = commit,
                  .bytes_fetched = bytes_fetched_};
  }

  Result<Pulled> from_cache_alone(const std::optional<std::string>& known) const {
    const std::string missing = known ? missing_of(*known) : "";
    if (known && missing.empty()) return done(*known);
    return fail(ErrorCode::kNotFound,
                fmt::format("HF_HUB_OFFLINE is set, and the cache ({}) has {} of {} at '{}'; fetch "
                            "it with `rudder pull {}` where the hub can be reached",
                            settings_.cache, known ? "no " + missing : "nothing", cached_.name(),
                            request_.revision, request_.model),
                "model");
  }

  // What a server needs of a snapshot and it lacks; empty: nothing.
  std::string missing_of(const std::string& commit) const {
    if (quant_.empty()) return missing_of_snapshot(cached_, commit).value_or("");
    return is_whole(commit) || cached_gguf(cached_, commit, quant_) ? "" : quant_;
  }

  bool is_whole(const std::string& commit) const {
    std::ifstream list(list_path(cached_, commit, quant_));
    size_t count = 0;
    for (ListedFile file; list >> file; ++count) {
      if (!is_safe_path(file.path)) return false;
      // A blob that a crash of the machine cut is fetched again.
      if (!has_blob(fmt::format("{}/{}", cached_.snapshot(commit), file.path), file.size)) {
        return false;
      }
    }
    return count > 0 && list.eof();
  }

  Result<void> write_list(const std::string& commit, const std::vector<RemoteFile>& files) const {
    const fs::path path = list_path(cached_, commit, quant_);
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    const std::string written = path.string() + ".tmp";
    {
      std::ofstream list(written, std::ios::trunc);
      for (const RemoteFile& file : files) list << file.size << ' ' << file.path << '\n';
      list.close();
      if (!list) return fail(ErrorCode::kIo, "cannot write it", written);
    }
    fs::rename(written, path, error);
    if (error) return fail(ErrorCode::kIo, error.message(), path.string());
    return {};
  }

  Result<void> fetch_commit(const std::string& commit) {
    std::error_code error;
    fs::create_directories(cached_.folder() + "/blobs", error);
    if (error) {
      return fail(ErrorCode::kIo,
                  fmt::format("the cache cannot be written: {}; HF_HUB_CACHE names another folder",
                              error.message()),
                  settings_.cache);
    }
    tag_cache(settings_.cache);
    RUDDER_TRY(const FileLock lock, FileLock::acquire(cached_.own_lock(), [&] {
                 log_info("another process fetches {}; waiting for it", cached_.name());
               }));
    if (is_whole(commit)) return {};  // it was fetched meanwhile
    remove_stale_snapshots(cached_);
    RUDDER_TRY(const std::vector<RemoteFile> listing, client_->list_files(asked_, commit));
    if (!quant_.empty()) {
      RUDDER_TRY(const std::vector<RemoteFile> parts, select_gguf(listing, quant_, cached_.name()));
      return fetch_files(parts, commit);
    }
    std::vector<RemoteFile> files = select_texts(listing);
    std::string index;
    if (const RemoteFile* file = find_weight_index(listing)) {
      RUDDER_TRY_VOID(fetch_blobs({*file}, commit));
      std::ifstream text(cached_.blob(file->digest), std::ios::binary);
      index.assign(std::istreambuf_iterator<char>(text), std::istreambuf_iterator<char>());
    }
    RUDDER_TRY(const std::vector<RemoteFile> weights,
               select_weights(listing, index, cached_.name()));
    files.insert(files.end(), weights.begin(), weights.end());
    return fetch_files(files, commit);
  }

  Result<void> fetch_files(const std::vector<RemoteFile>& files, const std::string& commit) {
    RUDDER_TRY_VOID(fetch_blobs(files, commit));
    RUDDER_TRY_VOID(publish_snapshot(cached_, commit, files));
    return write_list(commit, files);
  }

  // Those of `files` that the cache lacks. The locks are taken in order of the blobs' names, so
  // that two processes never wait for each other.
  Result<void> fetch_blobs(const std::vector<RemoteFile>& files, const std::string& commit) {
    std::vector<RemoteFile> wanted = files;
    std::sort(wanted.begin(), wanted.end(),
              [](const RemoteFile& a, const RemoteFile& b) { return a.digest < b.digest; });
    wanted.erase(
        std::unique(wanted.begin(), wanted.end(),
                    [](const RemoteFile& a, const RemoteFile& b) { return a.digest == b.digest; }),
        wanted.end());
    std::vector<FileLock> locks;
    std::vector<BlobDownload> blobs;
    int64_t bytes = 0;
    for (RemoteFile& file : wanted) {
      const std::string path = cached_.blob(file.digest);
      if (has_blob(path, file.size)) continue;
      RUDDER_TRY(FileLock lock, FileLock::acquire(cached_.blob_lock(file.digest), [&] {
                   log_info("another process fetches {}; waiting for it", file.path);
                 }));
      if (has_blob(path, file.size)) continue;
      locks.push_back(std::move(lock));
      bytes += file.size - bytes_kept(path, file.size);
      std::string url = file_url(settings_, cached_.name(), commit, file.path);
      blobs.push_back({.file = std::move(file), .url = std::move(url), .blob_path = path});
    }
    if (blobs.empty()) return {};
    RUDDER_TRY_VOID(check_space(bytes));
    // Large files first: the last connections then end together.
    std::stable_sort(blobs.begin(), blobs.end(), [](const BlobDownload& a, const BlobDownload& b) {
      return a.file.size > b.file.size;
    });
    const ProgressFn progress =
        make_progress_ ? make_progress_(fmt::format("fetching {}", cached_.name())) : ProgressFn();
    RUDDER_TRY_VOID(
        download_blobs(settings_, cached_.name(), std::move(blobs), request_.download, progress));
    bytes_fetched_ += bytes;
    return {};
  }

  Result<void> check_space(int64_t bytes) const {
    const std::optional<int64_t> there = free_bytes(cached_.folder());
    if (!there || bytes + kSpareBytes <= *there) return {};
    return fail(
        ErrorCode::kIo,
        fmt::format("{} needs {} more, and {} has {} free; nothing was "
                    "fetched. `rudder models` shows what the cache holds, HF_HUB_CACHE names "
                    "another folder",
                    cached_.name(), size_text(bytes + kSpareBytes), settings_.cache,
                    size_text(*there)),
        settings_.cache);
  }

  const HubSettings& settings_;
  const PullRequest& request_;
  const std::string quant_;  // empty: the repository's own weights
  const CachedRepository cached_;
  const AskedFor asked_;
  const MakeProgress& make_progress_;
  std::unique_ptr<HubClient> client_;
  int64_t bytes_fetched_ = 0;
};

}  // namespace

Result<Pulled> pull(const HubSettings& settings, const PullRequest& request,
                    const MakeProgress& make_progress) {
  RUDDER_TRY(ModelName name, parse_model_name(request.model));
  RUDDER_TRY_VOID(check_revision(request.revision));
  return Puller(settings, request, std::move(name), make_progress).run();
}

}  // namespace rudder::hub
