#include "rudder/fleet/encode_events.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "rudder/fleet/msgpack.h"

namespace rudder::fleet {
namespace {

using Kind = BlockEvent::Kind;

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char ch : bytes) out += fmt::format("{:02x}", static_cast<uint8_t>(ch));
  return out;
}

// Written by Python's msgspec from the structs that vLLM 0.33 declares.
TEST(EncodeEvents, GivesTheBytesThatVllmGives) {
  constexpr uint64_t kHash = 0x0102030405060708;
  const EventBatch batch = {.time_s = 1.5,
                            .events = {{.kind = Kind::kStored, .hash = kHash},
                                       {.kind = Kind::kRemoved, .hash = kHash},
                                       {.kind = Kind::kCleared}},
                            .tokens = {1, 300}};
  EXPECT_EQ(
      hex(encode_batch(batch, {.block_size = 2})),
      "93cb3ff80000000000009388a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf0102"
      "030405060708b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739201cd012caa626c6f636b"
      "5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c084a474797065ac426c"
      "6f636b52656d6f766564ac626c6f636b5f68617368657391cf0102030405060708a66d656469756da3475055a967"
      "726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400");
}

TEST(EncodeEvents, ABatchWithoutEventsIsThreeElements) {
  EXPECT_EQ(hex(encode_batch({.time_s = 1.5}, {.rank = 3})), "93cb3ff80000000000009003");
}

std::string text(std::string_view utf8) {
  MsgpackWriter out;
  out.text(utf8);
  return out.take();
}

size_t count(const std::string& bytes, std::string_view word) {
  const std::string wanted = text(word);
  size_t found = 0;
  for (size_t at = bytes.find(wanted); at != std::string::npos; at = bytes.find(wanted, at + 1)) {
    ++found;
  }
  return found;
}

// Behind `key`.
bool has_value(const std::string& bytes, std::string_view key, const std::string& value) {
  return bytes.find(text(key) + value) != std::string::npos;
}

TEST(EncodeEvents, BlocksThatFollowEachOtherAreOneEvent) {
  const auto stored = [](uint64_t hash, uint64_t parent) {
    return BlockEvent{
        .kind = Kind::kStored, .has_parent = parent != 0, .hash = hash, .parent = parent};
  };
  EventBatch batch = {.events = {stored(1, 0),
                                 stored(2, 1),
                                 stored(3, 2),
                                 stored(4, 2),
                                 {.kind = Kind::kRemoved, .hash = 3},
                                 {.kind = Kind::kRemoved, .hash = 2},
                                 stored(5, 4)}};
  for (int32_t token = 10; token < 15; ++token) batch.tokens.push_back(token);
  const std::string bytes = encode_batch(batch, {.block_size = 1});
  EXPECT_EQ(count(bytes, "BlockStored"), 3u);
  EXPECT_EQ(count(bytes, "BlockRemoved"), 1u);
  EXPECT_TRUE(has_value(bytes, "block_hashes", "\x93\x01\x02\x03"));
  EXPECT_TRUE(has_value(bytes, "token_ids", "\x93\x0a\x0b\x0c"));
  EXPECT_TRUE(has_value(bytes, "block_hashes", "\x91\x04"));
  EXPECT_TRUE(has_value(bytes, "parent_block_hash", "\x02"));
  EXPECT_TRUE(has_value(bytes, "token_ids", "\x91\x0d"));
  EXPECT_TRUE(has_value(bytes, "block_hashes", "\x92\x03\x02"));
  EXPECT_TRUE(has_value(bytes, "token_ids", "\x91\x0e"));
}

TEST(EncodeEvents, GroupsAreNamedWithTheirWindows) {
  EventBatch batch = {.events = {{.kind = Kind::kStored, .group = 0, .hash = 1},
                                 {.kind = Kind::kStored, .group = 1, .hash = 1},
                                 {.kind = Kind::kRemoved, .group = 0, .hash = 1},
                                 {.kind = Kind::kRemoved, .group = 1, .hash = 1}},
                      .tokens = {7, 8}};
  const std::string bytes = encode_batch(batch, {.block_size = 1, .windows = {0, 100}});
  EXPECT_EQ(count(bytes, "BlockStored"), 2u);
  EXPECT_EQ(count(bytes, "BlockRemoved"), 2u);
  EXPECT_EQ(count(bytes, "group_idx"), 4u);
  EXPECT_TRUE(has_value(bytes, "kv_cache_spec_kind", text("full_attention")));
  EXPECT_TRUE(has_value(bytes, "kv_cache_spec_kind", text("sliding_window")));
  EXPECT_TRUE(has_value(bytes, "kv_cache_spec_sliding_window", "\x64"));
  EXPECT_EQ(count(bytes, "kv_cache_spec_sliding_window"), 1u);
}

TEST(Msgpack, TakesTheShortestForm) {
  struct Case {
    uint64_t value;
    const char* bytes;
  };
  for (const Case& c : {Case{0, "00"},
                        {127, "7f"},
                        {128, "cc80"},
                        {255, "ccff"},
                        {256, "cd0100"},
                        {65'535, "cdffff"},
                        {65'536, "ce00010000"},
                        {UINT32_MAX, "ceffffffff"},
                        {uint64_t{UINT32_MAX} + 1, "cf0000000100000000"},
                        {UINT64_MAX, "cfffffffffffffffff"}}) {
    MsgpackWriter out;
    out.uint(c.value);
    EXPECT_EQ(hex(out.take()), c.bytes) << c.value;
  }
  for (const auto& [size, head] : {std::pair<size_t, std::string>{15, "9f"},
                                   {16, "dc0010"},
                                   {65'535, "dcffff"},
                                   {65'536, "dd00010000"}}) {
    MsgpackWriter out;
    out.array(size);
    EXPECT_EQ(hex(out.take()), head);
  }
  EXPECT_EQ(hex(text(std::string(31, 'a'))).substr(0, 4), "bf61");
  EXPECT_EQ(hex(text(std::string(32, 'a'))).substr(0, 6), "d92061");
  EXPECT_EQ(hex(text(std::string(255, 'a'))).substr(0, 6), "d9ff61");
  EXPECT_EQ(hex(text(std::string(256, 'a'))).substr(0, 8), "da010061");
}

}  // namespace
}  // namespace rudder::fleet
