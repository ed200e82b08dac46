#include "rudder/pjrt/plugin.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "rudder/pjrt/hlo_text.h"
#include "rudder/pjrt/modules.h"
#include "rudder/pjrt/test_plugin.h"

namespace rudder::pjrt {
namespace {

std::string fake(const char* name) {
  return std::string(RUDDER_FAKE_PLUGINS) + "/lib" + name + ".so";
}

void expect_refused(const std::string& path, const char* because) {
  const auto client = Client::open(path);
  ASSERT_FALSE(client) << path;
  EXPECT_EQ(client.error().where, "device");
  EXPECT_NE(client.error().message.find(because), std::string::npos) << client.error().message;
  EXPECT_NE(client.error().message.find(path), std::string::npos) << client.error().message;
}

TEST(Plugin, WhatIsNoneIsRefusedByName) {
  expect_refused("no/such/file.so", "is no file");
  expect_refused("src", "is no file");
  expect_refused("README.md", "is no library");
  expect_refused(fake("fake_plugin_none"), "has no GetPjrtApi");
  expect_refused(fake("fake_plugin_old"), "version 0.54");
  expect_refused(fake("fake_plugin_next"), "version 1.0");
  expect_refused(fake("fake_plugin_short"), "has no function 0");
  expect_refused(fake("fake_plugin_empty"), "has no function 0");
}

class WithPlugin : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Client::open(test_plugin());
    ASSERT_TRUE(opened) << "tools/setup.sh test installs it: " << opened.error().message;
    client_ = std::move(*opened);
  }

  // table[at[0], at[1]] = rows, and the whole table doubled.
  static std::string text(bool donates) {
    HloText text;
    const Value table = text.argument({Elt::kF32, {64, 8, 4}}, donates ? 0 : -1);
    const Value at = text.argument({Elt::kI32, {2, 2}});
    const Value rows = text.argument({Elt::kF32, {2, 4}});
    const Value ids = text.argument({Elt::kI32, {2, 3}});
    const Value put = text.put(table, at, rows);
    const Value results[] = {put, text.take(put, ids)};
    return text.finish(results);
  }
  Buffer upload(std::vector<float> values, tensor::Shape shape) {
    return client_->upload({values.data(), tensor::DType::kF32, shape}).value();
  }
  Buffer upload_ids(std::vector<int32_t> values, tensor::Shape shape) {
    return client_->upload({values.data(), tensor::DType::kI32, shape}).value();
  }

  std::unique_ptr<Client> client_;
};

TEST_F(WithPlugin, ADonatedTableIsChangedWhereItLies) {
  for (const bool donates : {true, false}) {
    const auto module = client_->compile(text(donates)).value();
    Buffer table = upload(std::vector<float>(64 * 8 * 4), {64, 8, 4});
    const Buffer rows = upload(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
    const Buffer at = upload_ids(std::vector<int32_t>{5, 3, -1, 0}, {2, 2});
    const Buffer ids = upload_ids(std::vector<int32_t>{5, 0, 1, 63, 2, 3}, {2, 3});
    const uintptr_t before = table.device_pointer().value();
    const Buffer* const arguments[] = {&table, &at, &rows, &ids};
    std::vector<Buffer> made = module->run(arguments, 2).value();
    EXPECT_EQ(made[0].device_pointer().value() == before, donates);
    std::vector<float> taken(2 * 3 * 8 * 4);
    ASSERT_TRUE(made[1].read(taken.data(), taken.size() * sizeof(float)));
    EXPECT_EQ(std::vector<float>(taken.begin() + 12, taken.begin() + 16),
              (std::vector<float>{1, 2, 3, 4}));
    // The second row has a block that there is not: nobody is written.
    EXPECT_EQ(std::accumulate(taken.begin(), taken.end(), 0.0f), 10);
  }
}

TEST_F(WithPlugin, ATextThatIsNoModuleIsTheCompilersError) {
  const auto module = client_->compile("module { func.func public @main( }");
  ASSERT_FALSE(module);
  EXPECT_NE(module.error().message.find("Client_Compile"), std::string::npos);
}

TEST_F(WithPlugin, CompiledModulesAreFoundAgainUnlessTheirFileIsBroken) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "rudder_pjrt_modules_test";
  std::filesystem::remove_all(folder);
  const auto counts = [&] {
    Modules modules(*client_, folder.string());
    EXPECT_TRUE(modules.get(text(true)));
    EXPECT_TRUE(modules.get(text(true)));
    return std::pair(modules.num_compiled(), modules.num_loaded());
  };
  EXPECT_EQ(counts(), std::pair(int64_t{1}, int64_t{0}));
  EXPECT_EQ(counts(), std::pair(int64_t{0}, int64_t{1}));
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(100);
    bytes.put('?');
  }
  EXPECT_EQ(counts(), std::pair(int64_t{1}, int64_t{0}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rudder::pjrt
