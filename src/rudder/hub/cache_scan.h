// What the cache holds, for people: models with their sizes and snapshots, whoever put them there;
// and the removal of one. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::hub {

struct CachedSnapshot {
  std::string commit;
  std::vector<std::string> refs = {};  // the branches and tags that it was
  int64_t bytes = 0;                   // of its files
  std::string missing = {};            // what a server lacks in it; empty: it can be served
};

struct CachedModel {
  std::string repository;
  int64_t bytes = 0;             // on the disk, each blob once
  int64_t incomplete_bytes = 0;  // of cut downloads, in `bytes` as well
  int64_t last_used_s = 0;       // since 1970
  std::vector<CachedSnapshot> snapshots = {};
};

// Sorted by name; a cache that is not there yet is empty. kIo.
Result<std::vector<CachedModel>> scan_cache(const std::string& cache);

// Removes a repository with all its snapshots. kNotFound: it is not cached; kUnavailable: somebody
// fetches it just now. Bytes that were freed.
Result<int64_t> remove_cached(const std::string& cache, const std::string& repository);

}  // namespace rudder::hub
