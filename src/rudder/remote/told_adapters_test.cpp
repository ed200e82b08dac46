#include "rudder/remote/told_adapters.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace rudder::remote {
namespace {

using Named = std::shared_ptr<const lora::NamedAdapter>;

// Of one delta of rank 2, [2, 3] and [5, 2], with `spare` bytes behind them.
Named made(uint64_t key, size_t spare = 0) {
  auto adapter = std::make_shared<lora::Adapter>();
  adapter->key = {key, 0};
  adapter->max_rank = 2;
  adapter->memory.resize(16 * sizeof(float) + spare);
  for (size_t i = 0; i < adapter->memory.size(); ++i) adapter->memory[i] = std::byte(i * 7 + key);
  adapter->deltas.push_back(
      {.target = 4,
       .scale = 0.5F,
       .a = {adapter->memory.data(), tensor::DType::kF32, {2, 3}},
       .b = {adapter->memory.data() + 6 * sizeof(float), tensor::DType::kF32, {5, 2}},
       .gains = {1, 2, 3, 4, 5}});
  return std::make_shared<const lora::NamedAdapter>("name", "/path", std::move(adapter));
}

// An engine process, to which messages go as bytes.
class Process {
 public:
  ToldAdapters::Send send() {
    return [this](const ToEngine& message) {
      std::string bytes;
      write_plain(bytes, message);
      std::string_view left = bytes;
      ToEngine read;
      ASSERT_TRUE(read_plain(left, read));
      ++count;
      if (auto* text = std::get_if<AdapterText>(&read)) {
        ASSERT_TRUE(held.begin(std::move(*text)));
      } else if (auto* part = std::get_if<AdapterBytes>(&read)) {
        ASSERT_TRUE(held.append(*part));
      } else {
        held.forget(std::get<ForgetAdapter>(read).key);
      }
    };
  }

  HeldAdapters held;
  int count = 0;  // of messages
};

TEST(ToldAdapters, ContentTravelsOnceAndWholeWhateverItsSize) {
  const Named adapter = made(1, size_t{40} << 20);
  Process process;
  ToldAdapters told;
  told.tell(adapter, process.send());
  const auto held = process.held.find({1, 0});
  ASSERT_TRUE(held);
  const lora::Adapter& had = *(*held)->adapter;
  EXPECT_EQ(had.memory, adapter->adapter->memory);
  EXPECT_EQ(had.max_rank, 2);
  ASSERT_EQ(had.deltas.size(), 1u);
  EXPECT_EQ(had.deltas[0].target, 4);
  EXPECT_EQ(had.deltas[0].scale, 0.5F);
  EXPECT_EQ(had.deltas[0].b.data, had.memory.data() + 6 * sizeof(float));
  EXPECT_EQ(had.deltas[0].b.shape, tensor::Shape({5, 2}));
  EXPECT_EQ(had.deltas[0].gains, adapter->adapter->deltas[0].gains);
  EXPECT_EQ(process.count, 4) << "the list, and three parts";
  told.tell(adapter, process.send());
  EXPECT_EQ(process.count, 4);
}

TEST(ToldAdapters, ANewProcessIsToldAgain) {
  const Named adapter = made(1);
  Process first;
  Process second;
  ToldAdapters told;
  told.tell(adapter, first.send());
  told.clear();
  told.tell(adapter, second.send());
  EXPECT_TRUE(second.held.find({1, 0}));
}

TEST(ToldAdapters, WhatNobodyHoldsIsForgottenAndARequestKeepsIt) {
  Named adapter = made(1);
  const Named other = made(2);
  Process process;
  ToldAdapters told;
  told.tell(adapter, process.send());
  told.tell(other, process.send());
  const auto request = process.held.find({1, 0});
  told.forget_unused(process.send());
  EXPECT_TRUE(process.held.find({1, 0}));
  adapter.reset();
  told.forget_unused(process.send());
  EXPECT_EQ(process.held.find({1, 0}).error().code, ErrorCode::kInternal);
  EXPECT_TRUE(process.held.find({2, 0}));
  EXPECT_EQ((*request)->adapter->memory.size(), 16 * sizeof(float));
  told.tell(made(1), process.send());
  EXPECT_TRUE(process.held.find({1, 0}));
}

TEST(HeldAdapters, WhatIsNoAdapterIsRefused) {
  const auto text = [] {
    return AdapterText{.name = "n",
                       .path = "p",
                       .key = {1, 0},
                       .max_rank = 1,
                       .bytes = 16,
                       .deltas = {{.target = 0,
                                   .scale = 1,
                                   .a = {0, tensor::DType::kF32, 1, 2},
                                   .b = {8, tensor::DType::kF32, 2, 1}}}};
  };
  const AdapterBytes whole{.key = {1, 0}, .bytes = std::string(16, 'x')};
  {
    HeldAdapters held;
    EXPECT_FALSE(held.append(whole)) << "nothing was announced";
    ASSERT_TRUE(held.begin(text()));
    EXPECT_FALSE(held.begin(text())) << "one comes";
    EXPECT_FALSE(held.append({.key = {2, 0}, .bytes = "x"}));
    EXPECT_FALSE(held.append({.key = {1, 0}, .bytes = std::string(17, 'x')}));
    EXPECT_FALSE(held.find({1, 0}));
    EXPECT_TRUE(held.append(whole));
    EXPECT_TRUE(held.find({1, 0}));
  }
  using Bend = void (*)(MatrixText&);
  for (const Bend bend :
       {Bend([](MatrixText& b) { b.begin = 9; }),
        Bend([](MatrixText& b) { b.begin = ~uint64_t{0}; }),
        Bend([](MatrixText& b) { b.rows = -1; }), Bend([](MatrixText& b) { b.columns = -2; }),
        Bend([](MatrixText& b) { b.rows = int64_t{1} << 62; })}) {
    HeldAdapters held;
    AdapterText bent = text();
    bend(bent.deltas[0].b);
    ASSERT_TRUE(held.begin(std::move(bent)));
    EXPECT_FALSE(held.append(whole));
    EXPECT_FALSE(held.find({1, 0}));
  }
}

}  // namespace
}  // namespace rudder::remote
