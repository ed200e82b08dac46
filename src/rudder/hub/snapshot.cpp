#include "rudder/hub/snapshot.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "rudder/hub/file_selection.h"

namespace rudder::hub {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kUnfinished = ".unfinished-";
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

bool has_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string read_small(const fs::path& path) {
  std::error_code error;
  if (fs::file_size(path, error) > kMaxIndexBytes || error) return {};
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool has_weights_of_another_name(const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator entries(folder, error);
  return !error && std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".safetensors" && has_file(entry.path());
  });
}

// By paths and sizes; links whose blob is gone are none.
std::vector<RemoteFile> files_of(const fs::path& folder) {
  std::vector<RemoteFile> files;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    const auto size = static_cast<int64_t>(fs::file_size(at->path(), ignored));
    if (!has_file(at->path()) || ignored || files.size() == kMaxListedFiles) continue;
    files.push_back({.path = at->path().lexically_relative(folder).generic_string(), .size = size});
  }
  return files;
}

// One link, relative, so that a cache can be moved.
Result<void> link_file(const fs::path& snapshot, const RemoteFile& file) {
  const fs::path path = snapshot / file.path;
  if (has_file(path)) return {};
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return fail(ErrorCode::kIo, error.message(), path.parent_path().string());
  std::string target = "../../";
  for (const char c : file.path) target += c == '/' ? "../" : "";
  target += "blobs/" + file.digest;
  fs::remove(path, error);  // a link whose blob is gone
  if (symlink(target.c_str(), path.c_str()) == 0) return {};
  return fail(ErrorCode::kIo,
              fmt::format("cannot make a link: {}; the cache needs a file system that has symbolic "
                          "links (HF_HUB_CACHE names another folder)",
                          std::strerror(errno)),
              path.string());
}

Result<void> link_files(const fs::path& snapshot, const std::vector<RemoteFile>& files) {
  // What tells of a whole snapshot comes last.
  for (const bool is_last : {false, true}) {
    for (const RemoteFile& file : files) {
      if ((file.path == "config.json") == is_last) RUDDER_TRY_VOID(link_file(snapshot, file));
    }
  }
  return {};
}

}  // namespace

std::optional<std::string> missing_of_snapshot(const CachedRepository& cached,
                                               const std::string& commit) {
  const fs::path folder = cached.snapshot(commit);
  if (!has_file(folder / "config.json")) return "config.json";
  if (has_file(folder / "model.safetensors")) return std::nullopt;
  const fs::path index = folder / "model.safetensors.index.json";
  if (!has_file(index)) {
    if (has_weights_of_another_name(folder)) return std::nullopt;
    return "model.safetensors";
  }
  const auto shards = shards_of_index(read_small(index));
  if (!shards) return index.filename().string();
  for (const std::string& shard : *shards) {
    if (!has_file(folder / shard)) return shard;
  }
  return std::nullopt;
}

std::istream& operator>>(std::istream& in, ListedFile& file) {
  in >> file.size;
  if (in.get() != ' ') in.setstate(std::ios::failbit);
  return std::getline(in, file.path);
}

std::string list_path(const CachedRepository& cached, const std::string& commit,
                      std::string_view quant) {
  return fmt::format("{}/{}{}{}", cached.own_folder(), commit, quant.empty() ? "" : "-", quant);
}

std::optional<std::string> cached_gguf(const CachedRepository& cached, const std::string& commit,
                                       std::string_view quant) {
  const auto is_there = [&](const ListedFile& file) {
    return is_safe_path(file.path) && has_file(fs::path(cached.snapshot(commit)) / file.path);
  };
  std::ifstream list(list_path(cached, commit, quant));
  const std::vector<ListedFile> pulled{std::istream_iterator<ListedFile>(list), {}};
  if (!pulled.empty() && std::ranges::all_of(pulled, is_there)) return pulled.front().path;
  const auto files = select_gguf(files_of(cached.snapshot(commit)), quant, cached.name(), false);
  if (!files) return std::nullopt;
  return files->front().path;
}

bool has_gguf_alone(const CachedRepository& cached, const std::string& commit) {
  const std::vector<RemoteFile> files = files_of(cached.snapshot(commit));
  const auto has = [&](std::string_view suffix) {
    return std::any_of(files.begin(), files.end(), [&](const RemoteFile& file) {
      return std::string_view(file.path).ends_with(suffix);
    });
  };
  return has(".gguf") && !has(".safetensors") && !has(".safetensors.index.json");
}

Result<void> publish_snapshot(const CachedRepository& cached, const std::string& commit,
                              const std::vector<RemoteFile>& files) {
  const fs::path snapshot = cached.snapshot(commit);
  std::error_code error;
  fs::create_directories(snapshot.parent_path(), error);
  if (error) return fail(ErrorCode::kIo, error.message(), snapshot.parent_path().string());
  if (fs::exists(snapshot, error)) return link_files(snapshot, files);
  // As deep as a snapshot, so that its links lead to the same blobs before and after the rename.
  const fs::path made =
      fs::path(cached.folder()) / fmt::format("{}{}", kUnfinished, getpid()) / commit;
  fs::create_directories(made, error);
  if (error) return fail(ErrorCode::kIo, error.message(), made.string());
  Result<void> linked = link_files(made, files);
  if (linked) {
    fs::rename(made, snapshot, error);
    // Another tool began it meanwhile.
    if (error && fs::is_directory(snapshot)) {
      linked = link_files(snapshot, files);
    } else if (error) {
      linked = fail(ErrorCode::kIo, error.message(), snapshot.string());
    }
  }
  fs::remove_all(made.parent_path(), error);
  return linked;
}

void remove_stale_snapshots(const CachedRepository& cached) {
  std::error_code error;
  for (fs::directory_iterator at(cached.folder(), error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    if (at->path().filename().string().starts_with(kUnfinished)) {
      fs::remove_all(at->path(), ignored);
    }
  }
}

}  // namespace rudder::hub
