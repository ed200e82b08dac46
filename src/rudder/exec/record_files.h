// RecordFiles: a folder of records (docs/contracts/cache.md, "Tiers"), one file each, named by key
// and parts. A file appears whole, under its name, or not at all; what is in it is judged by
// whoever reads it (record_format.h). One process at a time has the folder. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/step/records.h"

namespace rudder::exec {

class RecordFiles {
 public:
  // Makes the folder where there is none, and removes what a process that was killed has left half
  // written. kInvalidArgument, where = "kv-disk-dir": it cannot be written, or another process has
  // it.
  static Result<RecordFiles> open(const std::string& folder);
  RecordFiles(RecordFiles&& other) noexcept;
  RecordFiles& operator=(RecordFiles&& other) noexcept;
  ~RecordFiles();

  // Oldest use first.
  std::vector<step::StoredRecord> list() const;
  Result<void> write(const step::RecordKey& key, step::RecordParts parts,
                     std::span<const std::byte> record);
  // Fills `record`, which is as long as the file should be. kNotFound: there is none; kIo: it is of
  // another length, or cannot be read.
  Result<void> read(const step::RecordKey& key, step::RecordParts parts,
                    std::span<std::byte> record) const;
  void erase(const step::RecordKey& key, step::RecordParts parts) const;

 private:
  RecordFiles(std::string folder, int lock) : folder_(std::move(folder)), lock_(lock) {}
  std::string path_of(const step::RecordKey& key, step::RecordParts parts) const;

  std::string folder_;
  int lock_ = -1;  // of the folder, held while this lives
};

// The secret of the folder, for keys that are equal after a restart; made where there is none.
Result<std::string> folder_secret(const std::string& folder);

}  // namespace rudder::exec
