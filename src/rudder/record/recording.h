// A recording: what passed between an engine and an executor, as a file. Written by FlightRecorder
// (flight_recorder.h), run again by replay() (replay.h). Normative text: docs/contracts/step.md,
// "Recordings". A writer or a reader belongs to one thread.
//
// The file: 8 bytes "RUDDRREC", then records. A record is its kind (1 byte), the length of its
// payload (8 bytes) and a checksum of kind, length and payload (8 bytes: SipHash-2-4 with the zero
// key, its low half), then the payload (archive.h). The first record is the header. All numbers are
// little-endian.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/record/archive.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"
#include "rudder/step/result.h"

namespace rudder::record {

// Of the format; a reader takes its own version alone.
inline constexpr uint32_t kRecordingVersion = 21;

struct RecordingHeader {
  uint32_t version = kRecordingVersion;
  std::string model;        // its name
  step::Capacity capacity;  // of the executor that was recorded
};

// Executor::supply().
struct SuppliedMasks {
  step::StepId step = 0;
  std::vector<uint32_t> masks;
};

// In the order of the calls: launch, supply, collect.
using Record = std::variant<step::StepPlan, SuppliedMasks, step::StepResult>;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

class RecordingWriter {
 public:
  // Creates the file, which grows to at most `max_bytes`. kIo, its `where` the path.
  static Result<std::unique_ptr<RecordingWriter>> create(const std::string& path,
                                                         const RecordingHeader& header,
                                                         int64_t max_bytes);
  // Appends the record, which is the operating system's when this returns; or nothing, from the
  // first record on that would make the file too long (is_full). kIo.
  Result<void> write(const step::StepPlan& plan);
  Result<void> write(const SuppliedMasks& masks);
  Result<void> write(const step::StepResult& result);
  bool is_full() const { return is_full_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  RecordingWriter(std::string path, File file, int64_t max_bytes)
      : path_(std::move(path)), file_(std::move(file)), max_bytes_(max_bytes) {}

  template <typename T>
  Result<void> write_as(uint8_t kind, const T& value);
  Result<void> append(std::span<const std::byte> bytes);
  Result<void> append_record(uint8_t kind);  // with the payload in archive_

  const std::string path_;
  const File file_;
  const int64_t max_bytes_;
  int64_t num_bytes_ = 0;
  bool is_full_ = false;
  ArchiveWriter archive_;
};

class RecordingReader {
 public:
  // kIo; kCorruptFile: the file has no header of this version. `where` is the path.
  static Result<std::unique_ptr<RecordingReader>> open(const std::string& path);
  const RecordingHeader& header() const { return header_; }
  // The next record; nothing at the end of the file. kCorruptFile names the byte at which the file
  // is damaged or ends within a record.
  Result<std::optional<Record>> next();

 private:
  RecordingReader(std::string path, File file, int64_t num_bytes)
      : path_(std::move(path)), file_(std::move(file)), num_bytes_(num_bytes) {}

  Result<void> read_header();
  // The payload goes to payload_.
  Result<uint8_t> read_record();
  Result<void> read(std::span<std::byte> bytes);
  tl::unexpected<Error> damaged(int64_t at, const char* what) const;

  const std::string path_;
  const File file_;
  const int64_t num_bytes_;
  int64_t at_ = 0;  // bytes read
  RecordingHeader header_;
  std::vector<std::byte> payload_;
};

}  // namespace rudder::record
