#include "rudder/hub/partial_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace rudder::hub {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kPartialRange = 65536;
constexpr int64_t kSize = 2 * kPartialRange;

std::string new_blob(const std::string& name) {
  const fs::path folder = fs::path(testing::TempDir()) / ("partial_file_" + name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  return (folder / "blob").string();
}

void put(PartialFile& file, size_t range, char fill, int64_t count) {
  Range& at = file.ranges().all()[range];
  const std::string bytes(static_cast<size_t>(count), fill);
  ASSERT_TRUE(file.write(at.next(), bytes).has_value());
  at.done += count;
}

TEST(PartialFile, GoesOnWhereAProcessWasCut) {
  const std::string blob = new_blob("cut");
  {
    auto file = *PartialFile::open(blob, kSize, kPartialRange);
    put(*file, 1, 'b', kPartialRange);
    put(*file, 0, 'a', 100);
    ASSERT_TRUE(file->save_ranges().has_value());
    put(*file, 0, 'x', 50);  // not written down: it counts as not there
  }
  EXPECT_FALSE(fs::exists(blob));
  EXPECT_EQ(bytes_kept(blob, kSize), kPartialRange + 100);
  auto file = *PartialFile::open(blob, kSize, kPartialRange);
  EXPECT_EQ(file->ranges().bytes_done(), kPartialRange + 100);
  put(*file, 0, 'a', kPartialRange - 100);
  ASSERT_TRUE(file->ranges().is_complete());
  ASSERT_TRUE(file->publish().has_value());
  std::ifstream read(blob, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(read)), std::istreambuf_iterator<char>());
  EXPECT_EQ(bytes, std::string(kPartialRange, 'a') + std::string(kPartialRange, 'b'));
  EXPECT_EQ(std::distance(fs::directory_iterator(fs::path(blob).parent_path()), {}), 1);
}

TEST(PartialFile, BeginsAnewWhereWhatIsLeftDoesNotFit) {
  const std::string blob = new_blob("misfit");
  {
    auto file = *PartialFile::open(blob, kSize, kPartialRange);
    put(*file, 1, 'b', 10);
    ASSERT_TRUE(file->save_ranges().has_value());
  }
  EXPECT_EQ(bytes_kept(blob, kSize + 1), 0);  // another size
  ASSERT_EQ(truncate((blob + ".rudder.incomplete").c_str(), 5), 0);
  EXPECT_EQ(bytes_kept(blob, kSize), 0);  // bytes that were promised are gone
  auto file = *PartialFile::open(blob, kSize, kPartialRange);
  EXPECT_EQ(file->ranges().bytes_done(), 0);
}

TEST(PartialFile, DoesNotWriteThroughALink) {
  const std::string blob = new_blob("link");
  const std::string victim = blob + "_victim";
  std::ofstream(victim) << "keep";
  fs::create_symlink(victim, blob + ".rudder.incomplete");
  EXPECT_FALSE(PartialFile::open(blob, kSize, kPartialRange).has_value());
  EXPECT_EQ(fs::file_size(victim), 4u);
}

TEST(PartialFile, RestartsWithTheRangesThatItHad) {
  const std::string blob = new_blob("restart");
  auto file = *PartialFile::open(blob, kSize, kPartialRange);
  put(*file, 0, 'a', 10);
  ASSERT_TRUE(file->restart().has_value());
  EXPECT_EQ(file->ranges().bytes_done(), 0);
  EXPECT_EQ(file->ranges().all().size(), 2u);
  EXPECT_EQ(fs::file_size(file->path()), 0u);
}

}  // namespace
}  // namespace rudder::hub
