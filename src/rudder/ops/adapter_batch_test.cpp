#include "rudder/ops/adapter_batch.h"

#include <gtest/gtest.h>

#include <random>

namespace rudder::ops {
namespace {

struct Grouped {
  std::vector<int32_t> order;
  std::vector<AdapterGroup> groups;
};

Grouped group(const std::vector<int32_t>& rows) {
  Grouped out;
  out.order.assign(rows.size(), -7);
  out.groups.assign(rows.size(), {5, 5, 5, 5});
  group_tokens(rows, out.order, out.groups);
  return out;
}

TEST(AdapterBatch, TokensOfOneAdapterStandTogether) {
  const Grouped grouped = group({2, -1, 0, 2, 0, -1, 2});
  EXPECT_EQ(grouped.order, (std::vector<int32_t>{2, 4, 0, 3, 6, 0, 0}));
  ASSERT_EQ(grouped.groups.size(), 7u);
  EXPECT_EQ(grouped.groups[0].row, 0);
  EXPECT_EQ(grouped.groups[0].count, 2);
  EXPECT_EQ(grouped.groups[1].row, 2);
  EXPECT_EQ(grouped.groups[1].begin, 2);
  EXPECT_EQ(grouped.groups[1].count, 3);
  EXPECT_EQ(grouped.groups[2].count, 0);
}

TEST(AdapterBatch, NoTokensAndNoAdapters) {
  EXPECT_TRUE(group({}).groups.empty());
  const Grouped grouped = group({-1, -1});
  EXPECT_EQ(grouped.groups[0].count, 0);
  EXPECT_EQ(grouped.order, (std::vector<int32_t>{0, 0}));
}

TEST(AdapterBatch, EachTokenIsInOneGroupOfItsRow) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> rows(random() % 100);
    for (int32_t& row : rows) row = static_cast<int32_t>(random() % 5) - 1;
    const Grouped grouped = group(rows);
    std::vector<int> seen(rows.size(), 0);
    bool is_over = false;
    const auto used = std::ranges::count_if(grouped.groups,
                                            [](const AdapterGroup& one) { return one.count > 0; });
    EXPECT_LE(used, most_adapter_groups(std::ssize(rows), 4));
    for (const AdapterGroup& one : grouped.groups) {
      EXPECT_LE(one.count, kAdapterGroupTokens);
      EXPECT_FALSE(is_over && one.count > 0);
      is_over = one.count == 0;
      for (int32_t i = 0; i < one.count; ++i) {
        const auto token = static_cast<size_t>(grouped.order[static_cast<size_t>(one.begin + i)]);
        EXPECT_EQ(rows[token], one.row);
        ++seen[token];
      }
    }
    for (size_t token = 0; token < rows.size(); ++token) {
      EXPECT_EQ(seen[token], rows[token] < 0 ? 0 : 1);
    }
  }
}

}  // namespace
}  // namespace rudder::ops
