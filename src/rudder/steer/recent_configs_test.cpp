#include "rudder/steer/recent_configs.h"

#include <gtest/gtest.h>

#include <thread>

#include "rudder/steer/features/test_dictionary.h"
#include "rudder/steer/test_support.h"

namespace rudder::steer {
namespace {

class RecentConfigsTest : public ::testing::Test {
 protected:
  static std::shared_ptr<const features::Dictionary> dictionary(uint64_t seed) {
    return std::make_shared<const features::Dictionary>(
        random_dictionary({.width = kTestHidden, .num_features = 64}, seed));
  }
  static OpSpec clamp(const std::shared_ptr<const features::Dictionary>& of, int32_t feature,
                      double value) {
    OpSpec spec;
    spec.op = OpName::kFeature;
    spec.point = of->write;
    spec.vector = of->decoder_row(feature);
    spec.clamp = {
        .dictionary = of, .feature = feature, .edit = tap::FeatureEdit::kSet, .value = value};
    return spec;
  }
  std::shared_ptr<const Config> config_of(std::vector<OpSpec> specs) {
    auto config = recent_.config_of(model_, std::move(specs));
    EXPECT_TRUE(config) << config.error().message;
    return config.value_or(nullptr);
  }

  const std::shared_ptr<const Model> model_ = shared_test_model();
  const std::shared_ptr<const features::Dictionary> dictionary_ = dictionary(1);
  RecentConfigs recent_;
};

TEST_F(RecentConfigsTest, EqualClampsHaveOneConfig) {
  const auto first = config_of({clamp(dictionary_, 0, 1), clamp(dictionary_, 3, 2)});
  EXPECT_EQ(config_of({clamp(dictionary_, 0, 1), clamp(dictionary_, 3, 2)}), first);
  EXPECT_NE(config_of({clamp(dictionary_, 3, 2), clamp(dictionary_, 0, 1)}), first);
  EXPECT_NE(config_of({clamp(dictionary_, 0, 1)}), first);
  EXPECT_NE(config_of({clamp(dictionary_, 0, 1), clamp(dictionary_, 3, 2.5)}), first);
  const auto same = dictionary(1);  // as another name would have it
  EXPECT_NE(config_of({clamp(same, 0, 1), clamp(same, 3, 2)}), first);
}

TEST_F(RecentConfigsTest, WhatSelectsOrChangesTheClampIsCompared) {
  const OpSpec bare = clamp(dictionary_, 5, 1);
  const auto first = config_of({bare});
  OpSpec decode = bare;
  decode.select.phase = Phase::kDecode;
  OpSpec active = bare;
  active.clamp.only_if_active = true;
  OpSpec scheduled = bare;
  scheduled.schedule = {tap::ScheduleKind::kRamp, 0, 8, 1, 0};
  OpSpec scaled = bare;
  scaled.scale = 0.5;
  for (const OpSpec& other : {decode, active, scheduled, scaled}) {
    EXPECT_NE(config_of({other}), first);
  }
  EXPECT_EQ(config_of({bare}), first);
}

TEST_F(RecentConfigsTest, VectorsOfARequestAreNotKept) {
  OpSpec add;
  add.op = OpName::kAdd;
  add.point = dictionary_->write;
  add.vector = dictionary_->decoder_row(0);
  const std::vector<OpSpec> specs = {clamp(dictionary_, 0, 1), add};
  const std::weak_ptr<const Config> added = config_of(specs);
  EXPECT_TRUE(added.expired());
  OpSpec gated = clamp(dictionary_, 0, 1);
  gated.gate.kind = Gate::Kind::kProbe;
  gated.gate.vector = dictionary_->encoder_row(1);
  const std::weak_ptr<const Config> with_gate = config_of({gated});
  EXPECT_TRUE(with_gate.expired());
}

TEST_F(RecentConfigsTest, TheOneThatWasNotAskedForTheLongestIsForgotten) {
  std::vector<std::weak_ptr<const Config>> made;
  for (int32_t i = 0; i < static_cast<int32_t>(RecentConfigs::kMost); ++i) {
    made.emplace_back(config_of({clamp(dictionary_, i, 1)}));
  }
  EXPECT_EQ(config_of({clamp(dictionary_, 0, 1)}), made[0].lock());
  config_of({clamp(dictionary_, 60, 1)});
  EXPECT_FALSE(made[0].expired());
  EXPECT_TRUE(made[1].expired());
  EXPECT_FALSE(made[2].expired());
}

TEST_F(RecentConfigsTest, ManyThreadsAskForThem) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this] {
      for (int32_t i = 0; i < 400; ++i) {
        const int32_t feature = i * 7 % 40;
        const auto config = config_of({clamp(dictionary_, feature, 1)});
        ASSERT_EQ(config->specs()[0].clamp.feature, feature);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace rudder::steer
