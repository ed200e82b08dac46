// A blob that is not all there yet: its bytes and, beside them, which of them are there. Both end
// in
// ".incomplete", which every tool of the cache passes over. Written by several threads at offsets
// of their own; the ranges are guarded by the caller.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rudder/base/result.h"
#include "rudder/hub/ranges.h"

namespace rudder::hub {

class PartialFile {
 public:
  // Goes on with what an earlier process left of `blob_path`, or begins it. kIo.
  static Result<std::unique_ptr<PartialFile>> open(const std::string& blob_path, int64_t size,
                                                   int64_t range_bytes);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  Ranges& ranges() { return ranges_; }
  const std::string& path() const { return path_; }

  Result<void> write(int64_t offset, std::span<const char> bytes) const;
  // Writes down which bytes are there.
  Result<void> save_ranges() const;
  // Nothing of it is there any more.
  Result<void> restart();
  // It is complete and checked: it becomes the blob, safe from a loss of power.
  Result<void> publish();

 private:
  PartialFile(std::string blob_path, int fd, Ranges ranges);

  const std::string blob_path_;
  const std::string path_;
  const std::string ranges_path_;
  const int64_t range_bytes_;
  const int fd_;
  Ranges ranges_;
};

// What open would find of it: bytes that need not be fetched again.
int64_t bytes_kept(const std::string& blob_path, int64_t size);

}  // namespace rudder::hub
