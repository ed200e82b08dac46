// Files that a GGUF model was split into.
#include "rudder/weights/gguf_files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "rudder/weights/gguf_test_file.h"

namespace rudder::weights {
namespace {

class GgufFiles : public ::testing::Test {
 protected:
  GgufFiles() : stem_(fmt::format("{}/split_{}", ::testing::TempDir(), getpid())) {}
  ~GgufFiles() override {
    for (const std::string& path : written_) std::filesystem::remove(path);
  }

  std::string path(int number, int count) {
    return fmt::format("{}-{:05}-of-{:05}.gguf", stem_, number, count);
  }
  void write(const std::string& path, uint16_t no, uint16_t count, int32_t tensors,
             std::string_view tensor) {
    GgufBytes out;
    out.header(3, 1, 3).key("split.no", 2).put(no).key("split.count", 2).put(count);
    out.key("split.tensors.count", 5).put(tensors).tensor(tensor, {7}, 0, 0).pad().data(28);
    std::ofstream(path, std::ios::binary) << out.str();
    written_.push_back(path);
  }
  void write_three() {
    for (uint16_t i = 0; i < 3; ++i)
      write(path(i + 1, 3), i, 3, 3, std::string(1, static_cast<char>('a' + i)));
  }
  void expect_refused(const std::string& path, std::string_view where, std::string_view message) {
    const auto opened = open_gguf_files(path);
    ASSERT_FALSE(opened) << message;
    EXPECT_NE(opened.error().where.find(where), std::string::npos) << opened.error().to_string();
    EXPECT_NE(opened.error().message.find(message), std::string::npos)
        << opened.error().to_string();
  }

  std::string stem_;
  std::vector<std::string> written_;
};

TEST_F(GgufFiles, AnyPartNamesThemAll) {
  write_three();
  for (const int part : {1, 2, 3}) {
    const auto opened = open_gguf_files(path(part, 3));
    ASSERT_TRUE(opened) << opened.error().to_string();
    ASSERT_EQ(opened->size(), 3U);
    EXPECT_EQ((*opened)[0].gguf.tensors()[0].name, "a");
    EXPECT_EQ((*opened)[2].gguf.tensors()[0].name, "c");
  }
  EXPECT_TRUE(is_gguf_path(path(1, 3)));
  EXPECT_FALSE(is_gguf_path(path(4, 3)));
  EXPECT_FALSE(is_gguf_path(::testing::TempDir()));
}

TEST_F(GgufFiles, PartsThatContradictOneAnotherAreRefused) {
  write_three();
  std::filesystem::remove(path(2, 3));
  expect_refused(path(1, 3), "00002-of-00003", "No such file");
  write(path(2, 3), 2, 3, 3, "b");
  expect_refused(path(1, 3), "split.no", "it is 2, the files ask for 1");
  write(path(2, 3), 1, 4, 3, "b");
  expect_refused(path(1, 3), "split.count", "it is 4, the files ask for 3");
  write(path(2, 3), 1, 3, 3, "a");
  expect_refused(path(1, 3), "tensor 'a'", "another part");
  write(path(2, 3), 1, 3, 3, "b");
  write(path(1, 3), 0, 3, 5, "a");
  expect_refused(path(1, 3), "split.tensors.count", "it is 5, the files ask for 3");
  const std::string alone = stem_ + ".gguf";
  write(alone, 0, 3, 3, "a");
  expect_refused(alone, "split.count", "one of 3 files");
}

}  // namespace
}  // namespace rudder::weights
