#include "rudder/hub/cache_layout.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "rudder/hub/cache_scan.h"
#include "rudder/hub/file_lock.h"
#include "rudder/hub/snapshot.h"

namespace rudder::hub {
namespace {

namespace fs = std::filesystem;
const std::string kCommit(40, 'c');

CachedRepository new_cache(const std::string& name) {
  const fs::path cache = fs::path(testing::TempDir()) / ("hub_cache_" + name);
  fs::remove_all(cache);
  CachedRepository cached(cache.string(), "org/name");
  fs::create_directories(cached.folder() + "/blobs");
  return cached;
}

RemoteFile blob_file(const CachedRepository& cached, const std::string& path, char digest) {
  const RemoteFile file{.path = path, .size = 4, .digest = std::string(40, digest)};
  std::ofstream(cached.blob(file.digest)) << "1234";
  return file;
}

TEST(CacheLayout, NamesFoldersAsTheHubsToolDoes) {
  const CachedRepository cached("/c", "org/na-me");
  EXPECT_EQ(cached.folder(), "/c/models--org--na-me");
  EXPECT_EQ(cached.blob("ab"), "/c/models--org--na-me/blobs/ab");
  EXPECT_EQ(cached.snapshot("cd"), "/c/models--org--na-me/snapshots/cd");
  EXPECT_EQ(cached.blob_lock("ab"), "/c/.locks/models--org--na-me/ab.lock");
  EXPECT_EQ(repository_of_folder("models--org--na-me"), "org/na-me");
  EXPECT_EQ(repository_of_folder("models--gpt2"), "gpt2");
  for (const char* other : {"datasets--a--b", "models--", "blobs", ".locks", "models--a--b--c"}) {
    EXPECT_FALSE(repository_of_folder(other).has_value()) << other;
  }
  EXPECT_EQ(repository_of_snapshot("/c/models--org--n/snapshots/" + kCommit + "/"), "org/n");
  EXPECT_FALSE(repository_of_snapshot("/c/models--org--n/snapshots/main").has_value());
  EXPECT_FALSE(repository_of_snapshot("/models/llama").has_value());
}

TEST(CacheLayout, RefsAreCommits) {
  const CachedRepository cached = new_cache("refs");
  EXPECT_FALSE(cached.commit_of("main").has_value());
  EXPECT_EQ(cached.commit_of(kCommit), kCommit);
  ASSERT_TRUE(cached.write_ref("refs/pr/1", kCommit).has_value());
  EXPECT_EQ(cached.commit_of("refs/pr/1"), kCommit);
  ASSERT_TRUE(cached.write_ref(kCommit, kCommit).has_value());
  EXPECT_FALSE(fs::exists(cached.folder() + "/refs/" + kCommit));
  std::ofstream(cached.folder() + "/refs/torn") << "abc";
  EXPECT_FALSE(cached.commit_of("torn").has_value());
}

TEST(Snapshot, AppearsWholeWithRelativeLinks) {
  const CachedRepository cached = new_cache("whole");
  const std::vector<RemoteFile> files = {blob_file(cached, "config.json", '1'),
                                         blob_file(cached, "1_Pooling/config.json", '2'),
                                         blob_file(cached, "model.safetensors", '3')};
  EXPECT_EQ(missing_of_snapshot(cached, kCommit), "config.json");
  ASSERT_TRUE(publish_snapshot(cached, kCommit, files).has_value());
  EXPECT_FALSE(missing_of_snapshot(cached, kCommit).has_value());
  EXPECT_EQ(fs::read_symlink(cached.snapshot(kCommit) + "/config.json"),
            "../../blobs/" + std::string(40, '1'));
  EXPECT_EQ(fs::read_symlink(cached.snapshot(kCommit) + "/1_Pooling/config.json"),
            "../../../blobs/" + std::string(40, '2'));
  EXPECT_EQ(fs::file_size(cached.snapshot(kCommit) + "/1_Pooling/config.json"), 4u);
  for (const auto& entry : fs::directory_iterator(cached.folder())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
}

TEST(Snapshot, ThatAnotherToolBeganGetsWhatItLacks) {
  const CachedRepository cached = new_cache("begun");
  ASSERT_TRUE(
      publish_snapshot(cached, kCommit, {blob_file(cached, "config.json", '1')}).has_value());
  EXPECT_EQ(missing_of_snapshot(cached, kCommit), "model.safetensors");
  ASSERT_TRUE(publish_snapshot(cached, kCommit,
                               {blob_file(cached, "config.json", '1'),
                                blob_file(cached, "model.safetensors", '3')})
                  .has_value());
  EXPECT_FALSE(missing_of_snapshot(cached, kCommit).has_value());
  fs::remove(cached.blob(std::string(40, '3')));
  EXPECT_EQ(missing_of_snapshot(cached, kCommit), "model.safetensors");
}

TEST(Snapshot, NeedsEveryShardOfItsIndex) {
  const CachedRepository cached = new_cache("shards");
  const RemoteFile index{.path = "model.safetensors.index.json", .digest = std::string(40, '5')};
  std::ofstream(cached.blob(index.digest))
      << R"({"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}})";
  ASSERT_TRUE(publish_snapshot(cached, kCommit,
                               {blob_file(cached, "config.json", '1'), index,
                                blob_file(cached, "x-1.safetensors", '3')})
                  .has_value());
  EXPECT_EQ(missing_of_snapshot(cached, kCommit), "x-2.safetensors");
}

TEST(CacheScan, CountsEachBlobOnceAndRemovesAll) {
  const CachedRepository cached = new_cache("scan");
  const std::string cache = fs::path(cached.folder()).parent_path().string();
  const std::vector<RemoteFile> files = {blob_file(cached, "config.json", '1'),
                                         blob_file(cached, "model.safetensors", '3')};
  const std::string other(40, 'd');
  ASSERT_TRUE(publish_snapshot(cached, kCommit, files).has_value());
  ASSERT_TRUE(publish_snapshot(cached, other, {files[0]}).has_value());
  ASSERT_TRUE(cached.write_ref("main", kCommit).has_value());
  fs::create_directories(cache + "/datasets--a--b");
  const auto models = scan_cache(cache);
  ASSERT_TRUE(models.has_value());
  ASSERT_EQ(models->size(), 1u);
  EXPECT_EQ((*models)[0].repository, "org/name");
  EXPECT_EQ((*models)[0].bytes, 8);
  ASSERT_EQ((*models)[0].snapshots.size(), 2u);
  EXPECT_EQ((*models)[0].snapshots[0].refs, std::vector<std::string>{"main"});
  EXPECT_EQ((*models)[0].snapshots[0].missing, "");
  EXPECT_EQ((*models)[0].snapshots[1].missing, "model.safetensors");
  {
    const auto held = FileLock::acquire(cached.blob_lock("x"), {});
    const auto refused = remove_cached(cache, "org/name");
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  }
  EXPECT_TRUE(remove_cached(cache, "org/name").has_value());
  EXPECT_FALSE(fs::exists(cached.folder()));
  EXPECT_TRUE(fs::exists(cache + "/datasets--a--b"));
  EXPECT_EQ(remove_cached(cache, "org/name").error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(scan_cache(cache + "/none")->empty());
}

TEST(CacheScan, DoesNotFollowLinksWhenItRemoves) {
  const CachedRepository cached = new_cache("links");
  const std::string cache = fs::path(cached.folder()).parent_path().string();
  const fs::path outside = fs::path(testing::TempDir()) / "hub_cache_outside";
  fs::create_directories(outside);
  std::ofstream(outside / "keep") << "x";
  fs::create_directory_symlink(outside, cached.folder() + "/snapshots");
  ASSERT_TRUE(remove_cached(cache, "org/name").has_value());
  EXPECT_TRUE(fs::exists(outside / "keep"));
}

}  // namespace
}  // namespace rudder::hub
