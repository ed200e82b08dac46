// SpillFile: holds rows on the disk for a slow consumer whose memory is full. It is a ring in a
// file without a name, so nothing of it outlives the process. One thread writes (the dispatch
// thread), one reads (the consumer's), in the order of writing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "rudder/base/result.h"

namespace rudder::steer::capture {

class SpillFile {
 public:
  static Result<std::unique_ptr<SpillFile>> create(const std::string& folder, int64_t max_bytes);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // False when the ring has no room or the disk refuses: the bytes are not held.
  bool write(std::span<const std::byte> bytes);
  // The oldest bytes that were written, which are then gone; `out` has their number.
  Result<void> read(std::span<std::byte> out);
  int64_t held_bytes() const;

 private:
  SpillFile(int fd, std::string folder, uint64_t size)
      : fd_(fd), folder_(std::move(folder)), size_(size) {}

  const int fd_;
  const std::string folder_;
  const uint64_t size_;
  mutable std::mutex mutex_;
  uint64_t written_ = 0;  // since the beginning: the offset in the file is modulo size_
  uint64_t read_ = 0;
};

}  // namespace rudder::steer::capture
