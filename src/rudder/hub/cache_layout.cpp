#include "rudder/hub/cache_layout.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "rudder/hub/model_name.h"

namespace rudder::hub {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "models--";

std::string folder_name_of(const std::string& repository) {
  std::string name(kPrefix);
  for (const char c : repository) name += c == '/' ? std::string("--") : std::string(1, c);
  return name;
}

}  // namespace

CachedRepository::CachedRepository(std::string cache, std::string repository)
    : cache_(std::move(cache)), name_(std::move(repository)), folder_name_(folder_name_of(name_)) {}

std::string CachedRepository::folder() const {
  return fmt::format("{}/{}", cache_, folder_name_);
}

std::string CachedRepository::blob(std::string_view digest) const {
  return fmt::format("{}/blobs/{}", folder(), digest);
}

std::string CachedRepository::snapshot(std::string_view commit) const {
  return fmt::format("{}/snapshots/{}", folder(), commit);
}

std::string CachedRepository::locks() const {
  return fmt::format("{}/.locks/{}", cache_, folder_name_);
}

std::string CachedRepository::blob_lock(std::string_view digest) const {
  return fmt::format("{}/{}.lock", locks(), digest);
}

std::string CachedRepository::own_folder() const {
  return folder() + "/.rudder";
}

std::string CachedRepository::own_lock() const {
  return fmt::format("{}/rudder.lock", locks());
}

std::optional<std::string> CachedRepository::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  std::ifstream file(fmt::format("{}/refs/{}", folder(), revision), std::ios::binary);
  std::string text(64, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (!is_commit(text)) return std::nullopt;
  return text;
}

Result<void> CachedRepository::write_ref(const std::string& revision,
                                         const std::string& commit) const {
  if (is_commit(revision) || commit_of(revision) == commit) return {};
  const fs::path path = fmt::format("{}/refs/{}", folder(), revision);
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  // Not beside it, where other tools take whatever they find for a revision.
  fs::create_directories(own_folder(), error);
  const std::string written = fmt::format("{}/ref.{}.tmp", own_folder(), getpid());
  {
    std::ofstream file(written, std::ios::binary | std::ios::trunc);
    file << commit;
    file.close();
    if (!file) return fail(ErrorCode::kIo, "cannot write it", written);
  }
  fs::rename(written, path, error);
  if (!error) return {};
  std::error_code ignored;
  fs::remove(written, ignored);
  return fail(ErrorCode::kIo, error.message(), path.string());
}

std::optional<std::string> repository_of_folder(std::string_view folder_name) {
  if (!folder_name.starts_with(kPrefix)) return std::nullopt;
  std::string name(folder_name.substr(kPrefix.size()));
  if (const size_t at = name.find("--"); at != std::string::npos) name.replace(at, 2, "/");
  const auto parsed = parse_model_name(name);
  if (!parsed || !parsed->quant.empty()) return std::nullopt;
  return name;
}

std::optional<std::string> repository_of_snapshot(const std::string& path) {
  fs::path folder = fs::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  if (!is_commit(folder.filename().string())) return std::nullopt;
  folder = folder.parent_path();
  if (folder.filename() != "snapshots") return std::nullopt;
  return repository_of_folder(folder.parent_path().filename().string());
}

}  // namespace rudder::hub
