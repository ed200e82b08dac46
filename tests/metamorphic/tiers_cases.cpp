#include "metamorphic/tiers_cases.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "metamorphic/served_parts.h"
#include "rudder/exec/device_tiers.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::metamorphic {

namespace fs = std::filesystem;
using step::RecordMove;

namespace {

constexpr int32_t kChats = 8;
constexpr int32_t kTurns = 4;

class LateLane final : public ops::CopyLane {
 public:
  explicit LateLane(std::unique_ptr<ops::CopyLane> inner) : inner_(std::move(inner)) {}
  Result<std::span<std::byte>> allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  Result<void> copy_in(std::span<const ops::LanePiece> pieces,
                       FunctionRef<void()> meanwhile) override {
    std::this_thread::sleep_for(kLate);
    return inner_->copy_in(pieces, meanwhile);
  }
  Result<void> copy_out(std::span<const ops::LanePiece> pieces) override {
    std::this_thread::sleep_for(kLate);
    return inner_->copy_out(pieces);
  }

 private:
  static constexpr std::chrono::milliseconds kLate{3};
  const std::unique_ptr<ops::CopyLane> inner_;
};

class LateLaneOps final : public testing::PassingOps, public ops::ReaderOps {
 public:
  explicit LateLaneOps(std::unique_ptr<ops::Ops> inner) : PassingOps(std::move(inner)) {}
  bool is_host() const override { return false; }
  ops::ReaderOps* reader_ops() override { return this; }
  std::unique_ptr<ops::Ops> make_reader() const override { return nullptr; }
  int64_t reader_bytes() const override { return 0; }
  Result<std::unique_ptr<ops::CopyLane>> make_lane() const override {
    RUDDER_TRY(std::unique_ptr<ops::CopyLane> lane, exec::lane_of(*inner_));
    return std::make_unique<LateLane>(std::move(lane));
  }
};

// Conversations that take turns: each turn goes on from the one before, whose blocks the others
// have pushed out by then.
std::vector<Ask> chats() {
  std::vector<Ask> asks = random_asks(kChats, 77, 6);
  for (Ask& ask : asks) {
    ask.prompt.resize(std::max<size_t>(ask.prompt.size(), 70), 11);
    for (size_t i = 0; i < 70; ++i) ask.prompt[i] = (ask.prompt[i] + static_cast<int32_t>(i)) % 160;
    ask.prompt.resize(70);
    ask.sampling.num_prompt_logprobs = -1;
  }
  for (int32_t chat = 0; chat < kChats; ++chat) asks[static_cast<size_t>(chat)].prompt[0] = chat;
  std::vector<Ask> all;
  for (int32_t turn = 0; turn < kTurns; ++turn) {
    for (int32_t chat = 0; chat < kChats; ++chat) {
      Ask& ask = asks[static_cast<size_t>(chat)];
      for (int32_t i = 0; i < 25 * (turn > 0); ++i) {
        ask.prompt.push_back((chat * 31 + turn * 17 + i * 7) % 160);
      }
      ask.max_len = static_cast<int32_t>(ask.prompt.size()) + 6;
      ask.arrival = 12 * static_cast<int32_t>(all.size());
      all.push_back(ask);
    }
  }
  return all;
}

// The same, and beside them one that decodes all the while.
std::vector<Ask> chats_beside_a_long_answer() {
  std::vector<Ask> asks = chats();
  Ask longest;
  longest.prompt = {150, 151, 152, 153, 154};
  longest.max_len = kRoomy.max_seq_len;
  longest.sampling.num_logprobs = 2;
  asks.push_back(longest);
  return asks;
}

// Of the prefixes of all chats, less than a third.
step::Capacity small_cache(const model::ModelSpec& spec) {
  step::Capacity capacity = kRoomy;
  capacity.num_slots = 4;
  capacity.num_blocks = 24;
  give_states(capacity, spec);
  if (!capacity.states.empty()) capacity.states.count = 10;
  return capacity;
}

// The bytes that a record has are those that start_executor() lays out, known when it has.
step::TierCaps tiers_of(ops::Ops& ops, const model::ModelSpec& spec, const step::Capacity& capacity,
                        int64_t disk_bytes) {
  const exec::KvLayout layout =
      value_of(exec::make_kv_layout(spec, {.kv = ops.kv_format(),
                                           .block_size = capacity.block_size,
                                           .max_seq_len = capacity.max_seq_len,
                                           .lookback = ops.attention_lookback()}));
  return {.plain_records = 200,
          .stated_records = capacity.states.empty() ? 0 : 60,
          .block_bytes = layout.block_bytes,
          .checkpoint_bytes = exec::StateMemory::state_bytes(spec),
          .disk_bytes = disk_bytes};
}

sched::SchedSettings sharing() {
  sched::SchedSettings settings = plain_settings();
  settings.enable_prefix_caching = true;
  settings.hash_bits = 128;
  settings.hash_key = {3, 4};
  settings.model_identity = "tiny";
  settings.max_num_seqs = 4;
  settings.max_num_batched_tokens = 64;
  settings.max_in_flight = 2;
  settings.store_uses = 1;
  settings.weighs_fetches = false;  // what a busy machine takes is no matter
  return settings;
}

// A bit of every file turns.
void damage(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".kv") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(80);
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(80);
    file.put(byte);
  }
}

fs::path folder_of(const char* name) {
  return fs::temp_directory_path() / (std::string(name) + "-" + std::to_string(::getpid()));
}

}  // namespace

std::unique_ptr<ops::Ops> on_late_lane(std::unique_ptr<ops::Ops> inner) {
  return std::make_unique<LateLaneOps>(std::move(inner));
}

void TiersTest::SetUp() {
  folder_ = folder_of("tiers");
  fs::remove_all(folder_);
  spec_ = testing::tiny_spec(GetParam().arch);
  if (GetParam().serves_parts) use_served_parts(spec_);
}

void TiersTest::TearDown() {
  fs::remove_all(folder_);
}

Outcome TiersTest::serve(const std::vector<Ask>& asks, int64_t disk_bytes, bool is_late) {
  step::Capacity capacity = small_cache(spec_);
  exec::DeviceExecutor::Model model;
  model.ops = GetParam().make();
  if (is_late) model.ops = on_late_lane(std::move(model.ops));
  if (disk_bytes >= 0) capacity.tiers = tiers_of(*model.ops, spec_, capacity, disk_bytes);
  model.spec = spec_;
  model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
  exec::DeviceExecutor::Options options;
  options.record_folder = folder_;
  const auto executor = value_of(start_executor(std::move(model), capacity, options));
  return run(*executor, sharing(), asks);
}

TEST_P(TiersTest, TokensAreThoseOfAServerWithoutThem) {
  const std::vector<Ask> asks = chats();
  const Outcome without = serve(asks, -1);
  const Outcome with = serve(asks, 0);
  expect_same(without.got, with.got, "with a host tier");
  EXPECT_EQ(without.stats.cached.tiers.host_hits, 0u);
  EXPECT_GT(with.stats.cached.tiers.host_hits, 500u);
  EXPECT_EQ(with.stats.cached.tiers.disk_hits, 0u);
  EXPECT_EQ(with.stats.cached.tiers.bad_records, 0u);
  EXPECT_GT(with.stats.prefix_hits, without.stats.prefix_hits);
}

// Blocks are stored while others are short of them, and fetched while steps run: what is read and
// written late is what was to be read and written, and steps beside it are as without it.
TEST_P(TiersTest, CopiesThatBeginLateChangeNothing) {
  const std::vector<Ask> asks = chats_beside_a_long_answer();
  const Outcome without = serve(asks, -1);
  const Outcome with = serve(asks, 0, true);
  expect_same(without.got, with.got, "with late copies");
  EXPECT_GT(with.stats.cached.tiers.host_hits, 100u);
  EXPECT_EQ(with.stats.cached.tiers.bad_records, 0u);
}

TEST_P(TiersTest, TheNextProcessFindsWhatIsInFiles) {
  const std::vector<Ask> asks = chats();
  const Outcome first = serve(asks, int64_t{1} << 30);
  EXPECT_GT(first.stats.cached.tiers.disk_stored, 50u);
  const Outcome second = serve(asks, int64_t{1} << 30);
  expect_same(first.got, second.got, "after a restart");
  EXPECT_GT(second.stats.cached.tiers.disk_hits, 300u);
  damage(folder_);
  const Outcome third = serve(asks, int64_t{1} << 30);
  expect_same(first.got, third.got, "with files of other bytes");
  EXPECT_GT(third.stats.cached.tiers.bad_records, 5u);
}

namespace {

constexpr int64_t kScaleBytes = 1152;
constexpr int64_t kNumberBytes = (int64_t{1} << 20) + 64;
constexpr int64_t kStateBytes = 300'032;
constexpr step::TierCaps kCaps = {.plain_records = 0,
                                  .stated_records = 12,
                                  .block_bytes = kScaleBytes + kNumberBytes,
                                  .checkpoint_bytes = kStateBytes,
                                  .disk_bytes = 1 << 30};

}  // namespace

void DeviceRecordsTest::SetUp() {
  folder_ = folder_of("device-records");
  fs::remove_all(folder_);
  ops_ = GetParam().make();
  const int64_t bytes = kBlocks * kCaps.block_bytes + kStates * kStateBytes;
  device_ = value_of(ops_->allocate(tensor::DType::kU8, {bytes}));
  fill(1);
  start();
}

void DeviceRecordsTest::TearDown() {
  memory_.reset();
  fs::remove_all(folder_);
}

void DeviceRecordsTest::start() {
  memory_.reset();
  const std::span all(static_cast<std::byte*>(device_.data), device_.bytes());
  exec::RecordMemory::Parts parts{
      .caps = kCaps,
      .num_groups = 1,
      .num_threads = 4,
      .device = {.lane = value_of(exec::lane_of(*ops_)),
                 .scales = all.first(kBlocks * kScaleBytes),
                 .blocks = all.subspan(kBlocks * kScaleBytes, kBlocks * kNumberBytes),
                 .states = all.last(kStates * kStateBytes),
                 .num_blocks = kBlocks,
                 .num_states = kStates},
      .files = value_of(exec::RecordFiles::open(folder_))};
  memory_ = value_of(exec::RecordMemory::start(std::move(parts)));
}

void DeviceRecordsTest::run(std::vector<step::RecordCopy> copies) {
  for (step::RecordCopy& copy : copies) copy.id = ++last_id_;
  memory_->begin(copies);
  for (size_t left = copies.size(); left > 0;) {
    for (const step::RecordDone& done : memory_->take_done(true)) {
      EXPECT_TRUE(done.ok) << done.id;
      --left;
    }
  }
}

step::RecordCopy DeviceRecordsTest::copy_of(RecordMove move, uint64_t key, step::BlockId block,
                                            step::StateId state) const {
  return {.move = move,
          .key = {.low = key, .high = 5},
          .record = static_cast<step::RecordId>(key % kRecords),
          .parts = step::group_part(0) | step::kStatePart,
          .blocks = {block},
          .state = state};
}

std::vector<uint8_t> DeviceRecordsTest::read(const ops::View& device) {
  const ops::View staging = value_of(ops_->allocate_staging(static_cast<int64_t>(device.bytes())));
  ops_->copy_out(staging, device);
  const auto event = ops_->make_event();
  ops_->record(*event);
  EXPECT_TRUE(event->wait());
  const auto* const data = static_cast<const uint8_t*>(staging.data);
  return {data, data + device.bytes()};
}

std::vector<uint8_t> DeviceRecordsTest::bytes_of(step::BlockId block, step::StateId state) {
  std::vector<uint8_t> bytes = read(device_.rows(block * kScaleBytes, kScaleBytes));
  const auto add = [&](int64_t begin, int64_t count) {
    const std::vector<uint8_t> more = read(device_.rows(begin, count));
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  add(kBlocks * kScaleBytes + block * kNumberBytes, kNumberBytes);
  add(kBlocks * kCaps.block_bytes + state * kStateBytes, kStateBytes);
  return bytes;
}

void DeviceRecordsTest::fill(uint32_t seed) {
  const ops::View staging = value_of(ops_->allocate_staging(static_cast<int64_t>(device_.bytes())));
  std::mt19937 random(seed);
  auto* const bytes = static_cast<uint8_t*>(staging.data);
  std::generate(bytes, bytes + device_.bytes(), [&] { return static_cast<uint8_t>(random()); });
  ops_->copy_in(device_, staging);
  const auto event = ops_->make_event();
  ops_->record(*event);
  EXPECT_TRUE(event->wait());
}

// Side by side, through host memory and through files.
TEST_P(DeviceRecordsTest, WhatComesBackIsWhatWent) {
  std::vector<std::vector<uint8_t>> went;
  std::vector<step::RecordCopy> stores;
  std::vector<step::RecordCopy> writes;
  for (int32_t i = 0; i < kStates; ++i) {
    went.push_back(bytes_of(i, i));
    stores.push_back(copy_of(RecordMove::kStore, static_cast<uint64_t>(i), i, i));
    writes.push_back(copy_of(RecordMove::kWrite, static_cast<uint64_t>(i), i, i));
  }
  run(stores);
  run(writes);
  for (const RecordMove move : {RecordMove::kLoad, RecordMove::kFetch}) {
    fill(2);
    if (move == RecordMove::kFetch) start();  // host memory is another
    const std::vector<uint8_t> untouched = read(device_.rows(0, kScaleBytes));
    std::vector<step::RecordCopy> loads;
    for (int32_t i = 0; i < kStates; ++i) {
      loads.push_back(copy_of(move, static_cast<uint64_t>(i), kBlocks - 1 - i, i));
    }
    run(loads);
    for (int32_t i = 0; i < kStates; ++i) {
      EXPECT_EQ(bytes_of(kBlocks - 1 - i, i), went[static_cast<size_t>(i)]) << i;
    }
    EXPECT_EQ(read(device_.rows(0, kScaleBytes)), untouched);
  }
}

TEST_P(DeviceRecordsTest, ADamagedRecordIsToldAndLeavesAllElseAsItWas) {
  run({copy_of(RecordMove::kStore, 1, 1, 1)});
  run({copy_of(RecordMove::kWrite, 1, 1, 1)});
  damage(folder_);
  const auto others = [&] {
    return std::pair(std::pair(bytes_of(2, 1), bytes_of(4, 3)), bytes_of(0, 0));
  };
  const auto before = others();
  step::RecordCopy fetch = copy_of(RecordMove::kFetch, 1, 3, 2);
  fetch.id = ++last_id_;
  memory_->begin({&fetch, 1});
  const std::vector<step::RecordDone> done = memory_->take_done(true);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_TRUE(!done[0].ok && done[0].is_bad);
  EXPECT_EQ(others(), before);
}

}  // namespace rudder::metamorphic
