#include "rudder/steer/capture/kept_rows.h"

#include <gtest/gtest.h>

#include <memory>

namespace rudder::steer::capture {
namespace {

constexpr tap::Point kPoint{1, tap::Site::kResidPost};

// Rows of two floats; the first tells whose they are.
KeptRun run_of(float mark, int32_t num_positions) {
  KeptRun run;
  run.prompt_len = num_positions;
  run.points = {{kPoint, false}, {kPoint, true}};
  run.widths = {1, 1};
  for (int32_t i = 0; i < num_positions; ++i) {
    auto record = std::make_shared<float[]>(2);
    record[0] = mark;
    record[1] = static_cast<float>(2 * i);
    run.positions.push_back(2 * i);
    run.records.push_back(std::move(record));
  }
  return run;
}

TEST(KeptRows, AreTheTenantsOwn) {
  KeptRows rows(1 << 10);
  ASSERT_TRUE(rows.reserve(run_of(0, 2).bytes()));
  rows.keep(1, "a", 0, run_of(7, 2));
  EXPECT_EQ(rows.find(2, "a", 0), nullptr);
  EXPECT_EQ(rows.find(1, "a", 1), nullptr);
  EXPECT_EQ(rows.find(1, "b", 0), nullptr);
  const auto run = rows.find(1, "a", 0);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->row(kPoint, 2)->values()[0], 7);  // before the ops, where both are there
  EXPECT_FALSE(run->row(kPoint, 1).has_value());
  EXPECT_FALSE(run->row({2, tap::Site::kResidPost}, 2).has_value());
  EXPECT_FALSE(run->has({1, tap::Site::kResidPre}));
}

TEST(KeptRows, TheOldestMakeRoom) {
  const int64_t bytes = run_of(0, 2).bytes();
  EXPECT_EQ(bytes, 16);
  KeptRows rows(2 * bytes);
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(rows.reserve(bytes));
    rows.keep(1, name, 0, run_of(0, 2));
  }
  EXPECT_EQ(rows.find(1, "a", 0), nullptr);
  EXPECT_NE(rows.find(1, "b", 0), nullptr);
  const auto used = rows.find(1, "b", 0);
  ASSERT_TRUE(rows.reserve(2 * bytes));
  EXPECT_EQ(rows.find(1, "c", 0), nullptr);
  EXPECT_EQ(used->row(kPoint, 0)->values()[0], 0);  // who uses it keeps it
  EXPECT_FALSE(rows.reserve(1));                    // nothing kept is left to go
  rows.give_back(2 * bytes);
  EXPECT_TRUE(rows.reserve(2 * bytes));
  EXPECT_FALSE(rows.reserve(2 * bytes + 1));
}

TEST(KeptRows, ANameThatComesAgainIsReplaced) {
  const int64_t bytes = run_of(0, 2).bytes();
  KeptRows rows(4 * bytes);
  for (const float mark : {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}) {
    ASSERT_TRUE(rows.reserve(bytes));
    rows.keep(1, "a", 0, run_of(mark, 2));
  }
  EXPECT_EQ(rows.find(1, "a", 0)->row(kPoint, 0)->values()[0], 6);
  EXPECT_TRUE(rows.reserve(3 * bytes));  // the others are gone
  EXPECT_NE(rows.find(1, "a", 0), nullptr);
}

}  // namespace
}  // namespace rudder::steer::capture
