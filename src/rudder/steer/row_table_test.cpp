#include "rudder/steer/row_table.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>

#include "rudder/steer/test_support.h"

namespace rudder::steer {
namespace {

// A program whose content is its number; its length is `floats`.
tap::TapSegment program_of(uint64_t number, int32_t floats, int32_t ops = 1) {
  tap::Program program;
  program.ops.resize(static_cast<size_t>(ops));
  program.vectors.assign(static_cast<size_t>(floats), static_cast<float>(number));
  return {0, {number, 1}, std::make_shared<const tap::Program>(std::move(program))};
}

// A dictionary whose content is its number.
std::shared_ptr<const tap::DictionaryImage> numbered_image(uint64_t number, int64_t floats) {
  auto values = std::make_shared_for_overwrite<float[]>(static_cast<size_t>(floats));
  std::fill_n(values.get(), floats, 1000 + static_cast<float>(number));
  auto image = std::make_shared<tap::DictionaryImage>();
  image->key = {number, 2};
  image->parts = {{values, floats / 2}, {values, floats - floats / 2}};
  return image;
}

// The program with dictionaries that others have too.
tap::TapSegment with_dictionaries(tap::TapSegment segment,
                                  std::initializer_list<uint64_t> numbers) {
  tap::Program program = *segment.program;
  for (const uint64_t number : numbers) {
    program.dictionaries.push_back(numbered_image(number, 20 + static_cast<int64_t>(number) * 24));
  }
  segment.program = std::make_shared<const tap::Program>(std::move(program));
  return segment;
}

KeyedProgram keyed(const tap::TapSegment& segment) {
  return {segment.content, segment.program};
}

// The device's side of the table: what edits wrote, place by place.
class Device {
 public:
  explicit Device(const tap::Limits& limits)
      : floats_(static_cast<size_t>(limits.num_floats)),
        rows_(static_cast<size_t>(limits.num_rows)) {}

  void apply(RowTable& table) {
    std::vector<step::TapEdit> edits;
    table.take_edits(edits);
    for (const step::TapEdit& edit : edits) {
      ASSERT_GT(edit.tap_row, 0);
      ASSERT_EQ(edit.first_float % tap::kVectorAlign, 0);
      rows_[static_cast<size_t>(edit.tap_row)] = edit;
      if (edit.program == nullptr) continue;
      ASSERT_LE(static_cast<size_t>(edit.first_float) + edit.program->vectors.size(),
                floats_.size());
      std::ranges::copy(edit.program->vectors, floats_.begin() + edit.first_float);
      ASSERT_EQ(edit.dictionaries.size(), edit.program->dictionaries.size());
      for (const step::TableDictionary& dictionary : edit.dictionaries) {
        ASSERT_EQ(dictionary.first_float % tap::kVectorAlign, 0);
        int64_t begin = dictionary.first_float;
        for (const auto& [values, count] : dictionary.image->parts) {
          if (dictionary.is_new) std::copy_n(values.get(), count, floats_.begin() + begin);
          begin += count;
        }
      }
    }
  }

  bool holds(int32_t row, const tap::Program& program) const {
    const step::TapEdit& edit = rows_[static_cast<size_t>(row)];
    if (edit.program == nullptr) return false;
    for (const step::TableDictionary& dictionary : edit.dictionaries) {
      int64_t begin = dictionary.first_float;
      for (const auto& [values, count] : dictionary.image->parts) {
        if (!std::equal(values.get(), values.get() + count, floats_.begin() + begin)) return false;
        begin += count;
      }
    }
    return std::equal(program.vectors.begin(), program.vectors.end(),
                      floats_.begin() + edit.first_float);
  }

 private:
  std::vector<float> floats_;
  std::vector<step::TapEdit> rows_;
};

TEST(RowTable, EqualContentSharesARowAndIsUploadedOnce) {
  RowTable table({4, 8, 64, 0, 0});
  const std::vector<tap::TapSegment> segments = {
      program_of(1, 16), {}, program_of(2, 16), program_of(1, 16)};
  std::vector<int32_t> first;
  std::vector<int32_t> second;
  ASSERT_TRUE(table.lease(segments, first));
  ASSERT_TRUE(table.lease(segments, second));
  EXPECT_EQ(first, second);
  EXPECT_EQ(first[0], first[3]);
  EXPECT_EQ(first[1], 0);
  EXPECT_NE(first[0], first[2]);
  std::vector<step::TapEdit> edits;
  table.take_edits(edits);
  EXPECT_EQ(edits.size(), 2U);
  EXPECT_EQ(table.stats().held, 2);
  table.release(first);
  EXPECT_EQ(table.stats().held, 2);
  table.release(second);
  EXPECT_EQ(table.stats().held, 0);
  EXPECT_EQ(table.stats().cached, 2);
  ASSERT_TRUE(table.lease(segments, first));
  EXPECT_FALSE(table.has_edits());
}

TEST(RowTable, AllOrNothing) {
  RowTable table({3, 8, 64, 0, 0});
  std::vector<int32_t> held;
  std::vector<int32_t> rows;
  ASSERT_TRUE(table.lease(std::vector{program_of(1, 16)}, held));
  EXPECT_FALSE(table.lease(std::vector{program_of(2, 16), program_of(3, 16)}, rows));
  EXPECT_EQ(table.stats().held, 1);
  EXPECT_TRUE(table.check_integrity().has_value());
  table.release(held);
  EXPECT_TRUE(table.lease(std::vector{program_of(2, 16), program_of(3, 16)}, rows));
}

TEST(RowTable, EvictsWhatWasUsedLongestAgo) {
  RowTable table({4, 8, 64, 0, 0});
  std::vector<int32_t> rows;
  for (const uint64_t number : {1, 2, 3, 1}) {
    ASSERT_TRUE(table.lease(std::vector{program_of(number, 16)}, rows));
    table.release(rows);
  }
  ASSERT_TRUE(table.lease(std::vector{program_of(4, 16)}, rows));
  const int64_t uploads = table.stats().uploads;
  ASSERT_TRUE(table.lease(std::vector{program_of(1, 16), program_of(3, 16)}, rows));
  EXPECT_EQ(table.stats().uploads, uploads);
}

TEST(RowTable, ADictionaryIsUploadedOnceForAllProgramsThatNameIt) {
  RowTable table({4, 8, 160, 0, 0});
  std::vector<int32_t> rows;
  std::vector<step::TapEdit> edits;
  const auto lease = [&](const tap::TapSegment& segment) {
    ASSERT_TRUE(table.lease(std::vector{segment}, rows));
    table.release(rows);
    edits.clear();
    table.take_edits(edits);
  };
  lease(with_dictionaries(program_of(1, 16), {2}));  // 68 floats, 80 with what lies behind
  ASSERT_EQ(edits.size(), 1u);
  EXPECT_TRUE(edits[0].dictionaries.at(0).is_new);
  const int64_t first = edits[0].dictionaries[0].first_float;
  lease(with_dictionaries(program_of(2, 16), {2}));
  ASSERT_EQ(edits.size(), 1u);
  EXPECT_FALSE(edits[0].dictionaries.at(0).is_new);
  EXPECT_EQ(edits[0].dictionaries[0].first_float, first);
  lease(program_of(3, 128));  // needs the space of all that
  lease(with_dictionaries(program_of(1, 16), {2}));
  EXPECT_TRUE(edits.back().dictionaries.at(0).is_new);
  EXPECT_TRUE(table.check_integrity().has_value());
}

TEST(RowTable, PinnedProgramsGoLast) {
  RowTable table({4, 8, 64, 0, 0});
  table.pin(keyed(program_of(1, 16)));
  table.pin(keyed(program_of(1, 16)));
  EXPECT_TRUE(table.has_edits());
  std::vector<int32_t> rows;
  for (uint64_t number = 2; number < 9; ++number) {
    ASSERT_TRUE(table.lease(std::vector{program_of(number, 16)}, rows));
    table.release(rows);
  }
  EXPECT_EQ(table.stats().pinned_resident, 1);
  // Three others at a time need its row.
  ASSERT_TRUE(
      table.lease(std::vector{program_of(2, 16), program_of(3, 16), program_of(4, 16)}, rows));
  EXPECT_EQ(table.stats().pinned_resident, 0);
  table.release(rows);
  ASSERT_TRUE(table.lease(std::vector{program_of(1, 16)}, rows));
  EXPECT_EQ(table.stats().pinned_resident, 1);
  table.release(rows);
  table.unpin({1, 1});
  EXPECT_EQ(table.stats().pinned, 1);
  table.unpin({1, 1});
  EXPECT_EQ(table.stats().pinned, 0);
  EXPECT_EQ(table.stats().cached, 3);
}

TEST(RowTable, AnIdleTableServesWhateverFitsIntoAnEmptyOne) {
  const tap::Limits limits{8, 64, 160, 0, 0};
  RowTable table(limits);
  // A pinned program in the middle, which is part of the lease too.
  std::vector<int32_t> before;
  std::vector<int32_t> rows;
  ASSERT_TRUE(table.lease(std::vector{program_of(1, 64)}, before));
  table.pin(keyed(program_of(2, 16)));
  table.release(before);
  const std::vector<tap::TapSegment> segments = {program_of(2, 16), program_of(3, 96)};
  ASSERT_TRUE(RowTable::could_ever_fit(limits, segments).has_value());
  EXPECT_TRUE(table.lease(segments, rows));
  EXPECT_TRUE(table.check_integrity().has_value());
}

TEST(RowTable, WhatNeverFitsIsRefusedWithTheLimit) {
  const tap::Limits limits{3, 4, 64, 0, 0};
  const auto refused = [&](const std::vector<tap::TapSegment>& segments, const char* what) {
    const Result<void> verdict = RowTable::could_ever_fit(limits, segments);
    ASSERT_FALSE(verdict.has_value());
    EXPECT_EQ(verdict.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(verdict.error().message.find(what), std::string::npos) << verdict.error().message;
  };
  refused({program_of(1, 16), program_of(2, 16), program_of(3, 16)}, "2");
  refused({program_of(1, 16, 5)}, "ops");
  refused({program_of(1, 65)}, "elements");
  refused({with_dictionaries(program_of(1, 16), {2})}, "elements");
  EXPECT_TRUE(RowTable::could_ever_fit(
                  limits, std::vector{program_of(1, 16), {}, program_of(2, 16), program_of(1, 16)})
                  .has_value());
  EXPECT_FALSE(RowTable::could_ever_fit({}, std::vector{program_of(1, 16)}).has_value());
  EXPECT_TRUE(RowTable::could_ever_fit({}, {}).has_value());
}

struct Running {
  std::vector<tap::TapSegment> segments;
  std::vector<int32_t> rows;
  int32_t steps = 0;
};

// Sequences of random programs wait in order, run and end; the device is checked at every step.
void run_load(uint64_t seed) {
  Random random(seed);
  const tap::Limits limits{2 + random.below(10), 64, 16 * (8 + random.below(64)), 0, 0};
  RowTable table(limits);
  Device device(limits);
  std::deque<Running> waiting;
  std::vector<Running> running;
  std::map<uint64_t, int32_t> pins;
  const auto random_program = [&] {
    const uint64_t number = 1 + static_cast<uint64_t>(random.below(30));
    const tap::TapSegment program = program_of(number, 1 + static_cast<int32_t>(number * 37 % 90),
                                               1 + static_cast<int32_t>(number % 5));
    if (number % 3 != 0) return program;
    if (number % 4 == 0) return with_dictionaries(program, {number % 5, 5 + number % 2});
    return with_dictionaries(program, {number % 5});
  };
  int32_t submitted = 0;
  int32_t ended = 0;
  for (int32_t step = 0; submitted < 300 || ended < submitted; ++step) {
    ASSERT_LT(step, 20000) << "somebody waits for ever";
    if (submitted < 300 && random.one_in(2)) {
      Running one;
      for (int32_t i = random.below(4); i >= 0; --i) {
        one.segments.push_back(random.one_in(4) ? tap::TapSegment{} : random_program());
      }
      if (RowTable::could_ever_fit(limits, one.segments)) {
        one.steps = 1 + random.below(6);
        waiting.push_back(std::move(one));
        ++submitted;
      }
    }
    if (random.one_in(20)) {
      const tap::TapSegment program = random_program();
      table.pin(keyed(program));
      ++pins[program.content.low];
    } else if (random.one_in(20) && !pins.empty()) {
      table.unpin({pins.begin()->first, 1});
      if (--pins.begin()->second == 0) pins.erase(pins.begin());
    }
    while (!waiting.empty() && table.lease(waiting.front().segments, waiting.front().rows)) {
      running.push_back(std::move(waiting.front()));
      waiting.pop_front();
    }
    device.apply(table);
    for (const Running& one : running) {
      for (size_t i = 0; i < one.segments.size(); ++i) {
        if (one.segments[i].program == nullptr) {
          ASSERT_EQ(one.rows[i], 0);
        } else {
          ASSERT_TRUE(device.holds(one.rows[i], *one.segments[i].program)) << "step " << step;
        }
      }
    }
    std::erase_if(running, [&](Running& one) {
      if (--one.steps > 0) return false;
      table.release(one.rows);
      ++ended;
      return true;
    });
    const Result<void> sound = table.check_integrity();
    ASSERT_TRUE(sound.has_value()) << sound.error().message;
  }
  EXPECT_EQ(table.stats().held, 0);
}

TEST(RowTable, RandomLoadsNeverShareARowAndNobodyWaitsForEver) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    run_load(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace rudder::steer
