// "control" of a gate: what a request becomes, which tokens read and which are controlled, and what
// is refused with which path.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "rudder/steer/parse_test_support.h"
#include "rudder/steer/segments.h"
#include "rudder/testing/reference_taps.h"

namespace rudder::steer {
namespace {

constexpr std::string_view kProbe =
    R"("probe": {"vector": [1, 0, 0, 1], "site": "resid_post", "layer": 12})";
constexpr std::string_view kLaw = R"("target": 3, "gain": 0.5, "min": -1, "max": 4)";

std::string controlled_by(std::string_view control, std::string_view more = "",
                          std::string_view more_of_gate = "") {
  return fmt::format(
      R"({{"steering": {{"op": "add", "site": "resid_post", "layers": [1, 10], "vector": {}, "scale": 2,
           "gate": {{"control": {{{}}}{}}}{}}}}})",
      kV, control, more_of_gate, more);
}

OneName control_names(const DictionaryAsk& ask = {}) {
  OneName names;
  names.set_dictionary(named_set("d", random_dictionary(ask, 3)));
  return names;
}

tap::SequenceTaps control_taps(std::string_view body, int32_t prompt_len) {
  const auto config = config_of(body, control_names());
  EXPECT_TRUE(config.has_value()) << body << config.error().to_string();
  PromptShape shape;
  shape.prompt_len = prompt_len;
  return make_taps(**config, shape).value();
}

TEST(ParseControl, ThePromptsLastTokenIsReadAndGeneratedOnesAreControlled) {
  const tap::SequenceTaps taps =
      control_taps(controlled_by(fmt::format("{}, {}", kProbe, kLaw)), 6);
  EXPECT_TRUE(taps.is_controlled);
  EXPECT_FALSE(taps.needs_whole_prompt || taps.is_scheduled);
  ASSERT_EQ(taps.segments.size(), 3U);
  EXPECT_TRUE(taps.segments[0].content.none());
  EXPECT_EQ(taps.segments[1].begin, 5);
  ASSERT_EQ(taps.segments[1].program->ops.size(), 1U);
  const tap::ProgramOp& sense = taps.segments[1].program->ops[0];
  EXPECT_EQ(sense.op.kind, tap::OpKind::kSense);
  EXPECT_EQ(sense.op.hi, 0);
  EXPECT_EQ(sense.point, (tap::Point{12, tap::Site::kResidPost}));
  EXPECT_EQ(taps.segments[2].begin, 6);
  ASSERT_EQ(taps.segments[2].program->ops.size(), 3U);  // two layers share a reading
  for (const size_t i : {0, 1}) {
    const tap::TapOp& op = taps.segments[2].program->ops[i].op;
    EXPECT_EQ(op.kind, tap::OpKind::kAdd);
    EXPECT_EQ(op.gate, tap::GateKind::kControl);
    EXPECT_EQ(op.latch, sense.op.latch);
    EXPECT_EQ((std::array{op.strength, op.threshold, op.sharpness, op.from, op.to}),
              (std::array{2.0f, 3.0f, 0.5f, -1.0f, 4.0f}));
  }
}

TEST(ParseControl, WindowsChooseGeneratedTokensAndReadingGoesOn) {
  const std::string law = fmt::format("{}, {}", kProbe, kLaw);
  const tap::SequenceTaps windows = control_taps(
      controlled_by(law, R"(, "select": {"prompt": [0, 2], "generation": [1, 3]})"), 6);
  ASSERT_EQ(windows.segments.size(), 4U);
  EXPECT_EQ(windows.segments[1].begin, 5);
  EXPECT_EQ(windows.segments[2].begin, 7);
  EXPECT_EQ(windows.segments[3].begin, 9);
  EXPECT_EQ(windows.segments[3].content, windows.segments[1].content);  // it only reads
  const tap::SequenceTaps scheduled = control_taps(
      controlled_by(law, "", R"(, "schedule": {"kind": "window", "begin": 1, "end": 3})"), 6);
  ASSERT_EQ(scheduled.segments.size(), 4U);
  EXPECT_EQ(scheduled.segments[2].content, windows.segments[2].content);
}

TEST(ParseControl, TheKeyCoversEveryNumber) {
  const auto key_of = [](std::string_view control) {
    return control_taps(controlled_by(control), 6).segments.back().content;
  };
  const tap::ContentKey key = key_of(fmt::format("{}, {}", kProbe, kLaw));
  EXPECT_EQ(key, key_of(fmt::format("{}, {}", kLaw, kProbe)));
  for (const std::string_view law : {R"("target": 2, "gain": 0.5, "min": -1, "max": 4)",
                                     R"("target": 3, "gain": 0.6, "min": -1, "max": 4)",
                                     R"("target": 3, "gain": 0.5, "min": 0, "max": 4)",
                                     R"("target": 3, "gain": 0.5, "min": -1, "max": 5)"}) {
    EXPECT_NE(key, key_of(fmt::format("{}, {}", kProbe, law))) << law;
  }
  for (const std::string_view probe :
       {R"("probe": {"vector": [1, 0, 0, 2], "site": "resid_post", "layer": 12})",
        R"("probe": {"vector": [1, 0, 0, 1], "site": "resid_post", "layer": 11})",
        R"("feature": {"dictionary": "d", "feature": 1})"}) {
    EXPECT_NE(key, key_of(fmt::format("{}, {}", probe, kLaw))) << probe;
  }
}

// The fp64 form of the device's ops, against the features that encoding the row gives.
TEST(ParseControl, AFeatureIsReadAsTheDictionaryEncodesIt) {
  Random random(5);
  int active = 0;
  for (const auto activation : {features::Activation::kRelu, features::Activation::kJumpRelu,
                                features::Activation::kGated}) {
    const OneName names = control_names({.activation = activation, .subtracts_bias = true});
    const features::Dictionary& dictionary = *names.find_dictionary("d")->layers[0];
    for (int32_t round = 0; round < 60; ++round) {
      const int32_t feature = round % dictionary.num_features;
      const auto config =
          config_of(controlled_by(fmt::format(
                        R"("feature": {{"dictionary": "d", "feature": {}}}, {})", feature, kLaw)),
                    names);
      ASSERT_TRUE(config) << config.error().to_string();
      PromptShape shape;
      shape.prompt_len = 1;
      const auto taps = make_taps(**config, shape);
      const std::vector<float> h = random.vector(4);
      std::vector<float> features(6);
      encode(dictionary, h, features);
      testing::ReferenceLatches latches;
      testing::reference_program(*taps->segments[0].program, dictionary.read, {h.begin(), h.end()},
                                 -1, latches);
      ASSERT_EQ(latches[0].size(), 2U);
      EXPECT_EQ(latches[0][0], -1);
      EXPECT_NEAR(latches[0][1], features[static_cast<size_t>(feature)], 1e-5);
      active += features[static_cast<size_t>(feature)] > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(active, 30);
}

TEST(ParseControl, SlotsHaveFourLatches) {
  std::string elements;
  for (int32_t i = 0; i < 5; ++i) {
    const std::string element = fmt::format(
        R"({{"op": "add", "site": "resid_post", "layers": 1, "vector": {}, "gate": {{"control": {{
             "probe": {{"vector": [1, 0, 0, {}], "site": "resid_post", "layer": 3}}, {}}}}}}})",
        kV, i, kLaw);
    elements += (i > 0 ? ", " : "") + element;
    const auto config = config_of(fmt::format(R"({{"steering": [{}]}})", elements));
    EXPECT_EQ(config.has_value(), i < 4) << i;
    if (!config) {
      EXPECT_EQ(config.error().where, "steering[4]");
    }
  }
}

TEST(ParseControl, WhatIsWrongIsRefusedWithItsPath) {
  const std::string law = fmt::format("{}, {}", kProbe, kLaw);
  const std::string path = "steering.gate.control";
  const std::vector<std::array<std::string, 2>> cases = {
      {controlled_by(kLaw), path},
      {controlled_by(kProbe), path + ".target"},
      {controlled_by(fmt::format(R"({}, "feature": {{"dictionary": "d", "feature": 1}})", law)),
       path},
      {controlled_by(law + R"(, "threshold": 1)"), path + ".threshold"},
      {controlled_by(fmt::format(R"({}, "target": 3, "gain": 0.5, "min": 2, "max": 1)", kProbe)),
       path + ".max"},
      {controlled_by(fmt::format(R"({}, "target": 3, "gain": 1e7, "min": 0, "max": 1)", kProbe)),
       path + ".gain"},
      {controlled_by(fmt::format(R"({}, "target": 1e13, "gain": 1, "min": 0, "max": 1)", kProbe)),
       path + ".target"},
      {controlled_by(fmt::format(R"({}, "target": null, "gain": 1, "min": 0, "max": 1)", kProbe)),
       path + ".target"},
      {controlled_by(fmt::format(
           R"("probe": {{"vector": [1, 0], "site": "resid_post", "layer": 1}}, {})", kLaw)),
       path + ".probe.vector"},
      {controlled_by(
           fmt::format(R"("probe": {{"vector": {}, "site": "resid_post"}}, {})", kV, kLaw)),
       path + ".probe.layer"},
      {controlled_by(fmt::format(R"("feature": {{"dictionary": "d", "feature": 6}}, {})", kLaw)),
       path + ".feature.feature"},
      {controlled_by(law, "", R"(, "probe": {"vector": [1, 0, 0, 0], "threshold": 1})"),
       "steering.gate"},
      {controlled_by(law, "",
                     R"(, "schedule": {"kind": "ramp", "begin": 0, "end": 3, "from": 0, "to": 1})"),
       "steering.gate.schedule"},
      {controlled_by(law, R"(, "select": {"phase": "prefill"})"), "steering"},
      {controlled_by(law, R"(, "select": {"prompt": [-1, null]})"), "steering"}};
  for (const auto& [body, where] : cases) {
    const auto config = config_of(body, control_names());
    ASSERT_FALSE(config.has_value()) << body;
    EXPECT_EQ(config.error().where, where) << body;
  }
  const std::string by_feature =
      controlled_by(fmt::format(R"("feature": {{"dictionary": "d", "feature": 1}}, {})", kLaw));
  for (const DictionaryAsk& ask : {DictionaryAsk{.activation = features::Activation::kTopK},
                                   DictionaryAsk{.norm = tap::FeatureNorm::kLayerNorm}}) {
    const auto config = config_of(by_feature, control_names(ask));
    ASSERT_FALSE(config.has_value());
    EXPECT_EQ(config.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(config.error().where, path + ".feature.dictionary");
  }
}

}  // namespace
}  // namespace rudder::steer
