// MappedFile: a regular file mapped for reading; also reads small text files whole. Used by
// Checkpoint. Immutable; any thread may read.
//
// When another process truncates a mapped file, the next access to the lost pages ends this process
// with SIGBUS; no reader can prevent that. As far as possible a change is detected instead: the
// size is compared again after mapping, and the loader calls check_unchanged at its end, so a
// replaced or rewritten file is an Error and does not load as a mixture of two models.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rudder/base/result.h"

namespace rudder::weights {

class MappedFile {
 public:
  // kNotFound when there is none; refuses what is no regular file.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  Result<void> check_unchanged() const;
  // The pages that were read no longer count as this process' memory. The bytes stay valid: who
  // reads them again reads the file.
  void release_pages() const;

 private:
  explicit MappedFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  int fd_ = -1;
  struct stat status_ = {};  // when it was opened
  std::span<const std::byte> bytes_;
};

// Asks the kernel to read the pages of `range`, which lies in a mapping, soon. Only a hint.
void prefetch_pages(std::span<const std::byte> range);

// The whole of a small text file; kNotFound when there is none, kTooLarge beyond `max_bytes`.
Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes);

}  // namespace rudder::weights
