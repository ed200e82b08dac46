#include "rudder/steer/parse.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstring>
#include <map>

#include "rudder/base/json.h"
#include "rudder/steer/base64.h"
#include "rudder/steer/plan.h"
#include "rudder/steer/schema.h"
#include "rudder/steer/test_support.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr std::string_view kV = "[0.5, -1, 0.25, 2]";

// Hidden 4, 16 layers, mlp width 6; the last layer alone has final_norm.
Model small_model() {
  Model model = test_model();
  model.geometry.num_layers = 16;
  model.geometry.hidden = 4;
  model.geometry.mlp_width.assign(16, 6);
  model.geometry.sites.assign(16, 0xff);
  model.geometry.sites.back() = 0x1ff;
  return model;
}

class OneName final : public Names {
 public:
  void set(std::string name, std::shared_ptr<const Config> config) {
    configs_[std::move(name)] = std::move(config);
  }
  std::shared_ptr<const Config> find(std::string_view name) const override {
    const auto found = configs_.find(std::string(name));
    return found == configs_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::string, std::shared_ptr<const Config>> configs_;
};

json::object object_of(std::string_view text) {
  auto value = parse_json(text, "test");
  EXPECT_TRUE(value.has_value()) << text;
  return value->as_object();
}

Result<ParsedSteering> parse(std::string_view body, const Names& names = OneName()) {
  return parse_steering(object_of(body), small_model(), names);
}

Result<std::shared_ptr<const Config>> config_of(std::string_view body) {
  auto parsed = parse(body);
  if (!parsed) return tl::unexpected<Error>(parsed.error());
  return Config::build(std::make_shared<const Model>(small_model()), parsed->ops);
}

tap::ContentKey key_of(std::string_view body) {
  auto config = config_of(body);
  EXPECT_TRUE(config.has_value()) << body << ": " << config.error().to_string();
  return (*config)->program(1).key;
}

std::string base64_of(std::span<const std::byte> bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<uint32_t>(bytes[i + j]) : 0U);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kAlphabet[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

template <typename T>
std::string packed_of(std::string_view dtype, const std::vector<T>& values, std::string_view shape,
                      std::string_view rest) {
  return fmt::format(R"({{"dtype": "{}", "shape": {}, "data": "{}"{}}})", dtype, shape,
                     base64_of(std::as_bytes(std::span(values))), rest);
}

TEST(Parse, ListsPackedAndSparseFormsHaveOneKey) {
  const tap::ContentKey list = key_of(
      R"({"steering_vectors": {"post_mlp": {"3": [0.5, -1, 0.25, 2], "7": [1, 2, 4, -8]}}})");
  const std::vector<float> values = {0.5f, -1, 0.25f, 2, 1, 2, 4, -8};
  std::vector<uint16_t> bf16;
  std::vector<uint16_t> f16;
  for (const float value : values) {
    bf16.push_back(tensor::to_bf16(value).bits);
    f16.push_back(tensor::to_f16(value).bits);
  }
  constexpr std::string_view kLayers = R"(, "layer_indices": [3, 7])";
  const auto tier = [](const std::string& packed) {
    return R"({"steering_vectors": {"resid_post": )" + packed + "}}";
  };
  EXPECT_EQ(list, key_of(tier(packed_of("float32", values, "[2, 4]", kLayers))));
  EXPECT_EQ(list, key_of(tier(packed_of("float16", f16, "[2, 4]", kLayers))));
  EXPECT_EQ(list, key_of(tier(packed_of("bfloat16", bf16, "[2, 4]", kLayers))));
  EXPECT_EQ(list, key_of(R"({"steering_vectors": {
      "blocks.3.hook_resid_post": {"vector": [1, -2, 0.5, 4], "scale": 0.5},
      "resid_post.7": [1, 2, 4, -8]}})"));
  EXPECT_EQ(list, key_of(R"({"steering": {"op": "add", "site": "resid_post", "layers": [3, 7],
      "vector": [[0.5, -1, 0.25, 2], [1, 2, 4, -8]]}})"));
  EXPECT_EQ(list, key_of(R"({"steering": [
      {"op": "add", "site": "resid_post.7", "vector": [2, 4, 8, -16], "scale": 0.5},
      {"op": "add", "site": "resid_post.3", "vector": [0.5, -1, 0.25, 2]}]})"));
  const std::vector<float> doubled = {1, -2, 0.5f, 4, 1, 2, 4, -8};
  EXPECT_EQ(list, key_of(tier(packed_of("float32", doubled, "[2, 4]",
                                        R"(, "layer_indices": [3, 7], "scales": [0.5, 1])"))));
  EXPECT_FALSE(list == key_of(tier(packed_of("float32", doubled, "[2, 4]", kLayers))));
}

TEST(Parse, NothingAskedForIsNothing) {
  for (const char* body :
       {"{}", R"({"steering": {}})", R"({"steering": []})", R"({"steering_vectors": {}})",
        R"({"steering": null, "steering_name": null, "steering_vectors": null})",
        R"({"steering_vectors": {"resid_post": {}}})", R"({"prompt": "x", "top_p": 7})"}) {
    const auto parsed = parse(body);
    ASSERT_TRUE(parsed.has_value()) << body << ": " << parsed.error().to_string();
    EXPECT_TRUE(parsed->empty());
  }
  EXPECT_FALSE(has_steering_fields(object_of(R"({"steering": null, "prompt": 1})")));
  EXPECT_TRUE(has_steering_fields(object_of(R"({"decode_steering_vectors": {}})")));
}

TEST(Parse, TheTiersSelectTheirPhase) {
  const auto parsed =
      parse(fmt::format(R"({{"decode_steering_vectors": {{"resid_post": {{"1": {0}}}}},
      "steering_vectors": {{"resid_post": {{"2": {0}}}}},
      "prefill_steering_vectors": {{"resid_post": {{"3": {0}}}}}}})",
                        kV));
  ASSERT_EQ(parsed->ops.size(), 3U);
  EXPECT_EQ(parsed->ops[0].point.layer, 2);
  EXPECT_EQ(parsed->ops[1].select.phase, Phase::kPrefill);
  EXPECT_EQ(parsed->ops[2].select.phase, Phase::kDecode);
}

TEST(Parse, EveryFieldOfAnElementArrives) {
  const auto parsed = parse(R"({"steering": {"op": "rotate", "site": "resid_mid", "layers": "all",
      "vector": [1, 0, 0, 0], "target": [0, 1, 0, 0], "angle": 200, "adaptive": true, "scale": 0.5,
      "select": {"phase": "prefill", "prompt": [[0, 4], [-3, null]], "generation": [2, 5],
                 "roles": ["system", "reasoning"]},
      "gate": {"probe": {"vector": [1, 1, 1, 1], "threshold": 0.3, "sharpness": 4},
               "schedule": {"kind": "ramp", "begin": 2, "end": 9, "from": 0.5, "to": 3}}}})");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().to_string();
  ASSERT_EQ(parsed->ops.size(), 16U);
  const OpSpec& op = parsed->ops[5];
  EXPECT_EQ(op.point, (tap::Point{5, tap::Site::kResidMid}));
  EXPECT_EQ(op.parameter, 200);
  EXPECT_TRUE(op.adaptive);
  EXPECT_EQ(op.scale, 0.5);
  EXPECT_EQ(op.second.values()[1], 1.0f);
  EXPECT_EQ(op.select.phase, Phase::kPrefill);
  EXPECT_EQ(op.select.prompt, (std::vector<Window>{{0, 4}, {-3, tap::kNoEnd}}));
  EXPECT_EQ(op.select.generation, (std::vector<Window>{{2, 5}}));
  EXPECT_EQ(op.select.roles, 0b1001);
  EXPECT_EQ(op.gate.kind, Gate::Kind::kProbe);
  EXPECT_EQ(op.gate.vector.values()[3], 1.0f);
  EXPECT_EQ(op.gate.threshold, 0.3);
  EXPECT_EQ(op.gate.sharpness, 4);
  EXPECT_EQ(op.schedule.kind, tap::ScheduleKind::kRamp);
  EXPECT_EQ(op.schedule.end, 9);
  EXPECT_EQ(op.schedule.to, 3);
}

TEST(Parse, ExamplesOfTheSchemaAreTakenAndEveryOpHasOne) {
  const json::object schema = object_of(steering_schema());
  const json::object& examples = schema.at("examples").as_object();
  for (const auto& [name, body] : examples) {
    const auto config = config_of(to_json_text(body));
    ASSERT_TRUE(config.has_value()) << name << ": " << config.error().to_string();
    EXPECT_FALSE((*config)->empty()) << name;
  }
  const json::array& ops = schema.at("schemas")
                               .as_object()
                               .at("SteeringOp")
                               .at("properties")
                               .at("op")
                               .at("enum")
                               .as_array();
  EXPECT_EQ(ops.size(), static_cast<size_t>(kNumOps));
  for (int32_t i = 0; i < kNumOps; ++i) {
    EXPECT_EQ(ops[static_cast<size_t>(i)].as_string(),
              json::string_view(op_name(static_cast<OpName>(i))));
    EXPECT_TRUE(examples.contains(ops[static_cast<size_t>(i)].as_string()));
  }
  for (const std::string_view field : steering_fields()) {
    EXPECT_TRUE(schema.at("properties").as_object().contains(json::string_view(field)));
  }
}

TEST(Parse, ANameIsAModuleOrAVectorOfOne) {
  OneName names;
  const auto direction = config_of(
      R"({"steering": {"op": "add", "site": "resid_post.6", "vector": [1, 0, 0, 0], "scale": 3}})");
  const auto several = config_of(R"({"steering": {"op": "add", "site": "resid_post",
      "layers": [6, 7], "vector": [[1, 0, 0, 0], [0, 2, 0, 0]]}})");
  names.set("direction", *direction);
  names.set("several", *several);
  const auto with = [&](std::string_view body) { return parse(body, names); };

  auto parsed = with(R"({"steering": [{"name": "direction", "scale": -2},
      {"op": "ablate", "site": "resid_pre", "layers": "all", "vector": "direction"},
      {"op": "ablate", "site": "resid_post", "layers": [7], "vector": "several"},
      {"op": "set", "site": "resid_mid", "layers": [2], "value": 1,
       "vector": {"name": "several", "site": "post_mlp", "layer": 7}}],
      "steering_name": {"name": "several", "scale": 0.5}})");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().to_string();
  ASSERT_EQ(parsed->named.size(), 2U);
  EXPECT_EQ(parsed->named[0].name, "several");
  EXPECT_EQ(parsed->named[1].scale, -2);
  ASSERT_EQ(parsed->ops.size(), 18U);
  EXPECT_EQ(parsed->ops[0].vector.values()[0], 1.0f);
  EXPECT_EQ(parsed->ops[16].vector.values()[1], 2.0f);
  EXPECT_EQ(parsed->ops[17].vector.values()[1], 2.0f);
  std::vector<OpSpec> ops;
  ASSERT_TRUE(append_scaled(parsed->named[1], ops).has_value());
  EXPECT_EQ(ops[0].scale, -6);

  for (const auto& [body, where] : std::vector<std::pair<std::string, std::string>>{
           {R"({"steering_name": "nobody"})", "steering_name"},
           {R"({"steering": [{"name": "nobody"}]})", "steering[0].name"},
           {R"({"steering": {"op": "set", "site": "resid_post.1", "value": 1,
                             "vector": "nobody"}})",
            "steering.vector"}}) {
    const auto refused = with(body);
    ASSERT_FALSE(refused.has_value()) << body;
    EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
    EXPECT_EQ(refused.error().where, where);
  }
  const auto ambiguous = with(
      R"({"steering": {"op": "set", "site": "resid_post.1", "value": 1, "vector": "several"}})");
  ASSERT_FALSE(ambiguous.has_value());
  EXPECT_EQ(ambiguous.error().code, ErrorCode::kInvalidArgument);
  parsed = with(R"({"steering": {"name": "direction", "scale": 1e6}})");
  EXPECT_EQ(append_scaled(parsed->named[0], ops).error().where, "steering.name");
}

// {"steering": {"op": "add", "site": "resid_post", "layers": 1, "vector": V, REST}}
std::string add_with(std::string_view rest) {
  return fmt::format(
      R"({{"steering": {{"op": "add", "site": "resid_post", "layers": 1, "vector": {}, {}}}}})", kV,
      rest);
}
std::string op_with(std::string_view op, std::string_view rest) {
  return fmt::format(
      R"({{"steering": {{"op": "{}", "site": "resid_post", "layers": 1, "vector": {}, {}}}}})", op,
      kV, rest);
}
std::string tier_with(std::string_view tier) {
  return fmt::format(R"({{"steering_vectors": {}}})", tier);
}
std::string packed_with(std::string_view fields) {
  return fmt::format(R"({{"steering_vectors": {{"resid_post": {{{}}}}}}})", fields);
}

TEST(Parse, WhatIsWrongIsRefusedWithItsPath) {
  const std::string zeros = "AAAAAAAAAAAAAAAAAAAAAA==";  // four floats
  const std::string nan = "AAAAAAAAwH8AAAAAAAAAAA==";
  const std::string inf_f16 = "AAAAfAAAAAA=";
  const std::string good = R"("dtype": "float32", "shape": [1, 4], "layer_indices": [1])";
  const std::vector<std::array<std::string, 3>> cases = {
      {R"({"steering": 7})", "steering", "element"},
      {R"({"steering": [[]]})", "steering[0]", "object"},
      {R"({"steering": [{}]})", "steering[0]", "\"name\" or an \"op\""},
      {R"({"steering_name": 7})", "steering_name", "name"},
      {R"({"steering_name": ""})", "steering_name", "name"},
      {R"({"steering": {"name": "a", "scales": 2}})", "steering.scales", "scale"},
      {R"({"steering": {"op": "explode"}})", "steering.op", "add_renorm"},
      {R"({"steering": {"op": 3}})", "steering.op", "string"},
      {R"({"steering": {"op": "add", "site": "resid_post", "layers": 1}})", "steering.vector",
       "needs"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "layers": 1}})", "steering.site",
       "string"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "resid_post"}})",
       "steering.layers", "all"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3], "site": "resid_post", "layers": 1}})",
       "steering.vector", "3 elements"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "mlp_act", "layers": 1}})",
       "steering.vector", "has 6"},
      {R"({"steering": {"op": "add", "vector": [], "site": "resid_post", "layers": 1}})",
       "steering.vector", "empty"},
      {R"({"steering": {"op": "add", "vector": [[]], "site": "resid_post", "layers": 1}})",
       "steering.vector[0]", "empty"},
      {R"({"steering": {"op": "add", "vector": [1, "2", 3, 4], "site": "resid_post", "layers": 1}})",
       "steering.vector[1]", "number"},
      {R"({"steering": {"op": "add", "vector": [1, 2, null, 4], "site": "resid_post", "layers": 1}})",
       "steering.vector[2]", "number"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 1e7, 4], "site": "resid_post", "layers": 1}})",
       "steering.vector[2]", "too large"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 1e999, 4], "site": "resid_post", "layers": 1}})",
       "steering.vector[2]", "finite"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 18446744073709551615], "site": "resid_post", "layers": 1}})",
       "steering.vector[3]", "too large"},
      {R"({"steering": {"op": "add", "vector": [[1, 2, 3, 4], [1, 2, 3]], "site": "resid_post", "layers": [1, 2]}})",
       "steering.vector[1]", "3 elements"},
      {R"({"steering": {"op": "add", "vector": [[1, 2, 3, 4], [1, 2, 3, 4]], "site": "resid_post", "layers": [1, 2, 3]}})",
       "steering.vector", "2 vectors for 3"},
      {R"({"steering": {"op": "add", "vector": 4, "site": "resid_post", "layers": 1}})",
       "steering.vector", "list"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "resid_pst", "layers": 1}})",
       "steering.site", "resid_post"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "final_norm", "layers": 1}})",
       "steering.layers", "final_norm"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "resid_post", "layers": [1, 16]}})",
       "steering.layers[1]", "16 layers"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "resid_post", "layers": [1, -1]}})",
       "steering.layers[1]", "-1"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "resid_post", "layers": [1, 1]}})",
       "steering.layers[1]", "twice"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "resid_post", "layers": []}})",
       "steering.layers", "empty"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "resid_post", "layers": 1.5}})",
       "steering.layers", "whole"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "resid_post.3", "layers": 1}})",
       "steering.layers", "already"},
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "resid_post.30"}})",
       "steering.site", "16 layers"},
      {add_with(R"("strength": 2)"), "steering.strength", "scale"},
      {add_with(R"("scale": "2")"), "steering.scale", "number"},
      {add_with(R"("scale": 1e7)"), "steering.scale", "too large"},
      {add_with(R"("angle": 2)"), "steering.angle", "no such field"},
      {op_with("ablate", R"("scale": 1e999)"), "steering.scale", "finite"},
      {op_with("orthogonal", R"("scale": 1)"), "steering.coefficient", "needs"},
      {op_with("swap", R"("scale": 1)"), "steering.target", "needs"},
      {op_with("swap", R"("target": [1, 2])"), "steering.target", "2 elements"},
      {op_with("rotate", R"("target": [1, 2, 3, 4])"), "steering.angle", "needs"},
      {op_with("rotate", R"("target": [1, 0, 0, 0], "angle": 3, "mode": "at")"), "steering.mode",
       "to"},
      {op_with("rotate", R"("target": [1, 0, 0, 0], "angle": 3, "mode": "by", "scale": 2)"),
       "steering.scale", "no scale"},
      {op_with("rotate", R"("target": [1, -2, 0.5, 4], "angle": 3)"), "steering", "same direction"},
      {op_with("clamp", R"("scale": 1)"), "steering.lo", "both"},
      {op_with("clamp", R"("lo": 2, "hi": 1)"), "steering.lo", "greater"},
      {op_with("cap", R"("lo": 2, "hi": 1)"), "steering.lo", "no such field"},
      {op_with("set", R"("hi": 1)"), "steering.hi", "no such field"},
      {op_with("mean_ablate", R"("mean": "x")"), "steering.mean", "named"},
      {op_with("add_renorm", R"("only_if_grew": 1)"), "steering.only_if_grew", "true"},
      {R"({"steering": {"op": "ablate", "vector": [0, 0, 0, 0], "site": "resid_post", "layers": 1}})",
       "steering", "no direction"},
      {add_with(R"("select": 1)"), "steering.select", "object"},
      {add_with(R"("select": {"phases": "all"})"), "steering.select.phases", "phase"},
      {add_with(R"("select": {"phase": "both"})"), "steering.select.phase", "decode"},
      {add_with(R"("select": {"prompt": 1})"), "steering.select.prompt", "window"},
      {add_with(R"("select": {"prompt": []})"), "steering.select.prompt", "window"},
      {add_with(R"("select": {"prompt": [1]})"), "steering.select.prompt", "two numbers"},
      {add_with(R"("select": {"prompt": [[1, 2], 3]})"), "steering.select.prompt[1]",
       "two numbers"},
      {add_with(R"("select": {"prompt": [3, 3]})"), "steering.select.prompt", "empty"},
      {add_with(R"("select": {"generation": [-3, null]})"), "steering.select.generation[0]",
       "not known"},
      {add_with(R"("select": {"roles": []})"), "steering.select.roles", "roles"},
      {add_with(R"("select": {"roles": ["user", "tool"]})"), "steering.select.roles[1]",
       "reasoning"},
      {add_with(R"("gate": {})"), "steering.gate", "probe"},
      {add_with(R"("gate": {"sae": 1})"), "steering.gate.sae", "prompt_score"},
      {add_with(R"("gate": {"probe": {"vector": [1, 0, 0, 0]}})"), "steering.gate.probe.threshold",
       "number"},
      {add_with(R"("gate": {"probe": {"vector": [1, 0], "threshold": 1}})"),
       "steering.gate.probe.vector", "2 elements"},
      {add_with(
           R"("gate": {"prompt_score": {"vector": [1, 0, 0, 0], "threshold": 1, "site": "resid_post"}})"),
       "steering.gate.prompt_score.layer", "layer"},
      {add_with(R"("gate": {"schedule": {"kind": "step"}})"), "steering.gate.schedule.kind",
       "ramp"},
      {add_with(R"("gate": {"schedule": {"kind": "ramp", "end": 3, "to": 1}})"),
       "steering.gate.schedule.from", "number"},
      {add_with(R"("gate": {"schedule": {"kind": "ramp", "from": 0, "to": 1}})"),
       "steering.gate.schedule.end", "end"},
      {add_with(R"("gate": {"schedule": {"kind": "window", "begin": 3, "end": 3}})"),
       "steering.gate.schedule.end", "after"},
      {R"({"steering": {"op": "ablate", "vector": [[1, 0, 0, 0], [0, 1, 0, 0]], "site": "resid_post", "layers": 1,
           "gate": {"probe": {"vector": [1, 0, 0, 0], "threshold": 1}}}})",
       "steering", "several axes"},
      {tier_with("[1]"), "steering_vectors", "object"},
      {tier_with(R"({"post": {}})"), "steering_vectors.post", "resid_post"},
      {tier_with(R"({"resid_post": [1]})"), "steering_vectors.resid_post", "object"},
      {tier_with(R"({"resid_post": {"x": [1, 2, 3, 4]}})"), "steering_vectors.resid_post.x",
       "number of a layer"},
      {tier_with(R"({"resid_post": {"01": [1, 2, 3, 4]}})"), "steering_vectors.resid_post.01",
       "number of a layer"},
      {tier_with(R"({"resid_post": {"16": [1, 2, 3, 4]}})"), "steering_vectors.resid_post.16",
       "16 layers"},
      {tier_with(R"({"resid_post": {"1": [1, 2, 3]}})"), "steering_vectors.resid_post.1",
       "3 elements"},
      {tier_with(R"({"resid_post": {"1": [1, 2, true, 4]}})"), "steering_vectors.resid_post.1[2]",
       "number"},
      {tier_with(R"({"resid_post": {"1": {"vector": [1, 2, 3, 4], "strength": 1}}})"),
       "steering_vectors.resid_post.1.strength", "scale"},
      {tier_with(R"({"resid_post": {"1": {"scale": 1}}})"), "steering_vectors.resid_post.1.scale",
       "no such field"},
      {tier_with(R"({"resid_post": {"1": [1, 2, 3, 4]}, "post_block": {"1": [1, 2, 3, 4]}})"),
       "steering_vectors.post_block.1", "already"},
      {packed_with(R"("data": "", "shape": [1, 4], "layer_indices": [1])"),
       "steering_vectors.resid_post.dtype", "bfloat16"},
      {packed_with(R"("dtype": "float64", "data": "", "shape": [1, 4])"),
       "steering_vectors.resid_post.dtype", "float32"},
      {packed_with(R"("dtype": "float32", "data": "")"), "steering_vectors.resid_post.shape",
       "list"},
      {packed_with(R"("dtype": "float32", "data": "", "shape": [1, 2, 2])"),
       "steering_vectors.resid_post.shape", "list"},
      {packed_with(R"("dtype": "float32", "data": "", "shape": [0, 4])"),
       "steering_vectors.resid_post.shape[0]", "0"},
      {packed_with(R"("dtype": "float32", "data": "", "shape": [1, -4])"),
       "steering_vectors.resid_post.shape[1]", "-4"},
      {packed_with(R"("dtype": "float32", "data": "", "shape": [2147483646, 16777216])"),
       "steering_vectors.resid_post.shape", "elements"},
      {packed_with(R"("dtype": "float32", "data": "", "shape": [9223372036854775807, 4])"),
       "steering_vectors.resid_post.shape[0]", "32 bits"},
      {packed_with(good), "steering_vectors.resid_post.data", "base64"},
      {packed_with(good + R"(, "data": "AAA")"), "steering_vectors.resid_post.data", "four"},
      {packed_with(good + R"(, "data": "AAAA")"), "steering_vectors.resid_post.data", "16"},
      {packed_with(good + R"(, "data": "AAAAAAAAAAAAAA!AAAAAAA==")"),
       "steering_vectors.resid_post.data", "no base64"},
      {packed_with(good + R"(, "data": "AAAAAAAAAAAAAAAAAAAAAB==")"),
       "steering_vectors.resid_post.data", "no base64"},
      {packed_with(good + R"(, "data": ")" + nan + "\""), "steering_vectors.resid_post.data",
       "element 1 of row 0"},
      {packed_with(R"("dtype": "float16", "shape": [1, 4], "layer_indices": [1], "data": ")" +
                   inf_f16 + "\""),
       "steering_vectors.resid_post.data", "element 1 of row 0"},
      {packed_with(good + R"(, "scale": 2, "data": ")" + zeros + "\""),
       "steering_vectors.resid_post.scale", "scales"},
      {packed_with(good + R"(, "scales": [1, 2], "data": ")" + zeros + "\""),
       "steering_vectors.resid_post.scales", "2 entries for 1"},
      {packed_with(good + R"(, "scales": [null], "data": ")" + zeros + "\""),
       "steering_vectors.resid_post.scales[0]", "number"},
      {packed_with(R"("dtype": "float32", "shape": [1, 4], "data": ")" + zeros + "\""),
       "steering_vectors.resid_post.layer_indices", "layers"},
      {packed_with(R"("dtype": "float32", "shape": [1, 4], "layer_indices": [16], "data": ")" +
                   zeros + "\""),
       "steering_vectors.resid_post.layer_indices[0]", "16 layers"},
      {packed_with(R"("dtype": "float32", "shape": [2, 2], "layer_indices": [1, 2], "data": ")" +
                   zeros + "\""),
       "steering_vectors.resid_post.shape", "2 elements"},
      {packed_with(
           R"("dtype": "bfloat16", "shape": [2, 4], "layer_indices": [1, 1], "data": "AAAAAAAAAAAAAAAAAAAAAA==")"),
       "steering_vectors.resid_post.layer_indices[1]", "already"},
  };
  for (const auto& [body, where, message] : cases) {
    const auto config = config_of(body);
    ASSERT_FALSE(config.has_value()) << body;
    const bool unknown_name = body.find("\"mean\": \"x\"") != std::string::npos;
    EXPECT_EQ(config.error().code,
              unknown_name ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument)
        << body;
    EXPECT_EQ(config.error().where, where) << body << ": " << config.error().message;
    EXPECT_NE(config.error().message.find(message), std::string::npos)
        << body << ": " << config.error().message;
  }
}

TEST(Parse, AdminBodiesTakeBothNamesOfATierButNothingUnknown) {
  const std::string tier = R"({"resid_post": {"1": [1, 2, 3, 4]}})";
  const OneName names;
  static constexpr std::array<std::string_view, 1> kOthers = {"replace"};
  const auto parse_admin = [&](const std::string& body) {
    return parse_admin_steering(object_of(body), kOthers, small_model(), names);
  };
  EXPECT_EQ(parse_admin(R"({"vectors": )" + tier + R"(, "decode_steering_vectors": )" + tier +
                        R"(, "replace": true})")
                ->ops.size(),
            2U);
  EXPECT_EQ(parse_admin(R"({"vectors": )" + tier + R"(, "steering_vectors": )" + tier + "}")
                .error()
                .where,
            "vectors");
  EXPECT_EQ(parse_admin(R"({"vector": )" + tier + "}").error().where, "vector");
}

// Mutilated bodies: whatever comes out, it is an answer.
TEST(Parse, RandomDamageIsAnswered) {
  const json::object schema = object_of(steering_schema());
  Random random(11);
  int refused = 0;
  for (int round = 0; round < 40; ++round) {
    for (const auto& [name, body] : schema.at("examples").as_object()) {
      std::string text = to_json_text(body);
      for (int i = 1 + random.below(3); i > 0; --i) {
        const auto at = static_cast<size_t>(random.below(static_cast<int32_t>(text.size())));
        constexpr std::string_view kBytes = "0123456789-.e[]{}:,\"ntA=/+";
        text[at] = kBytes[static_cast<size_t>(random.below(static_cast<int32_t>(kBytes.size())))];
      }
      const auto value = parse_json(text, "test");
      if (!value || !value->is_object()) continue;
      const auto parsed = parse_steering(value->as_object(), small_model(), OneName());
      if (!parsed) {
        EXPECT_FALSE(parsed.error().where.empty());
        ++refused;
        continue;
      }
      const auto config = Config::build(std::make_shared<const Model>(small_model()), parsed->ops);
      if (config) (*config)->program(~uint64_t{0});
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(Base64, DecodesWhatAnEncoderMakes) {
  Random random(12);
  for (int32_t size = 0; size < 200; ++size) {
    std::vector<std::byte> bytes;
    for (int32_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(random.below(256)));
    const std::string text = base64_of(bytes);
    ASSERT_EQ(base64_bytes(text), bytes.size());
    std::vector<std::byte> decoded(bytes.size());
    ASSERT_TRUE(decode_base64(text, decoded));
    ASSERT_EQ(decoded, bytes);
    for (size_t at = 0; at < text.size(); ++at) {
      for (const char c : {'-', '_', ' ', '\n', '\0', '\x80', '='}) {
        std::string broken = text;
        broken[at] = c;
        if (base64_bytes(broken) != bytes.size()) continue;
        EXPECT_TRUE(broken == text || !decode_base64(broken, decoded)) << size << " " << at;
      }
    }
  }
}

}  // namespace
}  // namespace rudder::steer
