#include "rudder/exec/record_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

namespace rudder::exec {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kSuffix = ".kv";
constexpr std::string_view kHalf = ".half";
constexpr size_t kStem = 16 + 16 + 1 + 8;  // key, dash, parts

// A file descriptor that closes itself.
class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

Result<void> io_error(const std::string& path) {
  return fail(ErrorCode::kIo, fmt::format("{}: {}", path, std::strerror(errno)), "kv-disk-dir");
}

std::optional<step::StoredRecord> record_of(const std::string& stem) {
  if (stem.size() != kStem || stem[32] != '-') return {};
  const auto number = [&](size_t begin, size_t count) -> std::optional<uint64_t> {
    uint64_t value = 0;
    for (const char c : std::string_view(stem).substr(begin, count)) {
      const auto digit = std::string_view("0123456789abcdef").find(c);
      if (digit == std::string_view::npos) return {};
      value = value << 4U | digit;
    }
    return value;
  };
  const auto high = number(0, 16);
  const auto low = number(16, 16);
  const auto parts = number(33, 8);
  if (!high || !low || !parts || *parts == 0) return {};
  return step::StoredRecord{.key = {.low = *low, .high = *high},
                            .parts = static_cast<step::RecordParts>(*parts)};
}

Result<void> write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return io_error(path);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Result<void> make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", folder, error.message()),
                "kv-disk-dir");
  }
  return {};
}

}  // namespace

Result<RecordFiles> RecordFiles::open(const std::string& folder) {
  RUDDER_TRY_VOID(make_folder(folder));
  const std::string lock_path = folder + "/lock";
  File lock(lock_path, O_RDWR | O_CREAT);
  if (lock.fd() < 0) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", lock_path, std::strerror(errno)),
                "kv-disk-dir");
  }
  if (::flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("another process has {}", folder),
                "kv-disk-dir");
  }
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == kHalf) fs::remove(entry.path(), error);
  }
  return RecordFiles(folder, lock.take());
}

RecordFiles::RecordFiles(RecordFiles&& other) noexcept
    : folder_(std::move(other.folder_)), lock_(std::exchange(other.lock_, -1)) {}

RecordFiles& RecordFiles::operator=(RecordFiles&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(lock_, other.lock_);
  return *this;
}

RecordFiles::~RecordFiles() {
  if (lock_ >= 0) ::close(lock_);
}

std::string RecordFiles::path_of(const step::RecordKey& key, step::RecordParts parts) const {
  return fmt::format("{}/{:016x}{:016x}-{:08x}{}", folder_, key.high, key.low, parts, kSuffix);
}

// Of two files of one key the one that was used last is listed last.
std::vector<step::StoredRecord> RecordFiles::list() const {
  std::vector<std::pair<fs::file_time_type, step::StoredRecord>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    if (entry.path().extension() != kSuffix) continue;
    const std::optional<step::StoredRecord> record = record_of(entry.path().stem().string());
    if (record) found.emplace_back(entry.last_write_time(error), *record);
  }
  std::ranges::stable_sort(found, {}, [](const auto& one) { return one.first; });
  std::vector<step::StoredRecord> records;
  records.reserve(found.size());
  for (const auto& [time, record] : found) records.push_back(record);
  return records;
}

// No sync: after a crash of the machine a file may be torn, which its checksum tells.
Result<void> RecordFiles::write(const step::RecordKey& key, step::RecordParts parts,
                                std::span<const std::byte> record) {
  const std::string path = path_of(key, parts);
  const std::string half = path + std::string(kHalf);
  Result<void> written;
  {
    const File file(half, O_WRONLY | O_CREAT | O_TRUNC);
    written = file.fd() < 0 ? io_error(half) : write_all(file.fd(), record, half);
  }
  if (written && ::rename(half.c_str(), path.c_str()) != 0) written = io_error(path);
  if (!written) ::unlink(half.c_str());
  return written;
}

Result<void> RecordFiles::read(const step::RecordKey& key, step::RecordParts parts,
                               std::span<std::byte> record) const {
  const std::string path = path_of(key, parts);
  const File file(path, O_RDONLY);
  if (file.fd() < 0) {
    if (errno == ENOENT) return fail(ErrorCode::kNotFound, path, "kv-disk-dir");
    return io_error(path);
  }
  struct stat status = {};
  if (::fstat(file.fd(), &status) != 0) return io_error(path);
  if (std::cmp_not_equal(status.st_size, record.size())) {
    return fail(ErrorCode::kIo,
                fmt::format("{} has {} bytes, not {}", path, status.st_size, record.size()),
                "kv-disk-dir");
  }
  while (!record.empty()) {
    const ssize_t got = ::read(file.fd(), record.data(), record.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return io_error(path);
    record = record.subspan(static_cast<size_t>(got));
  }
  ::futimens(file.fd(), nullptr);  // it was of use now
  return {};
}

void RecordFiles::erase(const step::RecordKey& key, step::RecordParts parts) const {
  ::unlink(path_of(key, parts).c_str());
}

Result<std::string> folder_secret(const std::string& folder) {
  RUDDER_TRY_VOID(make_folder(folder));
  const std::string path = folder + "/secret";
  std::array<char, 32> text = {};
  {
    const File made(path, O_WRONLY | O_CREAT | O_EXCL);
    if (made.fd() >= 0) {
      std::array<uint8_t, 16> drawn = {};
      if (::getrandom(drawn.data(), drawn.size(), 0) != std::ssize(drawn)) {
        return tl::unexpected(io_error(path).error());
      }
      std::string written;
      for (const uint8_t byte : drawn) written += fmt::format("{:02x}", byte);
      RUDDER_TRY_VOID(write_all(made.fd(), std::as_bytes(std::span(written)), path));
      return written;
    }
  }
  const File file(path, O_RDONLY);
  if (file.fd() < 0 || ::read(file.fd(), text.data(), text.size()) != std::ssize(text)) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} holds no secret", path),
                "kv-disk-dir");
  }
  return std::string(text.data(), text.size());
}

}  // namespace rudder::exec
