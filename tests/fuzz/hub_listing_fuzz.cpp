// The hub's listing: the JSON that says what a repository has, and where its next page lies. Every
// file that is taken stays below its folder, has a size that fits and a hash that names a blob; and
// what is selected of it is a part of it.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "require.h"
#include "rudder/hub/file_selection.h"
#include "rudder/hub/listing.h"
#include "rudder/hub/ranges.h"

namespace rudder::fuzz {
namespace {

void check_file(const hub::RemoteFile& file) {
  RUDDER_CHECK(hub::is_safe_path(file.path));
  RUDDER_CHECK(file.path.front() != '/');
  RUDDER_CHECK(("/" + file.path + "/").find("/../") == std::string::npos);
  RUDDER_CHECK(file.size >= 0 && file.size <= hub::kMaxFileBytes);
  RUDDER_CHECK(file.digest.size() == (file.kind == hub::DigestKind::kSha256 ? 64U : 40U));
  RUDDER_CHECK(file.digest.find_first_not_of("0123456789abcdef") == std::string::npos);
}

bool is_listed(const std::vector<hub::RemoteFile>& files, const hub::RemoteFile& file) {
  return std::find(files.begin(), files.end(), file) != files.end();
}

}  // namespace

void fuzz_hub_listing(std::string_view input) {
  std::vector<hub::RemoteFile> files;
  const Result<void> parsed = hub::parse_tree_page(input, files);
  for (const hub::RemoteFile& file : files) check_file(file);
  if (parsed) {
    for (const hub::RemoteFile& file : hub::select_texts(files)) {
      RUDDER_CHECK(is_listed(files, file));
      RUDDER_CHECK(!file.path.ends_with(".bin") && !file.path.ends_with(".py"));
    }
    const auto weights = hub::select_weights(files, input, "org/name");
    if (weights) {
      for (const hub::RemoteFile& file : *weights) {
        RUDDER_CHECK(is_listed(files, file) && file.path.ends_with(".safetensors"));
      }
    }
  }
  const auto shards = hub::shards_of_index(input);
  if (shards) {
    for (const std::string& shard : *shards) {
      RUDDER_CHECK(hub::is_safe_path(shard) && shard.find('/') == std::string::npos);
    }
  }
  const auto state = hub::parse_repository(input);
  if (state) RUDDER_CHECK(state->commit.size() == 40);
  hub::next_page(input);
  if (const auto range = hub::parse_content_range(input)) {
    RUDDER_CHECK(range->first >= 0 && range->first <= range->last);
    RUDDER_CHECK(!range->total || range->last < *range->total);
  }
  constexpr int64_t kSize = 200'000;
  if (const auto ranges = hub::Ranges::from_text(input, kSize)) {
    RUDDER_CHECK(ranges->size() == kSize && ranges->bytes_done() <= kSize);
    RUDDER_CHECK(hub::Ranges::from_text(ranges->to_text(), kSize).has_value());
  }
}

}  // namespace rudder::fuzz
