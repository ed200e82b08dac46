#include "rudder/hub/download.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace rudder::hub {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlobSize = 3 * 65536 + 17;

HubSettings nowhere() {
  HubSettings settings;
  settings.endpoint = "http://127.0.0.1:9";  // nothing listens there
  return settings;
}

struct BlobFolder {
  explicit BlobFolder(const std::string& name)
      : path(fs::path(testing::TempDir()) / ("download_" + name)) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  std::vector<BlobDownload> blobs(int count) const {
    std::vector<BlobDownload> all;
    for (int i = 0; i < count; ++i) {
      const std::string name = "blob" + std::to_string(i);
      all.push_back({.file = {.path = name, .size = kBlobSize},
                     .url = nowhere().endpoint + "/" + name,
                     .blob_path = (path / name).string()});
    }
    return all;
  }
  bool has_published() const {
    return std::any_of(fs::directory_iterator(path), {}, [](const fs::directory_entry& entry) {
      return entry.path().extension() != ".incomplete";
    });
  }

  fs::path path;
};

// A thread that throws ends the pull with its reason, and not the process; the others stop.
TEST(Download, AThreadThatThrowsEndsThePullAlone) {
  for (const int connections : {1, 3, 8}) {
    const BlobFolder folder("threads");
    std::atomic<int> count = 0;
    const DownloadSettings settings = {
        .connections = connections, .range_bytes = 65536, .on_range = [&] {
          if (++count >= connections) throw std::bad_alloc();
        }};
    const Result<void> done =
        download_blobs(nowhere(), "org/name", folder.blobs(5), settings, nullptr);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kOverloaded) << done.error().to_string();
    EXPECT_FALSE(folder.has_published());
  }
}

TEST(Download, AnExceptionIsToldInItsOwnWords) {
  const BlobFolder folder("words");
  const DownloadSettings settings = {.connections = 2, .range_bytes = 65536, .on_range = [] {
                                       throw std::runtime_error("the sea is high");
                                     }};
  const Result<void> done =
      download_blobs(nowhere(), "org/name", folder.blobs(2), settings, nullptr);
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find("the sea is high"), std::string::npos)
      << done.error().to_string();
}

// The caller's own part of the work runs beside threads that must be joined.
TEST(Download, AProgressThatThrowsEndsThePullAlone) {
  const BlobFolder folder("progress");
  const DownloadSettings settings = {.connections = 4, .range_bytes = 65536};
  const ProgressFn progress = [](int64_t, int64_t) { throw std::runtime_error("no terminal"); };
  const Result<void> done =
      download_blobs(nowhere(), "org/name", folder.blobs(4), settings, progress);
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find("no terminal"), std::string::npos)
      << done.error().to_string();
}

}  // namespace
}  // namespace rudder::hub
