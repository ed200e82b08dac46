#include "rudder/weights/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "rudder/weights/safetensors_writer.h"

namespace rudder::weights {
namespace {

// A fresh folder of this test.
class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fmt::format("{}/{}_{}", ::testing::TempDir(), info->name(), ::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& file, std::string_view text) {
    ASSERT_TRUE(write_file_atomically(folder_ + "/" + file, text, false));
  }

  // One-element F32 tensors, each holding its position in the list.
  void write_tensors(const std::string& file, const std::vector<std::string>& names) {
    std::vector<TensorDecl> decls;
    for (const std::string& name : names) {
      decls.push_back({name, tensor::DType::kF32, TensorShape::of({1})});
    }
    auto writer = SafetensorsWriter::create(folder_ + "/" + file, decls, {});
    ASSERT_TRUE(writer);
    for (size_t i = 0; i < names.size(); ++i) {
      const auto value = static_cast<float>(i);
      ASSERT_TRUE((*writer)->write(i, 0, std::as_bytes(std::span(&value, 1))));
    }
    ASSERT_TRUE((*writer)->finish(false));
  }

  void expect_refused(std::string_view where, std::string_view message) {
    const auto out = Checkpoint::open_folder(folder_);
    ASSERT_FALSE(out);
    EXPECT_NE(out.error().where.find(where), std::string::npos) << out.error().to_string();
    EXPECT_NE(out.error().message.find(message), std::string::npos) << out.error().to_string();
  }

  std::string folder_;
};

TEST_F(CheckpointTest, OpensOneFile) {
  write("config.json", "{}");
  write_tensors("model.safetensors", {"b", "a"});
  auto out = Checkpoint::open_folder(folder_ + "/");
  ASSERT_TRUE(out) << out.error().to_string();
  const Checkpoint& c = **out;
  EXPECT_EQ(c.name(), std::filesystem::path(folder_).filename().string());
  EXPECT_EQ(*c.read_text("config.json"), "{}");
  EXPECT_FALSE(c.has_file("tokenizer.json"));
  EXPECT_FALSE(c.read_text("../config.json"));
  ASSERT_EQ(c.tensors().size(), 2U);
  EXPECT_EQ(c.tensors()[0].name, "a");
  EXPECT_EQ(*c.find("a")->view.as<float>(), 1.0f);
  EXPECT_EQ(c.find("c"), nullptr);
  EXPECT_EQ(c.tensor_bytes(), 8);
  c.prefetch(*c.find("b"));
  EXPECT_TRUE(c.check_unchanged());
}

// Published Medusa heads name their file themselves.
TEST_F(CheckpointTest, OpensAFileOfAnotherNameWhereNoneHasTheUsualOne) {
  constexpr std::string_view kOther = "medusa_lm_head.safetensors";
  write_tensors(std::string(kOther), {"b"});
  const auto unasked = Checkpoint::open_folder(folder_);
  ASSERT_FALSE(unasked);
  EXPECT_EQ(unasked.error().code, ErrorCode::kNotFound);
  auto out = Checkpoint::open_folder(folder_, kOther);
  ASSERT_TRUE(out) << out.error().to_string();
  EXPECT_NE((*out)->find("b"), nullptr);
  write_tensors("model.safetensors", {"a"});
  out = Checkpoint::open_folder(folder_, kOther);
  ASSERT_TRUE(out) << out.error().to_string();
  EXPECT_NE((*out)->find("a"), nullptr);
  EXPECT_EQ((*out)->find("b"), nullptr) << "the usual name counts first";
  std::filesystem::remove(folder_ + "/model.safetensors");
  std::filesystem::remove(folder_ + "/" + std::string(kOther));
  const auto none = Checkpoint::open_folder(folder_, kOther);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find(kOther), std::string::npos) << none.error().message;
}

// Resident KiB of this process' mappings of files whose path ends in `name`.
int64_t resident_kib(const std::string& name) {
  std::ifstream maps("/proc/self/smaps");
  int64_t total = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    int64_t kib = 0;
    if (line.find('-') < line.find(' ')) inside = line.ends_with(name);
    if (inside && std::sscanf(line.c_str(), "Rss: %ld kB", &kib) == 1) total += kib;
  }
  return total;
}

TEST_F(CheckpointTest, PagesThatWereReleasedAreReadAgainFromTheFile) {
  constexpr uint64_t kCount = 1 << 20;
  const std::string file = folder_.substr(folder_.rfind('/')) + "/model.safetensors";
  const std::vector<TensorDecl> decls = {{"a", tensor::DType::kF32, TensorShape::of({kCount})}};
  auto writer = SafetensorsWriter::create(folder_ + "/model.safetensors", decls, {});
  ASSERT_TRUE(writer);
  std::vector<float> values(kCount);
  std::iota(values.begin(), values.end(), 0.0f);
  ASSERT_TRUE((*writer)->write(0, 0, std::as_bytes(std::span(values))));
  ASSERT_TRUE((*writer)->finish(false));
  auto out = Checkpoint::open_folder(folder_);
  ASSERT_TRUE(out) << out.error().to_string();
  const auto sum = [&] {
    const float* const data = (*out)->find("a")->view.as<float>();
    return std::accumulate(data, data + kCount, 0.0);
  };
  const double before = sum();
  constexpr int64_t kKib = kCount * sizeof(float) / 1024;
  EXPECT_GE(resident_kib(file), kKib);
  (*out)->release_pages();
  EXPECT_LT(resident_kib(file), kKib / 16);
  EXPECT_EQ(sum(), before);
}

TEST_F(CheckpointTest, SeesAFileThatChanges) {
  write_tensors("model.safetensors", {"a"});
  auto out = Checkpoint::open_folder(folder_);
  ASSERT_TRUE(out);
  std::filesystem::resize_file(folder_ + "/model.safetensors", 4096);
  const auto same = (*out)->check_unchanged();
  ASSERT_FALSE(same);
  EXPECT_NE(same.error().message.find("changed"), std::string::npos);
}

TEST_F(CheckpointTest, OpensShards) {
  write_tensors("s-1.safetensors", {"b", "a"});
  write_tensors("s-2.safetensors", {"c"});
  write("model.safetensors.index.json",
        R"({"metadata": {"total_size": 12}, "weight_map":
            {"c": "s-2.safetensors", "a": "s-1.safetensors", "b": "s-1.safetensors"}})");
  auto out = Checkpoint::open_folder(folder_);
  ASSERT_TRUE(out) << out.error().to_string();
  ASSERT_EQ((*out)->tensors().size(), 3U);
  EXPECT_EQ((*out)->find("c")->file, "s-2.safetensors");
}

TEST_F(CheckpointTest, RefusesAnIndexThatDisagrees) {
  const auto index = [&](const char* map) {
    write("model.safetensors.index.json", fmt::format(R"({{"weight_map": {}}})", map));
  };
  write_tensors("s.safetensors", {"a", "b"});
  write_tensors("t.safetensors", {"b"});
  index(R"({"a": "s.safetensors"})");
  expect_refused("tensor 'b'", "does not list it");
  index(R"({"b": "s.safetensors"})");
  expect_refused("tensor 'a'", "does not list it");
  index(R"({"a": "s.safetensors", "b": "s.safetensors", "c": "s.safetensors"})");
  expect_refused("tensor 'c'", "does not hold it");
  index(R"({"a": "s.safetensors", "aa": "s.safetensors", "b": "s.safetensors"})");
  expect_refused("tensor 'aa'", "does not hold it");
  index(R"({"a": "s.safetensors", "b": "t.safetensors"})");
  expect_refused("tensor 'b'", "does not list it");
  index(R"({"a": "gone.safetensors"})");
  expect_refused("gone.safetensors", "cannot open");
}

TEST_F(CheckpointTest, RefusesHostileIndexes) {
  for (const char* text : {
           "",
           "[]",
           "{}",
           "{\"weight_map\": []}",
           "{\"weight_map\": {}}",
           R"({"weight_map": {"a": 1}})",
           R"({"weight_map": {"a": null}})",
           R"({"weight_map": {"a": ""}})",
           R"({"weight_map": {"a": "/etc/passwd"}})",
           R"({"weight_map": {"a": "../s.safetensors"}})",
           R"({"weight_map": {"a": "x/s.safetensors"}})",
           R"({"weight_map": {"a": "..\\s.safetensors"}})",
           R"({"weight_map": {"a": ".s.safetensors"}})",
           R"({"weight_map": {"a": "s.safetensors\u0000"}})",
           R"({"weight_map": {"a": "model.bin"}})",
       }) {
    write("model.safetensors.index.json", text);
    const auto out = Checkpoint::open_folder(folder_);
    ASSERT_FALSE(out) << text;
    EXPECT_EQ(out.error().code, ErrorCode::kCorruptFile) << text;
    EXPECT_NE(out.error().where.find("index.json"), std::string::npos) << text;
  }
}

TEST_F(CheckpointTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo((folder_ + "/model.safetensors").c_str(), 0600), 0);
  expect_refused("model.safetensors", "not a regular file");
  std::filesystem::remove(folder_ + "/model.safetensors");
  std::filesystem::create_directory(folder_ + "/model.safetensors");
  expect_refused("model.safetensors", "not a regular file");
}

TEST_F(CheckpointTest, ReadsTextsOfAFolderInTheFolderAndNoOthers) {
  write_tensors("model.safetensors", {"a"});
  std::filesystem::create_directories(folder_ + "/1_Pooling/deep");
  write("1_Pooling/config.json", "{}");
  write("1_Pooling/deep/config.json", "{}");
  const auto checkpoint = Checkpoint::open_folder(folder_);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  EXPECT_TRUE((*checkpoint)->has_file("1_Pooling/config.json"));
  EXPECT_EQ(*(*checkpoint)->read_text("1_Pooling/config.json"), "{}");
  for (const char* name : {"1_Pooling/deep/config.json", "../config.json", "1_Pooling/..",
                           "/1_Pooling", "1_Pooling/", "1_Pooling//config.json"}) {
    EXPECT_FALSE((*checkpoint)->has_file(name)) << name;
    EXPECT_FALSE((*checkpoint)->read_text(name)) << name;
  }
  const auto retold = Checkpoint::with_text(*checkpoint, "config.json", "[1]");
  EXPECT_EQ(*retold->read_text("config.json"), "[1]");
  EXPECT_TRUE(retold->has_file("config.json"));
  EXPECT_EQ(*retold->read_text("1_Pooling/config.json"), "{}");
  EXPECT_NE(retold->find("a"), nullptr);
}

TEST_F(CheckpointTest, TellsAPointerOfGitLfs) {
  constexpr std::string_view kPointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n";
  write("model.safetensors", kPointer);
  expect_refused("model.safetensors", "Git LFS pointer");
  write_tensors("model.safetensors", {"a"});
  write("tokenizer.json", kPointer);
  const auto text = (*Checkpoint::open_folder(folder_))->read_text("tokenizer.json");
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().message.find("Git LFS pointer"), std::string::npos);
}

TEST_F(CheckpointTest, SaysWhenThereIsNoModel) {
  const auto out = Checkpoint::open_folder(folder_);
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().code, ErrorCode::kNotFound);
  write("model.safetensors", "");
  expect_refused("model.safetensors", "too few");
}

TEST(CheckpointMemory, CopiesUnalignedTensors) {
  const std::string header = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("f":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  const float values[2] = {1.5f, -2.5f};
  file += header + 'x' + std::string(reinterpret_cast<const char*>(values), 8);
  const std::string config = "{\"a\": 1}";
  auto out = Checkpoint::open_memory({{"config.json", std::as_bytes(std::span(config))},
                                      {"model.safetensors", std::as_bytes(std::span(file))}});
  ASSERT_TRUE(out) << out.error().to_string();
  const TensorInfo* f = (*out)->find("f");
  ASSERT_NE(f, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(f->view.data) % 4, 0U);
  EXPECT_EQ(f->view.as<float>()[1], -2.5f);
  EXPECT_EQ(*(*out)->read_text("config.json"), config);
  EXPECT_FALSE((*out)->read_text("tokenizer.json"));
}

// Such tensors are of encoders of images, which nobody reads here.
TEST(CheckpointMemory, FoldsMoreDimensionsThanAView) {
  const std::string header = R"({"t":{"dtype":"U8","shape":[1,2,1,3,1],"data_offsets":[0,6]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header + "abcdef";
  auto out = Checkpoint::open_memory({{"model.safetensors", std::as_bytes(std::span(file))}});
  ASSERT_TRUE(out) << out.error().to_string();
  EXPECT_EQ((*out)->find("t")->view.shape.numel(), 6);
}

}  // namespace
}  // namespace rudder::weights
