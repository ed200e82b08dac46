// A recording: what is read of it is written as bytes that are read as the same. Its checksums are
// made right first, so that changed bytes reach the readers of plans, masks and results.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "require.h"
#include "rudder/base/siphash.h"
#include "rudder/record/recording.h"

namespace rudder::fuzz {
namespace {

using record::Record;
using record::RecordingReader;
using record::RecordingWriter;

constexpr size_t kMagicBytes = 8;
constexpr size_t kRecordHead = 17;  // kind, length, checksum

// A file in memory, by a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("recording", MFD_CLOEXEC)) {
    RUDDER_CHECK(fd_ >= 0);
    RUDDER_CHECK(::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  const int fd_;
};

std::string with_checksums(std::string_view input) {
  std::string bytes(input);
  for (size_t at = kMagicBytes; at + kRecordHead <= bytes.size();) {
    uint64_t length = 0;
    std::memcpy(&length, &bytes[at + 1], sizeof length);
    if (length > bytes.size() - at - kRecordHead) break;
    SipHash128 hash({0, 0});
    hash.update(static_cast<uint8_t>(bytes[at]));
    hash.update(length);
    hash.update(std::as_bytes(std::span(bytes).subspan(at + kRecordHead, length)));
    const uint64_t checksum = hash.finish()[0];
    std::memcpy(&bytes[at + 9], &checksum, sizeof checksum);
    at += kRecordHead + length;
  }
  return bytes;
}

std::vector<Record> records_of(RecordingReader& reader) {
  std::vector<Record> records;
  while (true) {
    auto record = reader.next();
    if (!record) require_error(record.error(), {ErrorCode::kCorruptFile});
    if (!record || !*record) return records;
    records.push_back(std::move(**record));
  }
}

// The bytes of a recording of these records.
std::string written(const record::RecordingHeader& header, const std::vector<Record>& records) {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string path = (folder / fmt::format("rudder_fuzz_recording_{}", ::getpid())).string();
  std::filesystem::remove(path);
  std::string bytes;
  {
    const auto writer = RecordingWriter::create(path, header, int64_t{1} << 30);
    RUDDER_CHECK(writer.has_value(), "{}", writer.error().to_string());
    for (const Record& record : records) {
      const auto done =
          std::visit([&](const auto& value) { return (*writer)->write(value); }, record);
      RUDDER_CHECK(done.has_value(), "{}", done.error().to_string());
    }
  }
  bytes.resize(std::filesystem::file_size(path));
  const record::File file(std::fopen(path.c_str(), "rb"));
  RUDDER_CHECK(std::fread(bytes.data(), 1, bytes.size(), file.get()) == bytes.size());
  std::filesystem::remove(path);
  return bytes;
}

}  // namespace

void fuzz_recording(std::string_view input) {
  const MemoryFile file(with_checksums(input));
  const auto reader = RecordingReader::open(file.path());
  if (!reader) return require_error(reader.error(), {ErrorCode::kCorruptFile}, file.path());
  const std::vector<Record> records = records_of(**reader);
  const std::string bytes = written((*reader)->header(), records);

  const MemoryFile again(bytes);
  const auto second = RecordingReader::open(again.path());
  RUDDER_CHECK(second.has_value(), "{}", second.error().to_string());
  const std::vector<Record> same = records_of(**second);
  RUDDER_CHECK(same.size() == records.size(), "{} of {} records", same.size(), records.size());
  RUDDER_CHECK(written((*second)->header(), same) == bytes,
               "a record is another one when it is read again");
}

}  // namespace rudder::fuzz
