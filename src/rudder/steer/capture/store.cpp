#include "rudder/steer/capture/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/clock.h"

namespace rudder::steer::capture {
namespace {

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr const char* kPartial = ".partial";
constexpr int kMaxSuffix = 10000;
constexpr size_t kWriteBackBytes = 256 << 10;  // as many as a disk takes in one piece

tl::unexpected<Error> system_error(const char* what, const std::string& path) {
  return fail(ErrorCode::kIo, fmt::format("cannot {}: {}", what, std::strerror(errno)), path);
}

std::vector<std::string> names_in(int folder) {
  std::vector<std::string> names;
  DIR* dir = ::fdopendir(::openat(folder, ".", kFolderFlags));
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir)) {  // NOLINT(concurrency-mt-unsafe)
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(dir);
  return names;
}

void remove_folder(int parent, const std::string& name) {
  const Fd folder(::openat(parent, name.c_str(), kFolderFlags));
  if (!folder.is_open()) return;
  for (const std::string& file : names_in(folder.get())) ::unlinkat(folder.get(), file.c_str(), 0);
  ::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this == &other) return *this;
  close();
  fd_ = other.release();
  return *this;
}

void Fd::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

int Fd::release() {
  return std::exchange(fd_, -1);
}

Result<void> Folder::sync() const {
  if (::fsync(fd.get()) == 0) return {};
  return system_error("flush the folder", path);
}

PartialFile::~PartialFile() {
  if (exists_) ::unlinkat(store_->partial_.get(), name_.c_str(), 0);
}

Result<void> PartialFile::open() {
  const int flags = O_WRONLY | O_APPEND | O_CLOEXEC | (exists_ ? 0 : O_CREAT | O_EXCL);
  fd_ = Fd(::openat(store_->partial_.get(), name_.c_str(), flags, 0644));
  if (!fd_.is_open()) return system_error("open a file", kPartial);
  exists_ = true;
  return {};
}

Result<void> PartialFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("write", kPartial);
    bytes = bytes.subspan(static_cast<size_t>(n));
    not_started_ += static_cast<size_t>(n);
  }
  if (not_started_ >= kWriteBackBytes) start_write_back();
  return {};
}

// A file system that cannot does all of it in fsync().
void PartialFile::start_write_back() {
  if (!store_->is_durable() || not_started_ == 0) return;
  not_started_ = 0;
  static_cast<void>(::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE));
}

Result<void> PartialFile::publish(const Folder& folder, const std::string& name) {
  const std::string path = fmt::format("{}/{}", folder.path, name);
  if (store_->is_durable() && ::fsync(fd_.get()) != 0) return system_error("flush", path);
  // Network file systems report a full disk here.
  if (::close(fd_.release()) != 0) return system_error("close", path);
  if (::renameat(store_->partial_.get(), name_.c_str(), folder.fd.get(), name.c_str()) != 0) {
    return system_error("rename", path);
  }
  exists_ = false;
  return {};
}

Result<std::shared_ptr<Store>> Store::open(const std::string& root, bool durable) {
  if (::mkdir(root.c_str(), 0755) != 0 && errno != EEXIST) return system_error("make it", root);
  std::shared_ptr<Store> store(new Store(root, durable));
  store->root_fd_ = Fd(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!store->root_fd_.is_open()) return system_error("open it", root);
  RUDDER_TRY_VOID(store->open_partial());
  return store;
}

Result<void> Store::open_partial() {
  RUDDER_TRY(all_partial_, make_folder(root_fd_, kPartial, kPartial, nullptr));
  // Held while folders of the dead are removed and the own one is locked, so that another process
  // does not take this for one of them.
  if (::flock(all_partial_.get(), LOCK_EX) != 0) return system_error("lock .partial", root_);
  for (const std::string& name : names_in(all_partial_.get())) {
    const Fd folder(::openat(all_partial_.get(), name.c_str(), kFolderFlags));
    if (!folder.is_open() || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) continue;
    remove_folder(all_partial_.get(), name);
  }
  partial_name_ = fmt::format("{}-{}", ::getpid(), SteadyClock().now_us());
  RUDDER_TRY(partial_, make_folder(all_partial_, partial_name_, kPartial, nullptr));
  if (::flock(partial_.get(), LOCK_EX | LOCK_NB) != 0) return system_error("lock .partial", root_);
  ::flock(all_partial_.get(), LOCK_UN);
  return {};
}

Store::~Store() {
  if (partial_.is_open()) remove_folder(all_partial_.get(), partial_name_);
}

Result<Fd> Store::make_folder(const Fd& parent, const std::string& name, const std::string& path,
                              bool* is_new) {
  const bool made = ::mkdirat(parent.get(), name.c_str(), 0755) == 0;
  if (!made && errno != EEXIST) return system_error("make the folder", path);
  if (is_new != nullptr) *is_new = made;
  Fd folder(::openat(parent.get(), name.c_str(), kFolderFlags));
  if (!folder.is_open()) return system_error("open the folder", path);
  const bool must_sync = made && durable_ && is_new == nullptr;
  if (must_sync && ::fsync(parent.get()) != 0) return system_error("flush", path);
  return folder;
}

Result<Folder> Store::tag_folder(const std::string& tag) {
  RUDDER_TRY(Fd fd, make_folder(root_fd_, tag, tag, nullptr));
  return Folder{std::move(fd), tag, false};
}

Result<Folder> Store::request_folder(const std::string& tag, const std::string& request,
                                     OnCollision on_collision) {
  RUDDER_TRY(const Folder parent, tag_folder(tag));
  for (int suffix = 1; suffix < kMaxSuffix; ++suffix) {
    const std::string name = suffix == 1 ? request : fmt::format("{}-{}", request, suffix);
    const std::string path = fmt::format("{}/{}", tag, name);
    bool is_new = false;
    RUDDER_TRY(Fd fd, make_folder(parent.fd, name, path, &is_new));
    if (is_new || on_collision == OnCollision::kOverwrite) {
      return Folder{std::move(fd), path, is_new};
    }
    if (on_collision == OnCollision::kError) {
      return fail(ErrorCode::kIo, "a capture of this name is there already", path);
    }
  }
  return fail(ErrorCode::kIo, "too many captures of this name", fmt::format("{}/{}", tag, request));
}

Result<void> Store::sync(const Folder& folder) {
  RUDDER_TRY_VOID(folder.sync());
  if (!folder.is_new) return {};
  RUDDER_TRY(const Folder parent, tag_folder(folder.path.substr(0, folder.path.find('/'))));
  return parent.sync();
}

void Store::remove_if_empty(const Folder& folder) {
  ::unlinkat(root_fd_.get(), folder.path.c_str(), AT_REMOVEDIR);
}

std::unique_ptr<PartialFile> Store::new_file() {
  static std::atomic<uint64_t> next{1};
  return std::make_unique<PartialFile>(shared_from_this(), fmt::format("{}", next.fetch_add(1)));
}

}  // namespace rudder::steer::capture
