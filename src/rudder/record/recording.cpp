#include "rudder/record/recording.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rudder/base/siphash.h"
#include "rudder/record/plan_fields.h"

namespace rudder::record {

namespace {

constexpr std::array<char, 8> kMagic = {'R', 'U', 'D', 'D', 'R', 'R', 'E', 'C'};
constexpr uint8_t kHeaderKind = 0;
constexpr uint8_t kPlanKind = 1;
constexpr uint8_t kMasksKind = 2;
constexpr uint8_t kResultKind = 3;

// What stands before a payload.
struct Frame {
  uint8_t kind = 0;
  uint64_t length = 0;
  uint64_t checksum = 0;
};
constexpr size_t kFrameBytes = 17;

uint64_t checksum_of(uint8_t kind, std::span<const std::byte> payload) {
  SipHash128 hash({0, 0});
  hash.update(kind);
  hash.update(payload.size());
  hash.update(payload);
  return hash.finish()[0];
}

tl::unexpected<Error> io_error(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo,
              fmt::format("the recording cannot be {}: {}", what, std::strerror(errno)), path);
}

template <typename T>
std::optional<T> parse(std::span<const std::byte> payload) {
  ArchiveReader archive(payload);
  T value;
  archive(value);
  if (!archive.complete()) return std::nullopt;
  return value;
}

template <typename T>
std::optional<Record> parse_record(std::span<const std::byte> payload) {
  std::optional<T> value = parse<T>(payload);
  if (!value) return std::nullopt;
  return Record(std::move(*value));
}

std::optional<Record> parse_record(uint8_t kind, std::span<const std::byte> payload) {
  switch (kind) {
    case kPlanKind:
      return parse_record<step::StepPlan>(payload);
    case kMasksKind:
      return parse_record<SuppliedMasks>(payload);
    case kResultKind:
      return parse_record<step::StepResult>(payload);
    default:
      return std::nullopt;
  }
}

}  // namespace

Result<std::unique_ptr<RecordingWriter>> RecordingWriter::create(const std::string& path,
                                                                 const RecordingHeader& header,
                                                                 int64_t max_bytes) {
  File file(std::fopen(path.c_str(), "wbx"));
  if (file == nullptr) return io_error(path, "created");
  std::unique_ptr<RecordingWriter> writer(new RecordingWriter(path, std::move(file), max_bytes));
  RUDDER_TRY_VOID(writer->append(std::as_bytes(std::span(kMagic))));
  writer->archive_(header);
  RUDDER_TRY_VOID(writer->append_record(kHeaderKind));
  return writer;
}

template <typename T>
Result<void> RecordingWriter::write_as(uint8_t kind, const T& value) {
  if (is_full_) return {};
  archive_.clear();
  archive_(value);
  return append_record(kind);
}

Result<void> RecordingWriter::write(const step::StepPlan& plan) {
  return write_as(kPlanKind, plan);
}
Result<void> RecordingWriter::write(const SuppliedMasks& masks) {
  return write_as(kMasksKind, masks);
}
Result<void> RecordingWriter::write(const step::StepResult& result) {
  return write_as(kResultKind, result);
}

Result<void> RecordingWriter::append_record(uint8_t kind) {
  const std::span<const std::byte> payload = archive_.bytes();
  is_full_ = num_bytes_ + static_cast<int64_t>(kFrameBytes + payload.size()) > max_bytes_;
  if (is_full_) return {};
  ArchiveWriter frame;
  frame(kind, uint64_t{payload.size()}, checksum_of(kind, payload));
  RUDDER_TRY_VOID(append(frame.bytes()));
  RUDDER_TRY_VOID(append(payload));
  if (std::fflush(file_.get()) != 0) return io_error(path_, "written");
  return {};
}

Result<void> RecordingWriter::append(std::span<const std::byte> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
    return io_error(path_, "written");
  }
  num_bytes_ += static_cast<int64_t>(bytes.size());
  return {};
}

Result<std::unique_ptr<RecordingReader>> RecordingReader::open(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr || std::fseek(file.get(), 0, SEEK_END) != 0) return io_error(path, "opened");
  const int64_t num_bytes = std::ftell(file.get());
  if (num_bytes < 0 || std::fseek(file.get(), 0, SEEK_SET) != 0) return io_error(path, "read");
  std::unique_ptr<RecordingReader> reader(new RecordingReader(path, std::move(file), num_bytes));
  RUDDER_TRY_VOID(reader->read_header());
  return reader;
}

Result<void> RecordingReader::read_header() {
  std::array<char, kMagic.size()> magic = {};
  RUDDER_TRY_VOID(read(std::as_writable_bytes(std::span(magic))));
  if (magic != kMagic) return damaged(0, "this is no recording");
  RUDDER_TRY(const uint8_t kind, read_record());
  std::optional<RecordingHeader> header = parse<RecordingHeader>(payload_);
  if (kind != kHeaderKind || !header) {
    return damaged(kMagic.size(), "its header is not of a version that this build reads");
  }
  if (header->version != kRecordingVersion) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("the recording has version {}, this build reads version {}",
                            header->version, kRecordingVersion),
                path_);
  }
  header_ = std::move(*header);
  return {};
}

Result<std::optional<Record>> RecordingReader::next() {
  if (at_ == num_bytes_) return std::optional<Record>();
  const int64_t begin = at_;
  RUDDER_TRY(const uint8_t kind, read_record());
  std::optional<Record> record = parse_record(kind, payload_);
  if (!record) return damaged(begin, "the record is none of this version");
  return record;
}

Result<uint8_t> RecordingReader::read_record() {
  const int64_t begin = at_;
  std::array<std::byte, kFrameBytes> bytes = {};
  RUDDER_TRY_VOID(read(bytes));
  ArchiveReader archive(bytes);
  Frame frame;
  archive(frame.kind, frame.length, frame.checksum);
  if (frame.length > static_cast<uint64_t>(num_bytes_ - at_)) {
    return damaged(begin, "the record is longer than the file");
  }
  payload_.resize(frame.length);
  RUDDER_TRY_VOID(read(payload_));
  if (checksum_of(frame.kind, payload_) != frame.checksum) {
    return damaged(begin, "the record's checksum is wrong");
  }
  return frame.kind;
}

Result<void> RecordingReader::read(std::span<std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) > num_bytes_ - at_) {
    return damaged(at_, "the file ends within a record");
  }
  if (std::fread(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
    return io_error(path_, "read");
  }
  at_ += static_cast<int64_t>(bytes.size());
  return {};
}

tl::unexpected<Error> RecordingReader::damaged(int64_t at, const char* what) const {
  return fail(ErrorCode::kCorruptFile, fmt::format("{} (at byte {})", what, at), path_);
}

}  // namespace rudder::record
