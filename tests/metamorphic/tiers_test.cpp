// Cached prefixes behind the device (docs/contracts/cache.md, "Tiers"): tokens and
// log-probabilities are those of an executor without tiers, where the prefixes are several times
// what the KV cache holds; what is stored is found again, also by the next process; and a record
// with other bytes is never used.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "metamorphic/harness.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/ops/ops.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::metamorphic {
namespace {

namespace fs = std::filesystem;
using testing::TinyArch;

constexpr int32_t kChats = 8;
constexpr int32_t kTurns = 4;

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

// Of the prefixes of all chats, less than a third.
step::Capacity small_cache(TinyArch arch) {
  step::Capacity capacity = kRoomy;
  capacity.num_slots = 4;
  capacity.num_blocks = 24;
  const model::ModelSpec spec = testing::tiny_spec(arch);
  give_states(capacity, spec);
  if (!capacity.states.empty()) capacity.states.count = 10;
  return capacity;
}

// The bytes that a record has are those that start_executor() lays out, known when it has.
step::TierCaps tiers_of(const Backend& backend, TinyArch arch, const step::Capacity& capacity,
                        int64_t disk_bytes) {
  const std::unique_ptr<ops::Ops> ops = backend.make();
  const model::ModelSpec spec = testing::tiny_spec(arch);
  const exec::KvLayout layout =
      value_of(exec::make_kv_layout(spec, {.kv = ops->kv_format(),
                                           .block_size = capacity.block_size,
                                           .max_seq_len = capacity.max_seq_len,
                                           .lookback = ops->attention_lookback()}));
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

// A device that the host does not reach, as executors see it: records are copied on a lane of its
// own, by several threads.
class ApartOps final : public testing::PassingOps, public ops::ReaderOps {
 public:
  ApartOps() : PassingOps(cpu::make_reference_ops()) {}
  bool is_host() const override { return false; }
  ops::ReaderOps* reader_ops() override { return this; }
  std::unique_ptr<ops::Ops> make_reader() const override { return cpu::make_reference_ops(); }
  int64_t reader_bytes() const override { return 0; }
};

class TiersTest : public ::testing::TestWithParam<std::tuple<TinyArch, bool>> {
 protected:
  static TinyArch arch() { return std::get<0>(GetParam()); }
  static Backend backend() {
    if (!std::get<1>(GetParam())) return backends().front();
    Backend apart = backends().front();
    apart.make = [] { return std::make_unique<ApartOps>(); };
    return apart;
  }
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  Outcome serve(const std::vector<Ask>& asks, int64_t disk_bytes, bool has_tiers = true) {
    step::Capacity capacity = small_cache(arch());
    if (has_tiers) capacity.tiers = tiers_of(backend(), arch(), capacity, disk_bytes);
    exec::DeviceExecutor::Options options;
    options.record_folder = folder_;
    const auto executor = tiny_executor(backend(), arch(), capacity, options);
    return run(*executor, sharing(), asks);
  }

  const fs::path folder_ = fs::temp_directory_path() / ("tiers-" + std::to_string(::getpid()));
};

TEST_P(TiersTest, TokensAreThoseOfAServerWithoutThem) {
  const std::vector<Ask> asks = chats();
  const Outcome without = serve(asks, 0, false);
  const Outcome with = serve(asks, 0);
  expect_same(without.got, with.got, "with a host tier");
  EXPECT_EQ(without.stats.cached.tiers.host_hits, 0u);
  EXPECT_GT(with.stats.cached.tiers.host_hits, 500u);
  EXPECT_EQ(with.stats.cached.tiers.disk_hits, 0u);
  EXPECT_EQ(with.stats.cached.tiers.bad_records, 0u);
  EXPECT_GT(with.stats.prefix_hits, without.stats.prefix_hits);
}

TEST_P(TiersTest, TheNextProcessFindsWhatIsInFiles) {
  const std::vector<Ask> asks = chats();
  const Outcome first = serve(asks, int64_t{1} << 30);
  EXPECT_GT(first.stats.cached.tiers.disk_stored, 50u);
  const Outcome second = serve(asks, int64_t{1} << 30);
  expect_same(first.got, second.got, "after a restart");
  EXPECT_GT(second.stats.cached.tiers.disk_hits, 300u);
  // A bit of every file turns.
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().extension() != ".kv") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(80);
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(80);
    file.put(byte);
  }
  const Outcome third = serve(asks, int64_t{1} << 30);
  expect_same(first.got, third.got, "with files of other bytes");
  EXPECT_GT(third.stats.cached.tiers.bad_records, 5u);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, TiersTest,
    ::testing::Combine(::testing::Values(TinyArch::kPreNorm, TinyArch::kSandwich, TinyArch::kDelta),
                       ::testing::Bool()),
    [](const auto& test) {
      return std::string(testing::tiny_arch_name(std::get<0>(test.param))) +
             (std::get<1>(test.param) ? "_apart" : "");
    });

}  // namespace
}  // namespace rudder::metamorphic
