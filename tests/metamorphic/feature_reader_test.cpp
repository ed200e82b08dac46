// The reader of features over the CPU's ops, which serve without it: where the code is tested that
// a GPU runs.
#include <memory>
#include <string>

#include "metamorphic/feature_reader_cases.h"
#include "metamorphic/harness.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/exec/make_executor.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::metamorphic {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, FeatureReaderTest,
                         ::testing::Values(FeatureBackend{"reference", cpu::make_reference_ops}),
                         [](const auto& info) { return info.param.name; });

// A device that reads features itself, beside a lens, as long as it can open readers.
class ReadingOps final : public testing::PassingOps, public ops::ReaderOps {
 public:
  explicit ReadingOps(int num_readers)
      : PassingOps(cpu::make_reference_ops()), num_left_(num_readers) {}
  bool is_host() const override { return false; }
  ops::ReaderOps* reader_ops() override { return this; }
  int64_t reader_bytes() const override { return 0; }
  Result<std::unique_ptr<ops::CopyLane>> make_lane() const override {
    return std::make_unique<ops::HostLane>();
  }
  std::unique_ptr<ops::Ops> make_reader() const override {
    return num_left_-- > 0 ? cpu::make_reference_ops() : nullptr;
  }

 private:
  mutable int num_left_;
};

Result<exec::LoadedModel> load_reading(const exec::ExecSettings& asked, int num_readers = 2) {
  const auto checkpoint = value_of(
      weights::Checkpoint::open_folder(std::string(RUDDER_SOURCE_DIR) + "/tests/golden/llama3"));
  exec::ExecSettings settings = asked;
  settings.max_model_len = 96;
  settings.kv_cache_memory_bytes = 4 << 20;
  settings.enable_steering = true;
  return exec::load_model(*checkpoint, std::make_unique<ReadingOps>(num_readers), settings,
                          {.max_num_seqs = 8, .max_num_batched_tokens = 50}, {});
}

TEST(FeatureReaderOfAModel, IsThereWhereDictionariesMayBeNamed) {
  exec::ExecSettings settings;
  settings.capture_memory_mb = 8;
  settings.feature_memory_mb = 2;
  EXPECT_EQ(value_of(load_reading(settings)).features, nullptr);
  settings.dictionaries.any = true;
  const exec::LoadedModel loaded = value_of(load_reading(settings));
  ASSERT_NE(loaded.features, nullptr);
  EXPECT_TRUE(loaded.features->stats().on_device);
  EXPECT_EQ(loaded.memory.readers.feature_bytes, 2 << 20);
  const auto fits = [&](int32_t num_features) {
    return loaded.features
        ->check(steer::random_dictionary({.width = 64, .num_features = num_features}, 1))
        .has_value();
  };
  EXPECT_TRUE(fits(3000));
  EXPECT_FALSE(fits(5000));  // 1.3 MB of encoder, 1.3 MB for a batch
  settings.dictionaries.dtype = tensor::DType::kBF16;
  const exec::LoadedModel halved = value_of(load_reading(settings));
  EXPECT_TRUE(
      halved.features->check(steer::random_dictionary({.width = 64, .num_features = 5000}, 1)));
  settings.capture_memory_mb = 0;
  EXPECT_EQ(value_of(load_reading(settings)).features, nullptr);
}

// No start without what was asked for: rows would be read on the host, a hundred times as slowly.
TEST(FeatureReaderOfAModel, ThatCannotOpenEndsTheStart) {
  exec::ExecSettings settings;
  settings.capture_memory_mb = 8;
  settings.dictionaries.any = true;
  const Result<exec::LoadedModel> loaded = load_reading(settings, 1);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().where, "feature-memory-mb");
}

}  // namespace
}  // namespace rudder::metamorphic
