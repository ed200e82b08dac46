#include "rudder/hub/partial_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

namespace rudder::hub {
namespace {

// Not the name that older versions of huggingface_hub go on with: these append, and would take a
// file with gaps for its beginning.
std::string bytes_path(const std::string& blob_path) {
  return blob_path + ".rudder.incomplete";
}

std::string ranges_path(const std::string& blob_path) {
  return blob_path + ".rudder-ranges.incomplete";
}

tl::unexpected<Error> file_error(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo, fmt::format("cannot {} it: {}", what, std::strerror(errno)), path);
}

std::optional<Ranges> read_ranges(const std::string& blob_path, int64_t size) {
  constexpr int64_t kMaxTextBytes = int64_t{1} << 20;
  std::ifstream file(ranges_path(blob_path), std::ios::binary);
  std::string text(kMaxTextBytes, '\0');
  file.read(text.data(), kMaxTextBytes);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  std::optional<Ranges> ranges = Ranges::from_text(text, size);
  struct stat status = {};
  const bool is_file =
      lstat(bytes_path(blob_path).c_str(), &status) == 0 && S_ISREG(status.st_mode);
  if (!ranges || !is_file) return std::nullopt;
  for (const Range& range : ranges->all()) {
    if (range.done > 0 && range.next() > status.st_size) return std::nullopt;
  }
  return ranges;
}

}  // namespace

PartialFile::PartialFile(std::string blob_path, int fd, Ranges ranges)
    : blob_path_(std::move(blob_path)),
      path_(bytes_path(blob_path_)),
      ranges_path_(ranges_path(blob_path_)),
      range_bytes_(ranges.all().empty() ? 1 : ranges.all().front().end),
      fd_(fd),
      ranges_(std::move(ranges)) {}

PartialFile::~PartialFile() {
  close(fd_);
}

Result<std::unique_ptr<PartialFile>> PartialFile::open(const std::string& blob_path, int64_t size,
                                                       int64_t range_bytes) {
  std::optional<Ranges> kept = read_ranges(blob_path, size);
  const std::string path = bytes_path(blob_path);
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (kept ? 0 : O_TRUNC);
  const int fd = ::open(path.c_str(), flags, 0666);
  if (fd < 0) return file_error(path, "open");
  return std::unique_ptr<PartialFile>(
      new PartialFile(blob_path, fd, kept ? std::move(*kept) : Ranges(size, range_bytes)));
}

Result<void> PartialFile::write(int64_t offset, std::span<const char> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(path_, "write");
    offset += count;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return {};
}

Result<void> PartialFile::save_ranges() const {
  // Whole or not at all: a reader of half of it would begin anew.
  const std::string new_path = ranges_path_ + ".new.incomplete";
  {
    std::ofstream file(new_path, std::ios::binary | std::ios::trunc);
    file << ranges_.to_text();
    file.close();
    if (!file) return file_error(new_path, "write");
  }
  if (std::rename(new_path.c_str(), ranges_path_.c_str()) == 0) return {};
  return file_error(ranges_path_, "write");
}

Result<void> PartialFile::restart() {
  ranges_ = Ranges(ranges_.size(), range_bytes_);
  if (ftruncate(fd_, 0) != 0) return file_error(path_, "empty");
  return save_ranges();
}

Result<void> PartialFile::publish() {
  if (fsync(fd_) != 0) return file_error(path_, "write");
  if (std::rename(path_.c_str(), blob_path_.c_str()) != 0) return file_error(blob_path_, "write");
  std::error_code ignored;
  std::filesystem::remove(ranges_path_, ignored);
  return {};
}

int64_t bytes_kept(const std::string& blob_path, int64_t size) {
  const std::optional<Ranges> kept = read_ranges(blob_path, size);
  return kept ? kept->bytes_done() : 0;
}

}  // namespace rudder::hub
