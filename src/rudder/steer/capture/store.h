// Store: the folder of captured files. A file is written under root/.partial and gets its name by
// one rename, so every file with a name is complete; the rename is durable when the store is. A
// store that opens the root removes what a killed process left in .partial. Names are slugs; no
// symbolic link below the root is followed. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::steer::capture {

// A file descriptor that is closed.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { close(); }
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close();
  int release();

 private:
  int fd_ = -1;
};

// A folder below the root.
struct Folder {
  Fd fd;
  std::string path;     // below the root: "tag/request"
  bool is_new = false;  // its own name is not durable yet

  Result<void> sync() const;  // names in it are durable
};

class Store;

// A file without a name yet. One thread at a time.
class PartialFile {
 public:
  PartialFile(std::shared_ptr<Store> store, std::string name)
      : store_(std::move(store)), name_(std::move(name)) {}
  ~PartialFile();  // removes it, unless it was published
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  bool is_open() const { return fd_.is_open(); }
  // Opens it, at first and after close_fd(): a file may wait without a descriptor.
  Result<void> open();
  void close_fd() { fd_.close(); }
  Result<void> append(std::span<const std::byte> bytes);
  // Begins to write to the disk what was appended: publish() then waits less. It is open.
  void start_write_back();
  // Gives it its name in the folder, in place of a file that has it. It is open.
  Result<void> publish(const Folder& folder, const std::string& name);

 private:
  const std::shared_ptr<Store> store_;
  const std::string name_;  // in the store's own part of .partial
  Fd fd_;
  bool exists_ = false;
  size_t not_started_ = 0;  // bytes since start_write_back()
};

enum class OnCollision : uint8_t { kOverwrite, kError, kSuffix };

class Store : public std::enable_shared_from_this<Store> {
 public:
  // Makes the root when its parent is there.
  static Result<std::shared_ptr<Store>> open(const std::string& root, bool durable);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  bool is_durable() const { return durable_; }
  const std::string& root() const { return root_; }
  Result<Folder> tag_folder(const std::string& tag);
  // root/tag/request, new or as `on_collision` says; kSuffix tries request-2, request-3, ... A new
  // one's name is durable after sync().
  Result<Folder> request_folder(const std::string& tag, const std::string& request,
                                OnCollision on_collision);
  // The names in it are durable, and its own.
  Result<void> sync(const Folder& folder);
  void remove_if_empty(const Folder& folder);
  std::unique_ptr<PartialFile> new_file();

 private:
  friend class PartialFile;
  Store(std::string root, bool durable) : root_(std::move(root)), durable_(durable) {}

  Result<void> open_partial();
  // With `is_new` the caller makes a new name durable.
  Result<Fd> make_folder(const Fd& parent, const std::string& name, const std::string& path,
                         bool* is_new);

  const std::string root_;
  const bool durable_;
  Fd root_fd_;
  Fd all_partial_;  // root/.partial
  Fd partial_;      // the folder of this store in it, locked
  std::string partial_name_;
};

}  // namespace rudder::steer::capture
