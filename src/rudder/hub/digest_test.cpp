#include "rudder/hub/digest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace rudder::hub {
namespace {

std::string written(const std::string& name, const std::string& bytes) {
  const std::string path = (std::filesystem::path(testing::TempDir()) / name).string();
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// The expected hashes are those of sha256sum and of `git hash-object`.
TEST(Digest, IsThatOfTheTools) {
  const std::string hello = written("digest_hello", "hello\n");
  EXPECT_EQ(*digest_file(hello, DigestKind::kSha256),
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
  EXPECT_EQ(*digest_file(hello, DigestKind::kGitBlob), "ce013625030ba8dba906f756967f9e9ca394464a");
  const std::string empty = written("digest_empty", "");
  EXPECT_EQ(*digest_file(empty, DigestKind::kSha256),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(*digest_file(empty, DigestKind::kGitBlob), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

TEST(Digest, StopsWhenItIsTold) {
  const std::string big = written("digest_big", std::string(size_t{3} << 20, 'x'));
  size_t seen = 0;
  const auto digest = digest_file(big, DigestKind::kSha256, [&](size_t bytes) {
    seen += bytes;
    return false;
  });
  ASSERT_FALSE(digest.has_value());
  EXPECT_EQ(digest.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(seen, size_t{1} << 20);
  EXPECT_EQ(digest_file(big + "_none", DigestKind::kSha256).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace rudder::hub
