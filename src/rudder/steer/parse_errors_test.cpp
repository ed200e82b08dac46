// What is wrong with a body, field by field.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "rudder/steer/lower.h"
#include "rudder/steer/parse.h"
#include "rudder/steer/parse_test_support.h"
#include "rudder/steer/vectors.h"

namespace rudder::steer {
namespace {

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
      {op_with("patch", R"("source": "zeros")"), "steering.vector", "not both"},
      {R"({"steering": {"op": "patch", "site": "resid_post", "layers": 1, "source": "ones"}})",
       "steering.source", "zeros"},
      {R"({"steering": {"op": "patch", "site": "resid_post", "layers": 1, "source": {"module": 3}}})",
       "steering.source.module", "string"},
      {R"({"steering": {"op": "patch", "site": "resid_post", "layers": 1,
                        "source": {"module": "calm", "layer": 2}}})",
       "steering.source.layer", "module"},
      {R"({"steering": {"op": "add", "site": "resid_post", "layers": 1, "source": "zeros"}})",
       "steering.source", "add"},
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
      {R"({"steering": {"op": "add", "vector": [1, 2, 3, 4], "site": "resid_post", "layers": [1, -17]}})",
       "steering.layers[1]", "-17"},
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
      {add_with(R"("select": {"token_ids": []})"), "steering.select.token_ids", "token ids"},
      {add_with(R"("select": {"token_ids": [1, -1]})"), "steering.select.token_ids[1]", "below 0"},
      {add_with(R"("select": {"special": 0})"), "steering.select.special", "true or false"},
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
      {tier_with(R"({"resid_post": {"-17": [1, 2, 3, 4]}})"), "steering_vectors.resid_post.-17",
       "16 layers"},
      {tier_with(R"({"resid_post": {"15": [1, 2, 3, 4], "-1": [1, 2, 3, 4]}})"),
       "steering_vectors.resid_post.-1", "already"},
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

TEST(Parse, AShortBodyCannotAskForEverything) {
  const auto refused = [](std::string_view element, size_t count, std::string_view where) {
    std::string list;
    for (size_t i = 0; i < count; ++i) list += fmt::format("{}{}", i == 0 ? "" : ",", element);
    OneName names;
    names.set("m", *config_of(tier_with(R"({"resid_post": {"1": [1, 2, 3, 4]}})")));
    const auto parsed = parse(fmt::format(R"({{"steering": [{}]}})", list), names);
    ASSERT_FALSE(parsed.has_value());
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(parsed.error().where, where);
  };
  refused(R"({"name": "m"})", kMaxNamed + 1, fmt::format("steering[{}]", kMaxNamed));
  refused(R"({"op": "add", "site": "resid_pre", "layers": "all", "vector": "m"})",
          kMaxSpecs / 16 + 1, fmt::format("steering[{}]", kMaxSpecs / 16));
  std::string axes = "[1, 2, 3, 4]";
  for (size_t i = 0; i < kMaxAxes; ++i) axes += ", [1, 2, 3, 4]";
  refused(R"({"op": "ablate", "site": "resid_pre", "layers": 1, "vector": [)" + axes + "]}", 1,
          "steering[0].vector");
}

TEST(Parse, TheManualTellsTheLimits) {
  std::ifstream file(RUDDER_SOURCE_DIR "/docs/steering.md");
  std::string document;
  for (std::string word; file >> word;) document += word + " ";
  const std::vector<std::string> limits = {
      fmt::format("at most {} ops (each layer counts), {} of them at one site of one layer, ",
                  kMaxSpecs, tap::kMaxOpsPerPoint),
      fmt::format("{} modules, {} different selections of tokens", kMaxNamed, kMaxSelectors),
      fmt::format("an `ablate` has at most {} axes", kMaxAxes)};
  for (const std::string& limit : limits) {
    EXPECT_NE(document.find(limit), std::string::npos) << limit;
  }
  static_assert(tap::kNumLatches == 4 && kMaxMagnitude == 1e6 && kMaxThreshold == 1e12);
  EXPECT_NE(document.find("four different prompt scores"), std::string::npos);
  EXPECT_NE(document.find("above 10⁶ in magnitude (10¹² where"), std::string::npos);
}

}  // namespace
}  // namespace rudder::steer
