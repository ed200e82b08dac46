// What the hub says of a repository: its state at a revision, and the files of a commit with sizes
// and hashes. Both come from strangers: everything is checked here, nothing behind it checks again.
// Pure functions; any thread. Fuzzed (tests/fuzz/hub_listing_fuzz.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::hub {

enum class DigestKind : uint8_t {
  kSha256,   // of the bytes: files in large storage
  kGitBlob,  // SHA-1 as git names a blob: files in the repository itself
};

struct RemoteFile {
  std::string path;  // with slashes, below the repository's folder
  int64_t size = 0;
  DigestKind kind = DigestKind::kGitBlob;
  std::string digest = {};  // lower-case hexadecimal; names the blob in the cache as well

  bool operator==(const RemoteFile&) const = default;
};

struct RepositoryState {
  std::string id;      // as it is called today
  std::string commit;  // forty digits
};

constexpr int64_t kMaxFileBytes = int64_t{1} << 42;  // 4 TiB
constexpr size_t kMaxListedFiles = 200'000;

// The answer to /api/models/ID/revision/REVISION. kCorruptFile where it is not such an answer.
Result<RepositoryState> parse_repository(std::string_view json);

// Appends the files of one page of /api/models/ID/tree/COMMIT. kCorruptFile where a path, size or
// hash is none. A path with a backslash or a control character, which git allows and no model
// needs, is passed over.
Result<void> parse_tree_page(std::string_view json, std::vector<RemoteFile>& files);

// Whether a path stays below its folder on every system, whatever is written there: relative, no
// empty part, no "." and "..", no backslash, no control character.
bool is_safe_path(std::string_view path);

// The address of rel="next" in a Link header; empty: this page is the last.
std::string next_page(std::string_view link_header);

}  // namespace rudder::hub
