#include "rudder/base/plain_bytes.h"

#include <gtest/gtest.h>

#include <limits>

namespace rudder {
namespace {

enum class Colour : uint8_t { kRed, kBlue };

struct Inner {
  int32_t number = 0;
  std::optional<std::string> text;
  bool operator==(const Inner&) const = default;
};

struct Outer {
  bool flag = false;
  Colour colour = Colour::kRed;
  double real = 0;
  StrongId<struct TestTag, uint64_t> id;
  std::vector<float> floats;
  std::vector<Inner> inners;
  boost::container::small_vector<int32_t, 1> few;
  std::array<uint64_t, 2> key = {};
  std::pair<int32_t, std::string> both;
  std::variant<int32_t, Inner, std::vector<std::vector<int32_t>>> one;
  bool operator==(const Outer&) const = default;
};

}  // namespace

template <>
inline constexpr uint64_t kNumValues<Colour> = 2;

namespace {

Outer example() {
  Outer outer;
  outer.flag = true;
  outer.colour = Colour::kBlue;
  outer.real = -std::numeric_limits<double>::infinity();
  outer.id.value = 1ULL << 63;
  outer.floats = {0.1F, -2.5F};
  outer.inners = {{7, "seven"}, {8, std::nullopt}};
  outer.few = {1, 2, 3};
  outer.key = {5, 6};
  outer.both = {9, std::string("\0 nine", 6)};
  outer.one = std::vector<std::vector<int32_t>>{{1}, {}, {2, 3}};
  return outer;
}

std::string bytes_of(const Outer& outer) {
  std::string bytes;
  write_plain(bytes, outer);
  return bytes;
}

TEST(PlainBytesTest, WhatWasWrittenIsRead) {
  const std::string bytes = bytes_of(example());
  std::string_view in = bytes;
  Outer read;
  ASSERT_TRUE(read_plain(in, read));
  EXPECT_TRUE(in.empty());
  EXPECT_EQ(read, example());
}

TEST(PlainBytesTest, NoBeginningOfItIsRead) {
  const std::string bytes = bytes_of(example());
  for (size_t length = 0; length < bytes.size(); ++length) {
    std::string_view in(bytes.data(), length);
    Outer read;
    EXPECT_FALSE(read_plain(in, read)) << length;
  }
}

TEST(PlainBytesTest, ChangedBytesAreReadOrRefused) {
  const std::string bytes = bytes_of(example());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const char other : {'\0', '\x01', '\x7f', '\xff'}) {
      std::string changed = bytes;
      changed[at] = other;
      std::string_view in = changed;
      Outer read;
      if (!read_plain(in, read)) continue;
      EXPECT_LE(bytes_of(read).size(), changed.size());
    }
  }
}

TEST(PlainBytesTest, NumbersThatNameNothingAreRefused) {
  bool flag = false;
  std::string_view two("\x02", 1);
  EXPECT_FALSE(read_plain(two, flag));
  Colour colour = Colour::kRed;
  std::string_view third("\x02", 1);
  EXPECT_FALSE(read_plain(third, colour));
  std::variant<int32_t, bool> one;
  std::string_view none("\x02\0\0\0\0", 5);
  EXPECT_FALSE(read_plain(none, one));
}

// A count is no reason to take memory.
TEST(PlainBytesTest, CountsWithoutElementsAreRefused) {
  std::string bytes;
  write_count(bytes, std::numeric_limits<uint64_t>::max());
  bytes += "abc";
  std::string text;
  std::vector<double> numbers;
  std::vector<Inner> inners;
  std::string_view as_numbers = bytes;
  EXPECT_FALSE(read_plain(as_numbers, numbers));
  std::string_view as_text = bytes;
  EXPECT_FALSE(read_plain(as_text, text));
  std::string_view as_inners = bytes;
  EXPECT_FALSE(read_plain(as_inners, inners));
}

}  // namespace
}  // namespace rudder
