#include "rudder/model/override_config.h"

#include <gtest/gtest.h>

#include "rudder/model/archs/archs.h"
#include "rudder/model/rope.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {
namespace {

constexpr std::string_view kQwen = R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
  "num_key_value_heads": 2, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
  "hidden_act": "silu")";

std::string qwen(std::string_view more) {
  return std::string(kQwen) + std::string(more) + "}";
}

ModelSpec overridden_spec(const std::string& config, const ConfigOverrides& overrides) {
  const auto text = override_config(config, overrides);
  EXPECT_TRUE(text) << text.error().to_string();
  if (!text) return {};
  return read_config(*weights::HfConfig::parse(*text, "config.json")).value();
}

Error refused(const std::string& config, const ConfigOverrides& overrides) {
  const auto text = override_config(config, overrides);
  EXPECT_FALSE(text);
  return text ? Error{} : text.error();
}

const char* const kYarn =
    R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})";

TEST(OverrideConfig, ARopeOfTheCommandLineIsTheOnlyOneAndKeepsTheBase) {
  const std::string files[] = {
      qwen(R"(, "rope_theta": 1000000, "rope_scaling": null)"),
      qwen(R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000})"),
      qwen(R"(, "rope_theta": 1000000, "rope_scaling": {"type": "linear", "factor": 2})")};
  const std::string keys = std::string(R"({"rope_parameters": )") + kYarn + "}";
  const std::string old_keys = std::string(R"({"rope_scaling": )") + kYarn + "}";
  for (const std::string& file : files) {
    for (const ConfigOverrides& overrides :
         {ConfigOverrides{.keys = {}, .rope_scaling = kYarn}, ConfigOverrides{keys, {}},
          ConfigOverrides{old_keys, {}}}) {
      const ModelSpec spec = overridden_spec(file, overrides);
      ASSERT_EQ(spec.ropes.size(), 1U);
      EXPECT_EQ(spec.ropes[0].theta, 1e6) << file;
      ASSERT_TRUE(std::holds_alternative<RopeYarn>(spec.ropes[0].scaling)) << file;
      EXPECT_EQ(spec.max_positions, 131072);
      EXPECT_EQ(spec.longest_positions, 131072);
    }
    EXPECT_EQ(
        overridden_spec(file, {.keys = {}, .rope_scaling = {}, .rope_theta = 5e5}).ropes[0].theta,
        5e5);
    EXPECT_EQ(overridden_spec(file, {.keys = R"({"rope_theta": 70000})", .rope_scaling = {}})
                  .ropes[0]
                  .theta,
              7e4);
  }
}

TEST(OverrideConfig, KeysReplaceThoseOfTheFileAndReachTheText) {
  const std::string gemma = R"({"architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
      "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 9000}}}})";
  const ModelSpec spec = overridden_spec(
      gemma, {.keys = R"({"text_config": {"sliding_window": 96, "rms_norm_eps": 0.5}})",
              .rope_scaling = R"({"rope_type": "linear", "factor": 3})"});
  EXPECT_EQ(attention_of(spec.layers[0])->window, 96);
  EXPECT_EQ(spec.norm_eps, 0.5f);
  EXPECT_EQ(std::get<RopeLinear>(spec.ropes[0].scaling).factor, 3);
  EXPECT_EQ(spec.ropes[1].theta, 9000);
  EXPECT_EQ(spec.max_positions, 131072) << "the layers with a window have no longer rope";
}

TEST(OverrideConfig, WhatHasNoEffectIsRefused) {
  const std::string file = qwen("");
  EXPECT_EQ(refused(file, {"[]", {}}).where, "hf-overrides");
  EXPECT_EQ(refused(file, {"{", {}}).where, "hf-overrides");
  EXPECT_EQ(refused(file, {{}, "yarn"}).where, "rope-scaling");
  EXPECT_EQ(refused(file, {R"({"max_position_embedings": 1})", {}}).where,
            "hf-overrides.max_position_embedings");
  EXPECT_EQ(refused(file, {R"({"num_experts": 4})", {}}).where, "config.json: num_experts");
  EXPECT_EQ(refused(file, {{}, R"({"rope_type": "spiral"})"}).where,
            "config.json: rope_scaling.rope_type");
  EXPECT_TRUE(override_config(file, {R"({"use_cache": false, "vocab_size": 99})", {}}));
  // In a rope, and in a part that the model does not have.
  EXPECT_EQ(refused(file, {{}, R"({"factor": 4.0})"}).where, "rope-scaling.factor");
  EXPECT_EQ(refused(file, {{}, R"({"rope_type": "yarn", "factor": 4.0, "scale": 2})"}).where,
            "rope-scaling.scale");
  EXPECT_EQ(
      refused(file, {R"({"rope_parameters": {"rope_type": "linear", "factor": 2, "beta": 1}})", {}})
          .where,
      "hf-overrides.rope_parameters.beta");
  EXPECT_EQ(refused(file, {R"({"text_config": {"rope_theta": 5e5}})", {}}).where,
            "hf-overrides.text_config");
  EXPECT_TRUE(override_config(
      file, {{}, R"({"type": "yarn", "rope_type": "yarn", "factor": 4.0, "finetuned": true})"}));
}

TEST(OverrideConfig, TheContextIsWhatTheRopeStretchesItTo) {
  const auto reach = [](std::string_view rope, const char* declared = "40960") {
    return overridden_spec(qwen(std::string(R"(, "rope_scaling": )") + std::string(rope)),
                           {std::string(R"({"max_position_embeddings": )") + declared + "}", {}});
  };
  const auto expect = [](const ModelSpec& spec, int32_t usual, int32_t longest) {
    EXPECT_EQ(spec.max_positions, usual);
    EXPECT_EQ(spec.longest_positions, longest);
  };
  expect(reach(R"({"rope_type": "yarn", "factor": 4})"), 163840, 163840);
  expect(reach(kYarn), 131072, 131072);
  expect(reach(kYarn, "131072"), 131072, 131072);
  expect(reach(R"({"type": "linear", "factor": 2.5})"), 102400, 102400);
  expect(reach(R"({"type": "dynamic", "factor": 2})"), 40960, INT32_MAX);
  const char* const llama3 = R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
    "high_freq_factor": 4, "original_max_position_embeddings": 8192})";
  expect(reach(llama3, "8192"), 65536, 65536);
  expect(reach(llama3, "131072"), 131072, 131072);
  expect(reach(R"({"rope_type": "yarn", "factor": 1e9})"), INT32_MAX, INT32_MAX);
}

}  // namespace
}  // namespace rudder::model
