// Where what is in the hub's cache on this machine: the layout of huggingface_hub, so that both
// tools read and write one cache. Paths and small files only; any thread.
//
//   <cache>/models--org--name/blobs/<hash>            the bytes of a file, once
//   <cache>/models--org--name/snapshots/<commit>/...  a link for each file into blobs
//   <cache>/models--org--name/refs/<revision>         the commit that a branch or tag was
//   <cache>/.locks/models--org--name/<hash>.lock      who fetches a blob
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::hub {

class CachedRepository {
 public:
  CachedRepository(std::string cache, std::string repository);

  const std::string& name() const { return name_; }  // "org/name"
  std::string folder() const;
  std::string blob(std::string_view digest) const;
  std::string snapshot(std::string_view commit) const;
  std::string locks() const;
  std::string blob_lock(std::string_view digest) const;
  // What Rudder alone writes and reads: lists of what it fetched.
  std::string own_folder() const;
  // Held while Rudder writes here, and while it removes.
  std::string own_lock() const;

  // The commit that `revision` was when it was last asked for, or itself where it is one.
  std::optional<std::string> commit_of(const std::string& revision) const;
  // Whole or not at all; a commit needs none. kIo.
  Result<void> write_ref(const std::string& revision, const std::string& commit) const;

 private:
  std::string cache_;
  std::string name_;
  std::string folder_name_;
};

// "org/name" of "models--org--name"; nullopt: the folder is something else.
std::optional<std::string> repository_of_folder(std::string_view folder_name);

// "org/name" where `path` is a snapshot in a cache, which people name by what it is a snapshot of.
std::optional<std::string> repository_of_snapshot(const std::string& path);

}  // namespace rudder::hub
