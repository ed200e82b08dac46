#include "rudder/hub/ranges.h"

#include <gtest/gtest.h>

#include <string>

namespace rudder::hub {
namespace {

constexpr int64_t kRangeBytes = 65536;

TEST(Ranges, CoverAFileOnce) {
  for (const int64_t size : {int64_t{0}, int64_t{1}, kRangeBytes - 1, kRangeBytes, kRangeBytes + 1,
                             10 * kRangeBytes + 7}) {
    const Ranges ranges(size, kRangeBytes);
    int64_t at = 0;
    for (const Range& range : ranges.all()) {
      EXPECT_EQ(range.begin, at);
      EXPECT_GT(range.end, range.begin);
      at = range.end;
    }
    EXPECT_EQ(at, size);
    EXPECT_EQ(ranges.is_complete(), size == 0);
  }
}

TEST(Ranges, ComeBackFromTheirText) {
  Ranges ranges(3 * kRangeBytes + 5, kRangeBytes);
  ranges.all()[0].done = kRangeBytes;
  ranges.all()[2].done = 17;
  const auto read = Ranges::from_text(ranges.to_text(), ranges.size());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->to_text(), ranges.to_text());
  EXPECT_EQ(read->bytes_done(), kRangeBytes + 17);
  EXPECT_EQ(read->all()[2].next(), 2 * kRangeBytes + 17);
}

TEST(Ranges, ATextOfAnotherFileIsNotTaken) {
  const std::string good = Ranges(2 * kRangeBytes, kRangeBytes).to_text();
  EXPECT_TRUE(Ranges::from_text(good, 2 * kRangeBytes).has_value());
  EXPECT_FALSE(Ranges::from_text(good, 2 * kRangeBytes + 1).has_value());
  for (const std::string& text :
       {std::string(), std::string("rudder-ranges-1"), std::string("rudder-ranges-1 131072"),
        std::string("rudder-ranges-1 131072 0 0 0"), std::string("rudder-ranges-1 131072 1 0"),
        std::string("rudder-ranges-1 131072 65536 0"),
        std::string("rudder-ranges-1 131072 65536 0 65537"),
        std::string("rudder-ranges-1 131072 65536 0 -1"),
        std::string("rudder-ranges-1 131072 65536 0 0 0"), good + " ", good + "x"}) {
    EXPECT_FALSE(Ranges::from_text(text, 2 * kRangeBytes).has_value()) << text;
  }
}

TEST(Ranges, JoinedTheyKeepTheBeginning) {
  Ranges ranges(2 * kRangeBytes, kRangeBytes);
  ranges.all()[0].done = 5;
  ranges.all()[1].done = 9;
  ranges.join();
  ASSERT_EQ(ranges.all().size(), 1u);
  EXPECT_EQ(ranges.all()[0].end, 2 * kRangeBytes);
  EXPECT_EQ(ranges.bytes_done(), 5);
  EXPECT_TRUE(Ranges::from_text(ranges.to_text(), 2 * kRangeBytes).has_value());
}

TEST(Ranges, ReadsWhatAServerSaysThatItSends) {
  const auto range = parse_content_range("bytes 5-9/20");
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->first, 5);
  EXPECT_EQ(range->last, 9);
  EXPECT_EQ(range->total, 20);
  EXPECT_FALSE(parse_content_range("bytes 5-9/*")->total.has_value());
  for (const char* wrong :
       {"", "bytes", "bytes */20", "bytes 9-5/20", "bytes 5-9", "bytes 5-9/", "bytes 5-9/9",
        "bytes -5-9/20", "items 5-9/20", "bytes 5-9/20x", "bytes 99999999999999999999-9/20"}) {
    EXPECT_FALSE(parse_content_range(wrong).has_value()) << wrong;
  }
}

}  // namespace
}  // namespace rudder::hub
