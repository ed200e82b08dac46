// A snapshot in the cache: made of blobs that are all there, and judged by what a server needs of
// it. The caller holds the repository's own lock where it writes.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/hub/cache_layout.h"
#include "rudder/hub/listing.h"

namespace rudder::hub {

// Whether the snapshot of `commit` has all that a server needs: other tools leave some with single
// files. nullopt: it has; else what is missing.
std::optional<std::string> missing_of_snapshot(const CachedRepository& cached,
                                               const std::string& commit);

// A line of what a pull wrote down: a file's size and path.
struct ListedFile {
  int64_t size = 0;
  std::string path;
};
std::istream& operator>>(std::istream& in, ListedFile& file);

// Where a pull writes down what it fetched when it is through: other tools leave snapshots with
// single files. `quant` is empty where no quantisation was named.
std::string list_path(const CachedRepository& cached, const std::string& commit,
                      std::string_view quant);

// The GGUF file in the snapshot that `quant` names, below its folder, all parts of it being there,
// whichever tool fetched it; nullopt: none, or more than one. What a pull took for it goes first.
std::optional<std::string> cached_gguf(const CachedRepository& cached, const std::string& commit,
                                       std::string_view quant);

// Whether the snapshot has weights as GGUF, and none as safetensors.
bool has_gguf_alone(const CachedRepository& cached, const std::string& commit);

// Links `files` into the snapshot of `commit`, all of them or none: a new snapshot appears with one
// rename; one that another tool began gets what it lacks. Every blob is there. kIo.
Result<void> publish_snapshot(const CachedRepository& cached, const std::string& commit,
                              const std::vector<RemoteFile>& files);

// Folders that a process left when it died while it made a snapshot.
void remove_stale_snapshots(const CachedRepository& cached);

}  // namespace rudder::hub
