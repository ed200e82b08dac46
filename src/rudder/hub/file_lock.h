// Locks between processes, as huggingface_hub takes them: flock on a file below <cache>/.locks.
// Held while the object lives; the system lets go of them when a process dies.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rudder/base/result.h"

namespace rudder::hub {

class FileLock {
 public:
  // Waits for whoever holds it; `on_wait` is called once before that. kIo.
  static Result<FileLock> acquire(const std::string& path, const std::function<void()>& on_wait);
  // kUnavailable: somebody holds it.
  static Result<FileLock> try_acquire(const std::string& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace rudder::hub
