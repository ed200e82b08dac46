// Records in host memory and in files: that what comes back is what went, and that nothing else
// ever does.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "rudder/base/checksum.h"
#include "rudder/exec/record_files.h"
#include "rudder/exec/record_format.h"
#include "rudder/exec/record_memory.h"
#include "rudder/exec/tier_caps.h"

namespace rudder::exec {
namespace {

namespace fs = std::filesystem;

constexpr step::TierCaps kCaps = {.plain_records = 2,
                                  .stated_records = 2,
                                  .block_bytes = 112,
                                  .checkpoint_bytes = 37,
                                  .disk_bytes = 1 << 20};
constexpr int64_t kScaleBytes = 16;
constexpr step::RecordParts kBoth = step::group_part(0) | step::group_part(1);

// Two KV groups; eight blocks and four states of bytes that differ everywhere.
// By one thread and by several.
class RecordsTest : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("records-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    for (size_t i = 0; i < device_.size(); ++i)
      device_[i] = static_cast<std::byte>(i * 131 + i / 256);
    start();
  }
  void TearDown() override {
    memory_.reset();
    fs::remove_all(folder_);
  }

  void start() {
    memory_.reset();
    const std::span all(device_);
    auto files = RecordFiles::open(folder_);
    ASSERT_TRUE(files) << files.error().to_string();
    auto memory = RecordMemory::start(
        {.caps = kCaps,
         .num_groups = 2,
         .num_threads = GetParam(),
         .device = {.lane = std::make_unique<ops::HostLane>(),
                    .scales = all.first(8 * kScaleBytes),
                    .blocks = all.subspan(8 * kScaleBytes, 8 * (112 - kScaleBytes)),
                    .states = all.last(4 * 37),
                    .num_blocks = 8,
                    .num_states = 4},
         .files = std::move(*files)});
    ASSERT_TRUE(memory) << memory.error().to_string();
    memory_ = std::move(*memory);
  }

  step::RecordDone run(step::RecordCopy copy) {
    copy.id = ++last_id_;
    memory_->begin({&copy, 1});
    const auto done = memory_->take_done(true);
    EXPECT_EQ(done.size(), 1u);
    EXPECT_EQ(done.at(0).id, copy.id);
    return done.at(0);
  }
  step::RecordCopy copy_of(step::RecordMove move, std::vector<step::BlockId> blocks,
                           step::StateId state) const {
    return {.move = move,
            .key = {.low = 0xfeed, .high = 0xbeef},
            .record = 2,
            .parts = kBoth | (state >= 0 ? step::kStatePart : 0),
            .blocks = std::move(blocks),
            .state = state};
  }
  std::vector<std::byte> block(int64_t i) const {
    std::vector<std::byte> bytes(device_.begin() + i * kScaleBytes,
                                 device_.begin() + (i + 1) * kScaleBytes);
    const auto first = device_.begin() + 8 * kScaleBytes + i * (112 - kScaleBytes);
    bytes.insert(bytes.end(), first, first + (112 - kScaleBytes));
    return bytes;
  }
  std::vector<std::byte> state(int64_t i) const {
    const auto first = device_.end() - (4 - i) * 37;
    return {first, first + 37};
  }
  fs::path file() const {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().extension() == ".kv") return entry.path();
    }
    return {};
  }
  void store_and_write() {
    ASSERT_TRUE(run(copy_of(step::RecordMove::kStore, {1, 5}, 2)).ok);
    ASSERT_TRUE(run(copy_of(step::RecordMove::kWrite, {}, 2)).ok);
  }

  std::vector<std::byte> device_ = std::vector<std::byte>(8 * 112 + 4 * 37);
  fs::path folder_;
  std::unique_ptr<RecordMemory> memory_;
  int64_t last_id_ = 0;
};

TEST_P(RecordsTest, WhatComesBackIsWhatWent) {
  const auto kv = std::pair(block(1), block(5));
  const auto kept = state(2);
  store_and_write();
  const auto untouched = block(6);
  ASSERT_TRUE(run(copy_of(step::RecordMove::kLoad, {0, 7}, 3)).ok);
  EXPECT_EQ(std::pair(block(0), block(7)), kv);
  EXPECT_EQ(state(3), kept);
  EXPECT_EQ(block(6), untouched);
  start();  // another process, as it were: host memory is empty, the files are there
  ASSERT_EQ(memory_->stored().size(), 1u);
  EXPECT_EQ(memory_->stored()[0].parts, kBoth | step::kStatePart);
  step::RecordCopy of_another = copy_of(step::RecordMove::kLoad, {3, 4}, 1);
  of_another.key.high ^= 1;
  EXPECT_FALSE(run(of_another).ok);
  ASSERT_TRUE(run(copy_of(step::RecordMove::kFetch, {3, -1}, 1)).ok);
  EXPECT_EQ(block(3), kv.first);
  EXPECT_EQ(state(1), kept);
  run(copy_of(step::RecordMove::kErase, {}, 2));
  EXPECT_TRUE(memory_->stored().empty());
  const step::RecordDone gone = run(copy_of(step::RecordMove::kFetch, {3, 4}, 1));
  EXPECT_TRUE(!gone.ok && !gone.is_bad);
}

// Whatever a file has become, it is not taken, and nothing of it reaches what is not the load's.
TEST_P(RecordsTest, AFileThatIsNotWhatWasWrittenIsAMiss) {
  const auto change = [](size_t at) {
    return [at](std::string& bytes) { bytes[at] = static_cast<char>(bytes[at] ^ 1); };
  };
  const std::vector<std::function<void(std::string&)>> faults = {
      change(0),
      change(9),
      change(24),
      change(40),
      change(60),
      change(64),
      change(200),
      [](std::string& bytes) { bytes.pop_back(); },
      [](std::string& bytes) { bytes += 'x'; },
      [](std::string& bytes) { bytes.clear(); },
      [](std::string& bytes) { std::swap(bytes[100], bytes[180]); }};
  for (size_t i = 0; i < faults.size(); ++i) {
    store_and_write();
    std::string bytes;
    {
      std::ifstream in(file(), std::ios::binary);
      bytes.assign(std::istreambuf_iterator<char>(in), {});
    }
    faults[i](bytes);
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << bytes;
    const auto others = [&] {
      return std::tuple(block(0), block(1), block(2), block(5), block(6), block(7), state(0),
                        state(2), state(3));
    };
    const auto before = others();
    const step::RecordDone done = run(copy_of(step::RecordMove::kFetch, {3, 4}, 1));
    EXPECT_TRUE(!done.ok && done.is_bad) << "fault " << i;
    EXPECT_EQ(others(), before) << "fault " << i;
  }
}

// Several on their way at once, whose files change: each block has its own bytes in the end, and
// the file of a key is the last that was written.
TEST_P(RecordsTest, ManyAtOnceEndInAnyOrder) {
  std::vector<std::vector<std::byte>> blocks;
  for (int64_t i = 0; i < 4; ++i) blocks.push_back(block(i));
  const auto copy = [&](step::RecordMove move, int32_t record, step::BlockId at) {
    step::RecordCopy made = copy_of(move, {at, -1}, -1);
    made.id = ++last_id_;
    made.key.low = static_cast<uint64_t>(record);
    made.record = record;
    return made;
  };
  const auto run_all = [&](const std::vector<step::RecordCopy>& copies) {
    memory_->begin(copies);
    std::vector<int64_t> ended;
    while (ended.size() < copies.size()) {
      for (const step::RecordDone& done : memory_->take_done(true)) {
        EXPECT_TRUE(done.ok) << done.id;
        ended.push_back(done.id);
      }
    }
    std::ranges::sort(ended);
    for (size_t i = 0; i < copies.size(); ++i) EXPECT_EQ(ended[i], copies[i].id);
  };
  using Move = step::RecordMove;
  for (int32_t round = 0; round < 50; ++round) {
    std::vector<step::RecordCopy> copies;
    for (int32_t i = 0; i < 4; ++i) copies.push_back(copy(Move::kStore, i, i));
    run_all(copies);
    copies.clear();
    for (int32_t i = 0; i < 4; ++i) {
      for (const Move move : {Move::kWrite, Move::kErase, Move::kWrite}) {
        copies.push_back(copy(move, i, -1));
      }
      copies.push_back(copy(Move::kLoad, i, 4 + i));
    }
    run_all(copies);
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(block(4 + i), blocks[static_cast<size_t>(i)]);
    EXPECT_EQ(memory_->stored().size(), 4u);
    copies.clear();
    for (int32_t i = 0; i < 4; ++i) copies.push_back(copy(Move::kFetch, i, 7 - i));
    run_all(copies);
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(block(7 - i), blocks[static_cast<size_t>(i)]);
  }
}

TEST_P(RecordsTest, AFileUnderAnothersNameIsAMiss) {
  store_and_write();
  const std::string name = file().filename();
  fs::rename(file(), folder_ / ("00000000000000070000000000000007" + name.substr(32)));
  step::RecordCopy copy = copy_of(step::RecordMove::kFetch, {3, 4}, 1);
  copy.key = {.low = 7, .high = 7};
  const step::RecordDone done = run(copy);
  EXPECT_TRUE(!done.ok && done.is_bad);
}

// As where the disk is full: a process that may write no more.
TEST_P(RecordsTest, AWriteThatFailsLeavesNothing) {
  ASSERT_TRUE(run(copy_of(step::RecordMove::kStore, {1, 5}, 2)).ok);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit none = {.rlim_cur = 40, .rlim_max = old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &none);
  const step::RecordDone done = run(copy_of(step::RecordMove::kWrite, {}, 2));
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_FALSE(done.ok);
  EXPECT_TRUE(memory_->stored().empty());
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path().filename(), "lock");
  }
}

TEST_P(RecordsTest, WhatAKilledProcessLeftIsRemoved) {
  memory_.reset();
  std::ofstream(folder_ / "0011.kv.half") << "begun";
  std::ofstream(folder_ / "note.txt") << "not ours";
  start();
  EXPECT_FALSE(fs::exists(folder_ / "0011.kv.half"));
  EXPECT_TRUE(fs::exists(folder_ / "note.txt"));
  EXPECT_TRUE(memory_->stored().empty());
}

TEST_P(RecordsTest, OneProcessAtATimeHasTheFolder) {
  const auto second = RecordFiles::open(folder_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().where, "kv-disk-dir");
}

TEST_P(RecordsTest, TheFoldersSecretStays) {
  const auto first = folder_secret(folder_);
  ASSERT_TRUE(first) << first.error().to_string();
  EXPECT_EQ(first->size(), 32u);
  EXPECT_EQ(*folder_secret(folder_), *first);
  EXPECT_NE(*folder_secret(folder_ / "other"), *first);
}

INSTANTIATE_TEST_SUITE_P(Threads, RecordsTest, ::testing::Values(1, 4));

TEST(Checksum, EveryBitCounts) {
  std::vector<std::byte> bytes(147);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const uint64_t sum = checksum(bytes);
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] ^= static_cast<std::byte>(1U << (i % 8));
    EXPECT_NE(checksum(bytes), sum) << i;
    bytes[i / 8] ^= static_cast<std::byte>(1U << (i % 8));
  }
  EXPECT_NE(checksum(std::span(bytes).first(146)), sum);
}

// Files are read on other processors than they were written on.
TEST(Checksum, IsTheSameOnEveryProcessor) {
  std::vector<std::byte> bytes(4101);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 256);
  const auto of_first = [&](size_t count) { return checksum(std::span(bytes).first(count)); };
  EXPECT_EQ(of_first(0), 0x9a8de4ff66be00dcULL);
  EXPECT_EQ(of_first(63), 0x2d1d9ba5e35aae1eULL);
  EXPECT_EQ(of_first(147), 0xe66c8444c644a54aULL);
  EXPECT_EQ(of_first(4101), 0x37426f935f284de0ULL);
}

// Words, stripes and pages that change places.
TEST(Checksum, OrderCounts) {
  std::vector<std::byte> bytes(3 * 4096);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 256);
  const uint64_t sum = checksum(bytes);
  for (const size_t count : {8, 16, 64, 4096}) {
    std::swap_ranges(bytes.begin(), bytes.begin() + static_cast<int64_t>(count),
                     bytes.begin() + 4096);
    EXPECT_NE(checksum(bytes), sum) << count;
    std::swap_ranges(bytes.begin(), bytes.begin() + static_cast<int64_t>(count),
                     bytes.begin() + 4096);
  }
}

TEST(TierCaps, SettingsThatDoNotFitAreRefusedByName) {
  const auto where = [](const ExecSettings::Tiers& settings) {
    const auto caps = tier_caps(settings, 1, 1 << 20, 0);
    return caps ? std::string() : caps.error().where;
  };
  EXPECT_EQ(where({.host_gib = 1}), "");
  EXPECT_EQ(where({.disk_dir = "/d", .disk_gib = 1}), "kv-disk-dir");
  EXPECT_EQ(where({.host_gib = 1, .disk_dir = "/d"}), "kv-disk-dir");
  EXPECT_EQ(where({.host_gib = 1, .disk_gib = 1}), "kv-disk-gib");
  EXPECT_EQ(where({.host_gib = 0.0001}), "kv-host-gib");
  EXPECT_EQ(tier_caps({}, 1, 1 << 20, 0)->plain_records, 0);
  const auto both = tier_caps({.host_gib = 1}, 2, 1 << 20, 64 << 20);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->plain_records, 255);
  EXPECT_EQ(both->stated_records, 7);
}

}  // namespace
}  // namespace rudder::exec
