#include "rudder/weights/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace rudder::weights {
namespace {

tl::unexpected<Error> system_error(const std::string& path, const char* what) {
  const auto code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
  return fail(code, fmt::format("cannot {} it: {}", what, std::strerror(errno)), path);
}

// An open descriptor of a regular file, closed by the caller, and its status.
Result<int> open_regular(const std::string& path, struct stat& status) {
  // O_NONBLOCK: a named pipe must not hang the start.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error(path, "open");
  if (::fstat(fd, &status) != 0) {
    ::close(fd);
    return system_error(path, "stat");
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(fd);
    return fail(ErrorCode::kCorruptFile, "it is not a regular file", path);
  }
  return fd;
}

// What a clone without Git LFS has in place of a large file: a few lines that say which it is.
Result<void> check_no_pointer(std::string_view content, const std::string& path) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  if (!content.starts_with(kBegin)) return {};
  return fail(ErrorCode::kCorruptFile,
              "it is a Git LFS pointer, not the file that it stands for: fetch that one with "
              "`git lfs pull`",
              path);
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  std::shared_ptr<MappedFile> file(new MappedFile(path));
  RUDDER_TRY(file->fd_, open_regular(path, file->status_));
  const auto size = static_cast<size_t>(file->status_.st_size);
  if (size > 0) {
    void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file->fd_, 0);
    if (start == MAP_FAILED) return system_error(path, "map");
    file->bytes_ = {static_cast<const std::byte*>(start), size};
    RUDDER_TRY_VOID(check_no_pointer({static_cast<const char*>(start), size}, path));
  }
  RUDDER_TRY_VOID(file->check_unchanged());
  return file;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (fd_ >= 0) ::close(fd_);
}

Result<void> MappedFile::check_unchanged() const {
  struct stat now = {};
  if (::fstat(fd_, &now) != 0) return system_error(path_, "stat");
  if (now.st_size != status_.st_size || now.st_mtim.tv_sec != status_.st_mtim.tv_sec ||
      now.st_mtim.tv_nsec != status_.st_mtim.tv_nsec) {
    return fail(ErrorCode::kCorruptFile, "it changed while it was being read", path_);
  }
  return {};
}

// The mapping is read only, so no page of it differs from the file.
void MappedFile::release_pages() const {
  if (bytes_.empty()) return;
  ::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

void prefetch_pages(std::span<const std::byte> range) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(range.data()) & ~(page - 1);
  const auto end = reinterpret_cast<uintptr_t>(range.data()) + range.size();
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes) {
  struct stat status = {};
  RUDDER_TRY(const int fd, open_regular(path, status));
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size > max_bytes) {
    ::close(fd);
    return fail(ErrorCode::kTooLarge,
                fmt::format("it has {} bytes, the limit is {}", size, max_bytes), path);
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      ::close(fd);
      if (n < 0) return system_error(path, "read");
      return fail(ErrorCode::kCorruptFile, "it became shorter while it was being read", path);
    }
    done += static_cast<size_t>(n);
  }
  ::close(fd);
  RUDDER_TRY_VOID(check_no_pointer(text, path));
  return text;
}

}  // namespace rudder::weights
