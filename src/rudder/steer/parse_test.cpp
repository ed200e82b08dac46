#include "rudder/steer/parse.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstring>
#include <map>

#include "rudder/base/json.h"
#include "rudder/steer/base64.h"
#include "rudder/steer/parse_test_support.h"
#include "rudder/steer/schema.h"
#include "rudder/steer/segments.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

tap::ContentKey key_of(std::string_view body) {
  auto config = config_of(body);
  EXPECT_TRUE(config.has_value()) << body << ": " << config.error().to_string();
  return (*config)->program(1).key;
}

template <typename T>
std::string packed_of(std::string_view dtype, const std::vector<T>& values, std::string_view shape,
                      std::string_view rest) {
  return fmt::format(R"({{"dtype": "{}", "shape": {}, "data": "{}"{}}})", dtype, shape,
                     base64_of(std::as_bytes(std::span(values))), rest);
}

// The manual: without an element nothing is asked, and what names nothing is refused.
TEST(Parse, WhatHasNoElementAsksForNothing) {
  for (const char* body : {R"({"steering": null})", R"({"steering": []})", R"({"steering": {}})",
                           R"({"steering_vectors": {}})", R"({"sae_clamp_specs": []})",
                           R"({"steering_name": null})"}) {
    const auto parsed = parse(body, OneName(), small_model());
    ASSERT_TRUE(parsed) << body << ": " << parsed.error().to_string();
    EXPECT_TRUE(parsed->ops.empty()) << body;
  }
  for (const char* body :
       {R"({"steering": ""})", R"({"steering": false})", R"({"steering": 0})",
        R"({"steering": [{}]})", R"({"steering": [null]})", R"({"steering": "calm"})",
        R"({"steering_vectors": []})", R"({"sae_clamp_specs": {}})", R"({"steering_name": ""})"}) {
    EXPECT_FALSE(config_of(body)) << body;
  }
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

TEST(Parse, PackedIsAnotherNameOfATier) {
  const std::string tier = R"({"resid_post": {"1": [1, 0, 0, 0]}})";
  for (const char* phase : {"", "prefill_", "decode_"}) {
    EXPECT_EQ(key_of(fmt::format(R"({{"{}steering_vectors_packed": {}}})", phase, tier)),
              key_of(fmt::format(R"({{"{}steering_vectors": {}}})", phase, tier)));
    const auto both = parse(fmt::format(
        R"({{"{0}steering_vectors": {1}, "{0}steering_vectors_packed": {1}}})", phase, tier));
    ASSERT_FALSE(both.has_value());
    EXPECT_EQ(both.error().where, fmt::format("{}steering_vectors_packed", phase));
  }
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
    const auto config = config_of(to_json_text(body), example_names(), encoding_model());
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
  // The last ops, on experts and features, have fields and schemas of their own.
  EXPECT_EQ(ops.size(), static_cast<size_t>(kNumOps - 2));
  for (const OpName own : {OpName::kExperts, OpName::kFeature}) {
    EXPECT_TRUE(examples.contains(json::string_view(op_name(own))));
  }
  for (int32_t i = 0; i < kNumOps - 2; ++i) {
    EXPECT_EQ(ops[static_cast<size_t>(i)].as_string(),
              json::string_view(op_name(static_cast<OpName>(i))));
    EXPECT_TRUE(examples.contains(ops[static_cast<size_t>(i)].as_string()));
  }
  for (const std::string_view field : steering_fields()) {
    EXPECT_TRUE(schema.at("properties").as_object().contains(json::string_view(field)));
  }
}

TEST(Parse, APatchTakesItsRowFromASource) {
  const auto patch = [](std::string_view row, std::string_view site = "resid_post") {
    return fmt::format(R"({{"steering": {{"op": "patch", "site": "{}", "layers": [1, 2], {}}}}})",
                       site, row);
  };
  EXPECT_EQ(key_of(patch(R"("source": "zeros")")), key_of(patch(R"("vector": [0, 0, 0, 0])")));
  EXPECT_EQ(key_of(patch(R"("source": [1, 2, 3, 4])")), key_of(patch(R"("vector": [1, 2, 3, 4])")));
  EXPECT_NE(key_of(patch(R"("source": "zeros")")), key_of(patch(R"("source": [1, 2, 3, 4])")));
  EXPECT_EQ(key_of(patch(R"("source": "zeros")", "mlp_act")),
            key_of(patch(R"("vector": [0, 0, 0, 0, 0, 0])", "mlp_act")));
  const auto named =
      config_of(R"({"steering_vectors": {"resid_post": {"1": [4, 3, 2, 1], "2": [1, 2, 3, 4]}}})");
  ASSERT_TRUE(named);
  OneName names;
  names.set("calm", *named);
  const auto from_module = config_of(patch(R"("source": {"module": "calm"})"), names);
  const auto from_name = config_of(patch(R"("vector": "calm")"), names);
  ASSERT_TRUE(from_module) << from_module.error().to_string();
  EXPECT_EQ((*from_module)->program(1).key, (*from_name)->program(1).key);
  const auto unknown = config_of(patch(R"("source": {"module": "loud"})"), names);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().where, "steering.source.module");
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
  EXPECT_EQ(parsed->ops[0].vector.values()[0], 3.0f);
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

TEST(Parse, AnAxisOfAllLayersIsInTheProgramOnce) {
  OneName names;
  names.set("direction", *config_of(R"({"steering": {"op": "add", "site": "resid_post.6",
      "vector": [1, 0, 0, 0], "scale": 3}})"));
  for (const char* vector : {"[1, 2, 3, 4]", R"("direction")"}) {
    const auto parsed =
        parse(fmt::format(R"({{"steering": {{"op": "ablate", "site": "resid_pre", "layers": "all",
                                       "vector": {}}}}})",
                          vector),
              names);
    const auto config = Config::build(std::make_shared<const Model>(small_model()), parsed->ops);
    const auto program = (*config)->program(1).program;
    EXPECT_EQ(program->ops.size(), 16U);
    EXPECT_EQ(program->vectors.size(), static_cast<size_t>(tap::kVectorAlign));
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
      const auto parsed = parse_steering(value->as_object(), small_model(), example_names());
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
