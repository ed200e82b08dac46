// Dictionaries of rows without a norm's gain, bound to a model: what is refused, and that keys tell
// models apart. What they compute: dictionary_test.cpp.
#include "rudder/steer/features/fold_gain.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "rudder/features/dictionary_image.h"
#include "rudder/steer/features/test_dictionary.h"
#include "rudder/steer/library.h"
#include "rudder/steer/parse_test_support.h"
#include "rudder/tap/content_hash.h"

namespace rudder::steer {
namespace {

constexpr tap::Point kMlpIn = {1, tap::Site::kMlpIn};
constexpr tap::Point kMlpOut = {1, tap::Site::kMlpOut};

features::Dictionary unfolded(DictionaryAsk ask = {}) {
  ask.read = kMlpIn;
  ask.write = kMlpOut;
  features::Dictionary dictionary = random_dictionary(ask, 3);
  dictionary.input_gain = features::InputGain::kRemoved;
  return dictionary;
}

tap::NormGain gain_of(std::vector<float> values) {
  return {"layers.1.norm.weight", std::move(values)};
}

void expect_refused(const features::Dictionary& dictionary, std::vector<float> gain,
                    std::string_view message) {
  const auto folded = fold_gain(dictionary, gain_of(std::move(gain)), "a file");
  ASSERT_FALSE(folded) << message;
  EXPECT_NE(folded.error().message.find(message), std::string::npos) << folded.error().to_string();
  EXPECT_EQ(folded.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(folded.error().where, "a file");
}

TEST(FoldGain, AColumnThatTheModelsRowDoesNotHaveIsNamed) {
  const features::Dictionary dictionary = unfolded();
  const auto column = [](float value) { return std::vector<float>{1, -2, value, 0.5f}; };
  for (const float small : {0.0f, -0.0f, 9e-7f, -9e-7f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    expect_refused(
        dictionary, column(small),
        fmt::format("column 2 of the model's 'layers.1.norm.weight' multiplies by {}", small));
  }
  for (const float enough : {kSmallestGain, -kSmallestGain}) {
    EXPECT_TRUE(fold_gain(dictionary, gain_of(column(enough)), "a file"));
  }
  expect_refused(dictionary, {}, "not known of layer 1");
}

TEST(FoldGain, AQuotientThatNoFileMayHoldIsNamed) {
  features::Dictionary dictionary = unfolded();
  dictionary.skip.assign(16, 0.0f);
  dictionary.skip[9] = 100;
  expect_refused(dictionary, {1, 1e-5f, 1, 1}, "column 1 of row 2 of its skip");
  auto encoder = std::make_shared<float[]>(24);
  encoder[23] = 2;
  dictionary.encoder = encoder;
  expect_refused(dictionary, {1, 1, 1, 1e-6f}, "column 3 of row 5 of its encoder");
}

TEST(FoldGain, WhatDoesNotCommuteIsRefused) {
  for (const auto norm : {tap::FeatureNorm::kConstantNorm, tap::FeatureNorm::kLayerNorm}) {
    expect_refused(unfolded({.norm = norm}), {1, 2, 3, 4}, "do not commute");
  }
  features::Dictionary itself = unfolded();
  itself.write = itself.read;
  expect_refused(itself, {1, 2, 3, 4}, "would write it without, too");
}

// Whole dictionaries and single columns, as programs hold them.
TEST(FoldGain, KeysTellModelsApart) {
  const tap::HashSecret secret = {3, 4};
  features::Dictionary kept = unfolded();
  kept.input_gain = features::InputGain::kKept;
  std::vector<std::shared_ptr<const features::Dictionary>> all = {
      std::make_shared<const features::Dictionary>(kept)};
  for (const float g : {0.5f, 0.75f}) {
    auto folded = fold_gain(unfolded(), gain_of({1, 1, 1, g}), "a file");
    ASSERT_TRUE(folded);
    all.push_back(*folded);
  }
  for (const auto dtype : {tensor::DType::kF32, tensor::DType::kBF16}) {
    std::set<std::pair<uint64_t, uint64_t>> keys;
    for (const auto& dictionary : all) {
      const tap::ContentKey key = features::image_of(*dictionary, secret, dtype)->key;
      keys.insert({key.low, key.high});
    }
    EXPECT_EQ(keys.size(), all.size());
  }
}

class BoundLibrary : public ::testing::Test {
 protected:
  static constexpr int32_t kWidth = 8;  // of tests/dictionaries

  static std::unique_ptr<Library> library(std::vector<float> gain) {
    Model model = test_model();
    model.geometry.hidden = kWidth;
    model.mlp_gains = {{}, {}, gain_of(std::move(gain)), {}};
    return std::make_unique<Library>(std::move(model), nullptr);
  }
  static auto add(Library& to) {
    return to.add_dictionary(
        "d", std::string(RUDDER_SOURCE_DIR) + "/tests/dictionaries/gemma_scope_transcoder",
        "blocks.2.ln2.hook_normalized,mlp_out.2");
  }
};

TEST_F(BoundLibrary, DividesByTheGainOfItsLayer) {
  std::set<std::pair<uint64_t, uint64_t>> keys;
  std::vector<float> gain(kWidth, 1.0f);
  for (const float first : {1.0f, 2.0f}) {
    gain[0] = first;
    const auto holder = library(gain);
    const auto set = add(*holder);
    ASSERT_TRUE(set) << set.error().to_string();
    EXPECT_EQ((*set)->layers[0]->input_gain, features::InputGain::kFolded);
    EXPECT_TRUE(describe(**set).at("layers").at(0).at("without_gain").as_bool());
    const auto config = holder->resolve(object_of(
        R"({"steering": {"op": "feature", "dictionary": "d", "feature": 1, "kind": "set", "value": 2}})"));
    ASSERT_TRUE(config) << config.error().to_string();
    const tap::ContentKey key = (*config)->program(1).key;
    keys.insert({key.low, key.high});
  }
  EXPECT_EQ(keys.size(), 2U);
}

TEST_F(BoundLibrary, RefusesWhatItsModelLacks) {
  std::vector<float> gain(kWidth, 1.0f);
  gain[6] = 0;
  const auto zero = add(*library(gain));
  ASSERT_FALSE(zero);
  EXPECT_NE(zero.error().message.find("column 6"), std::string::npos) << zero.error().to_string();
  const auto none = add(*library({}));
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("not known of layer 2"), std::string::npos);
}

}  // namespace
}  // namespace rudder::steer
