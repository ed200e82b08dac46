#include "rudder/hub/listing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace rudder::hub {
namespace {

const std::string kSha1(40, 'a');
const std::string kSha256(64, 'b');

std::string entry(std::string_view path, std::string_view size = "5") {
  return fmt::format(R"({{"type":"file","path":"{}","size":{},"oid":"{}"}})", path, size, kSha1);
}

Result<std::vector<RemoteFile>> page_of(const std::string& json) {
  std::vector<RemoteFile> files;
  RUDDER_TRY_VOID(parse_tree_page(json, files));
  return files;
}

TEST(Listing, ReadsFilesOfBothStorages) {
  const auto files = page_of(fmt::format(
      R"([{{"type":"directory","path":"x","oid":"1","size":0}},{},{{"type":"file","path":"m.safetensors",
      "size":135,"oid":"{}","lfs":{{"oid":"{}","size":99,"pointerSize":135}},"xetHash":"z"}}])",
      entry("a/config.json"), kSha1, kSha256));
  ASSERT_TRUE(files.has_value()) << files.error().message;
  ASSERT_EQ(files->size(), 2u);
  EXPECT_EQ((*files)[0], (RemoteFile{"a/config.json", 5, DigestKind::kGitBlob, kSha1}));
  EXPECT_EQ((*files)[1], (RemoteFile{"m.safetensors", 99, DigestKind::kSha256, kSha256}));
}

TEST(Listing, RefusesPathsThatLeaveTheFolder) {
  for (const char* path :
       {"..", "../x", "a/../../x", "/etc/x", "a//x", "a/", "./x", "a/./x", "", "x\\u0000y"}) {
    const auto files = page_of("[" + entry(path) + "]");
    ASSERT_FALSE(files.has_value()) << path;
    EXPECT_EQ(files.error().code, ErrorCode::kCorruptFile);
  }
  EXPECT_FALSE(page_of("[" + entry(std::string(2000, 'a')) + "]").has_value());
  EXPECT_FALSE(page_of("[" + entry(std::string(256, 'a')) + "]").has_value());
}

TEST(Listing, PassesOverNamesThatOtherSystemsReadAsPaths) {
  const auto files = page_of("[" + entry("..\\\\x.json") + "," + entry("a\\u000ab.json") + "," +
                             entry("ok.json") + "]");
  ASSERT_TRUE(files.has_value());
  ASSERT_EQ(files->size(), 1u);
  EXPECT_EQ((*files)[0].path, "ok.json");
}

TEST(Listing, RefusesSizesAndHashesThatAreNone) {
  for (const char* size : {"-1", "1e3", "\"5\"", "null", "99999999999999999999", "4398046511105"}) {
    EXPECT_FALSE(page_of("[" + entry("a", size) + "]").has_value()) << size;
  }
  for (const char* oid : {"", "../../x", "AAAA", "zz"}) {
    EXPECT_FALSE(page_of(fmt::format(R"([{{"type":"file","path":"a","size":1,"oid":"{}"}}])", oid))
                     .has_value());
    EXPECT_FALSE(page_of(fmt::format(R"([{{"type":"file","path":"a","size":1,"oid":"{}",
                                        "lfs":{{"size":1,"oid":"{}"}}}}])",
                                     kSha1, oid))
                     .has_value());
  }
  for (const char* json : {"{}", "[1]", "[", "null", "[{\"type\":\"file\"}]"}) {
    EXPECT_FALSE(page_of(json).has_value()) << json;
  }
}

TEST(Listing, ReadsTheStateOfARepository) {
  const auto state = parse_repository(fmt::format(R"({{"id":"o/n","sha":"{}"}})", kSha1));
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->id, "o/n");
  EXPECT_EQ(state->commit, kSha1);
  EXPECT_EQ(parse_repository(fmt::format(R"({{"modelId":"o/n","sha":"{}"}})", kSha1))->id, "o/n");
  for (const char* json : {"[]", "{}", R"({"id":"a","sha":"../x"})", R"({"id":"a","sha":1})"}) {
    EXPECT_FALSE(parse_repository(json).has_value()) << json;
  }
}

TEST(Listing, FollowsLinksToTheNextPage) {
  EXPECT_EQ(next_page(R"(<https://h/api?cursor=a>; rel="next")"), "https://h/api?cursor=a");
  EXPECT_EQ(next_page(R"(<https://h/1>; rel="prev", <https://h/2>; rel="next")"), "https://h/2");
  EXPECT_EQ(next_page(R"(<https://h/1>; rel="prev")"), "");
  for (const char* none : {"", "<", ">", "<>", "a>b<", "rel=\"next\""}) {
    EXPECT_EQ(next_page(none), "") << none;
  }
}

}  // namespace
}  // namespace rudder::hub
