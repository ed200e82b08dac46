#include "rudder/base/settings.h"

#include <gtest/gtest.h>

namespace rudder {
namespace {

TEST(HumanInteger, SuffixesAndRefusals) {
  EXPECT_EQ(parse_human_integer("32K").value(), 32768);
  EXPECT_EQ(parse_human_integer("4GiB").value(), int64_t{4} << 30);
  EXPECT_EQ(parse_human_integer("512m").value(), int64_t{512} << 20);
  EXPECT_EQ(parse_human_integer("7").value(), 7);
  for (const char* bad : {"", "-1", "+1", "1.5K", "K", "9999999999G", "1Q", "1KK", " 1", "0x10"}) {
    EXPECT_FALSE(parse_human_integer(bad)) << bad;
  }
}

TEST(SettingsTable, SetsChecksAndHints) {
  int32_t seqs = 8;
  bool cache = true;
  std::string dtype = "auto";
  SettingsTable table;
  table.section("sched");
  table.add("max-num-seqs", &seqs, 1, 1024, "Sequences in one step.");
  table.add("enable-prefix-caching", &cache, "Reuse KV of equal prefixes.");
  table.add_choice("dtype", &dtype, {"auto", "float32", "bfloat16"}, "Weights in memory.");

  EXPECT_TRUE(table.set("max-num-seqs", "1K"));
  EXPECT_EQ(seqs, 1024);
  EXPECT_FALSE(table.set("max-num-seqs", "0"));
  EXPECT_TRUE(table.set("enable-prefix-caching", "false"));
  EXPECT_FALSE(cache);
  EXPECT_FALSE(table.set("dtype", "int3"));
  const Result<void> unknown = table.set("max-num-seq", "4");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("--max-num-seqs"), std::string::npos);
  EXPECT_NE(table.help_text().find("--[no-]enable-prefix-caching"), std::string::npos);
}

TEST(SettingsTable, ANumberOrAuto) {
  std::optional<double> bound;
  SettingsTable table;
  table.add("bound", &bound, 0.0, 10.0, "A bound.");
  EXPECT_EQ(table.find("bound")->default_value, "auto");
  EXPECT_TRUE(table.set("bound", "2.5"));
  EXPECT_EQ(bound, 2.5);
  EXPECT_EQ(table.find("bound")->get(), "2.5");
  for (const char* bad : {"", "Auto", "11", "-1", "nan", "2.5x"}) {
    EXPECT_FALSE(table.set("bound", bad)) << bad;
  }
  EXPECT_TRUE(table.set("bound", "0"));
  EXPECT_EQ(bound, 0);
  EXPECT_TRUE(table.set("bound", "auto"));
  EXPECT_EQ(bound, std::nullopt);
}

}  // namespace
}  // namespace rudder
