#include "rudder/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace rudder {
namespace {

const std::string kMark = "\xEF\xBF\xBD";

TEST(Utf8, EveryCharacterIsWrittenAndReadBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_FALSE(find_invalid_utf8(text)) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ(utf8_length(static_cast<unsigned char>(text[0])), text.size());
    size_t pos = 0;
    ASSERT_EQ(next_char(text, pos), c);
    ASSERT_EQ(pos, text.size());
    ASSERT_EQ(previous_char(text, pos), c);
    ASSERT_EQ(pos, 0u);
  }
}

TEST(Utf8, TheFirstBrokenByteIsFound) {
  EXPECT_EQ(find_invalid_utf8("ab\xc3\xa9\xff"), 4u);
  EXPECT_EQ(find_invalid_utf8("a\xed\xa0\x80"), 1u);     // a surrogate
  EXPECT_EQ(find_invalid_utf8("\xc0\x80"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xf4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("xy\xf0\x9f\x98"), 2u);    // cut
}

TEST(Utf8, MaximalInvalidPartsAreReplaced) {
  EXPECT_EQ(to_valid_utf8("a\xc3\xa9\xf0\x9f\x98\x80"), "a\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(to_valid_utf8("\xc3"), kMark);
  EXPECT_EQ(to_valid_utf8("\xa9z"), kMark + "z");
  EXPECT_EQ(to_valid_utf8("\xf0\x9f\x98z"), kMark + "z");
  EXPECT_EQ(to_valid_utf8("\xed\xa0\x80"), kMark + kMark + kMark);
  EXPECT_EQ(to_valid_utf8("\xc0\x80"), kMark + kMark);
  EXPECT_EQ(count_code_points("a\xc3\xa9\xf0\x9f\x98\x80"), 3u);
}

TEST(Utf8, AnUnfinishedCharacterWaits) {
  std::string pending = "a\xf0\x9f";
  std::string out;
  drain_utf8(pending, false, out);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(pending, "\xf0\x9f");
  pending += "\x98\x80";
  drain_utf8(pending, false, out);
  EXPECT_EQ(out, "a\xf0\x9f\x98\x80");
  EXPECT_TRUE(pending.empty());
}

}  // namespace
}  // namespace rudder
