#include "rudder/lora/library.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "rudder/weights/safetensors_writer.h"

namespace rudder::lora {
namespace {

const Targets kTwo = {{"model.layers.0.self_attn.q_proj", 6, 4},
                      {"model.layers.0.mlp.down_proj", 3, 6}};

// A folder with an adapter of q_proj whose values are all `value`.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(std::filesystem::path(::testing::TempDir()) / ("lora_" + name)) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  void write(float value) const {
    std::ofstream(path_ / "adapter_config.json")
        << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3})";
    const std::vector<weights::TensorDecl> tensors = {
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", tensor::DType::kF32,
         weights::TensorShape::of({2, 6})},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", tensor::DType::kF32,
         weights::TensorShape::of({4, 2})}};
    auto writer = weights::SafetensorsWriter::create((path_ / "adapter_model.safetensors").string(),
                                                     tensors, {});
    ASSERT_TRUE(writer) << writer.error().to_string();
    const std::vector<float> a(12, value);
    const std::vector<float> b(8, value);
    ASSERT_TRUE((*writer)->write(0, 0, std::as_bytes(std::span(a))));
    ASSERT_TRUE((*writer)->write(1, 0, std::as_bytes(std::span(b))));
    ASSERT_TRUE((*writer)->finish(false));
  }
  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

TEST(AdapterLibrary, ANameMeansOneVersionAndRequestsKeepTheirs) {
  const Folder folder("versions");
  folder.write(0.375f);
  Library library(kTwo, {.limits = {.max_rank = 4, .hash_secret = {}}, .root = {}});
  ASSERT_TRUE(library.load("tone", folder.path(), false));
  const auto first = library.find("tone");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->path, folder.path());
  // The same name again is an error, and changes nothing.
  const auto again = library.load("tone", folder.path(), false);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(again.error().message.find("has already been loaded"), std::string::npos);
  EXPECT_EQ(library.find("tone"), first);
  // Equal content, equal key, whoever loads it; other content, another key.
  ASSERT_TRUE(library.load("mood", folder.path(), false));
  EXPECT_EQ(library.find("mood")->adapter->key, first->adapter->key);
  folder.write(0.625f);
  EXPECT_EQ(first->adapter->deltas[0].a.as<float>()[0], 0.375f);  // it was read, not mapped
  ASSERT_TRUE(library.load("tone", folder.path(), true));
  const auto second = library.find("tone");
  EXPECT_NE(second->adapter->key, first->adapter->key);
  EXPECT_EQ(library.in_use().size(), 3U);  // the old version is held here
  EXPECT_EQ(library.all().size(), 2U);
}

TEST(AdapterLibrary, UnloadsAndIsFull) {
  const Folder folder("full");
  folder.write(0.875f);
  Library library(kTwo,
                  {.limits = {.max_rank = 4, .hash_secret = {}}, .max_adapters = 2, .root = {}});
  ASSERT_TRUE(library.load("a", folder.path(), false));
  ASSERT_TRUE(library.load("b", folder.path(), false));
  const auto third = library.load("c", folder.path(), false);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().where, "max-cpu-loras");
  ASSERT_TRUE(library.unload("a"));
  EXPECT_EQ(library.find("a"), nullptr);
  const auto twice = library.unload("a");
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(twice.error().message, "The lora adapter 'a' cannot be found.");
  EXPECT_TRUE(library.load("c", folder.path(), false));
}

TEST(AdapterLibrary, ClientsLoadBelowTheRootAlone) {
  const Folder root("root");
  const Library closed(kTwo, {.limits = {}, .root = {}});
  EXPECT_FALSE(closed.check_client_path(root.path()));
  const Library open(kTwo, {.limits = {}, .root = root.path()});
  EXPECT_TRUE(open.check_client_path(root.path() + "/one"));
  EXPECT_FALSE(open.check_client_path(root.path() + "/../other"));
  EXPECT_FALSE(open.check_client_path(root.path() + "else"));
  EXPECT_FALSE(open.check_client_path("/etc"));
}

TEST(AdapterLibrary, AFolderWithoutAnAdapterIsNotFound) {
  Library library(kTwo, {.limits = {}, .root = {}});
  const auto loaded = library.load("x", "/nowhere/at/all", false);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(loaded.error().message, "No adapter found for /nowhere/at/all");
}

}  // namespace
}  // namespace rudder::lora
