// The op `experts`, and what else may be done to a router's logits: what is taken, what is refused
// and where, and what the device gets.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "rudder/steer/parse.h"
#include "rudder/steer/parse_test_support.h"

namespace rudder::steer {
namespace {

// Of small_model(): layers 13 and 14 have 4 experts, of which a token gets 2; the router of 14
// chooses by scores of its own.
std::string experts(std::string_view rest) {
  return fmt::format(R"({{"steering": {{"op": "experts", "site": "router_logits", {}}}}})", rest);
}

std::vector<tap::ProgramOp> ops_of(std::string_view body) {
  const auto config = config_of(body);
  EXPECT_TRUE(config.has_value()) << config.error().to_string();
  return (*config)->program(1).program->ops;
}

std::vector<float> vector_of(std::string_view body, size_t op) {
  const auto config = config_of(body);
  const auto program = (*config)->program(1).program;
  const auto begin = program->vectors.begin() + program->ops[op].op.v1;
  return {begin, begin + 4};
}

tap::ContentKey map_key(std::string_view body) {
  const auto config = config_of(body);
  EXPECT_TRUE(config.has_value()) << config.error().to_string();
  return (*config)->program(1).key;
}

TEST(ParseExperts, AMapOfOnesIsMadeForEachLayerWithExperts) {
  const std::string body = experts(R"("layers": "all", "activate": [2], "deactivate": [0, -1])");
  const std::vector<tap::ProgramOp> ops = ops_of(body);
  ASSERT_EQ(ops.size(), 2U);
  for (size_t i = 0; i < ops.size(); ++i) {
    EXPECT_EQ(ops[i].point, (tap::Point{13 + static_cast<int32_t>(i), tap::Site::kRouterLogits}));
    EXPECT_EQ(ops[i].op.kind, tap::OpKind::kExperts);
    EXPECT_EQ(ops[i].op.strength, 1.0f);
    EXPECT_EQ(ops[i].op.lo, i == 0 ? 0.0f : 1.0f);  // of scores
    EXPECT_EQ(vector_of(body, i), (std::vector<float>{-1, 0, 1, -1}));
  }
  EXPECT_EQ(ops_of(experts(R"("layers": 13, "activate": 1)")).size(), 1U);
  const std::string named =
      R"({"steering": {"op": "experts", "site": "router_logits.14", "deactivate": "1-2"}})";
  EXPECT_EQ(vector_of(named, 0), (std::vector<float>{0, -1, -1, 0}));
}

TEST(ParseExperts, TheMapIsContentOfTheKey) {
  const auto key = map_key(experts(R"("layers": 13, "activate": [2])"));
  EXPECT_EQ(map_key(experts(R"("layers": 13, "activate": [-2])")), key);
  EXPECT_NE(map_key(experts(R"("layers": 13, "activate": [1])")), key);
  EXPECT_NE(map_key(experts(R"("layers": 13, "deactivate": [2])")), key);
  EXPECT_NE(map_key(experts(R"("layers": 14, "activate": [2])")), key);
}

TEST(ParseExperts, ItRunsBehindWhatIsAddedToTheLogits) {
  const std::vector<tap::ProgramOp> ops = ops_of(
      R"({"steering": [{"op": "experts", "site": "router_logits", "layers": 13, "activate": [2]},
                       {"op": "add", "site": "router_logits", "layers": 13, "vector": [1, 2, 3, 4]},
                       {"op": "clamp", "site": "router_logits", "layers": 13, "hi": 2,
                        "vector": [1, 0, 0, 0]}]})");
  ASSERT_EQ(ops.size(), 3U);
  EXPECT_EQ(ops[0].op.kind, tap::OpKind::kAdd);
  EXPECT_EQ(ops[1].op.kind, tap::OpKind::kAxis);
  EXPECT_EQ(ops[2].op.kind, tap::OpKind::kExperts);
}

TEST(ParseExperts, GatesAndSelectorsAreThoseOfEveryOp) {
  const auto gated = ops_of(experts(
      R"("layers": 13, "activate": [2], "select": {"phase": "decode"},
         "gate": {"probe": {"vector": [1, 0, 0, 1], "threshold": 0.5}})"));
  ASSERT_EQ(gated.size(), 1U);
  EXPECT_EQ(gated[0].op.gate, tap::GateKind::kHard);
  EXPECT_EQ(gated[0].op.threshold, 0.5f);
  const auto parsed = parse(experts(R"("layers": 13, "activate": [2], "gate": {"schedule":
      {"kind": "ramp", "end": 8, "from": 0, "to": 1}})"));
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  EXPECT_EQ(parsed->ops[0].schedule.kind, tap::ScheduleKind::kRamp);
}

TEST(ParseExperts, WhatIsWrongIsRefusedWithItsPath) {
  const std::string nan = "AAAAAAAAwH8AAAAAAAAAAA==";
  const std::vector<std::array<std::string, 3>> cases = {
      {experts(R"("activate": [1])"), "steering.layers", "all"},
      {experts(R"("layers": [3], "activate": [1])"), "steering.layers[0]", "no mixture of experts"},
      {R"({"steering": {"op": "experts", "site": "router_logits.3", "activate": [1]}})",
       "steering.site", "no mixture of experts"},
      {R"({"steering": {"op": "experts", "activate": [1], "layers": 13}})", "steering.site",
       "string"},
      {R"({"steering": {"op": "experts", "site": "mlp_in", "activate": [1], "layers": 13}})",
       "steering.site", "router_logits"},
      {R"({"steering": {"op": "experts", "site": "routed_experts", "activate": 1, "layers": 13}})",
       "steering.site", "router_logits"},
      {experts(R"("layers": 13)"), "steering.activate", "deactivate"},
      {experts(R"("layers": 13, "activate": [])"), "steering.activate", "empty"},
      {experts(R"("layers": 13, "activate": [4])"), "steering.activate[0]", "expert 4 of layer 13"},
      {experts(R"("layers": 13, "activate": [0, -5])"), "steering.activate[1]", "expert -5"},
      {experts(R"("layers": 13, "activate": [1, 1])"), "steering.activate[1]", "twice"},
      {experts(R"("layers": 13, "activate": ["x"])"), "steering.activate[0]", ""},
      {experts(R"("layers": 13, "activate": [1.5])"), "steering.activate[0]", ""},
      {experts(R"("layers": 13, "activate": [1], "deactivate": [2, 1])"), "steering.deactivate",
       "expert 1 is activated too"},
      {experts(R"("layers": 13, "activate": [0, 1, 2])"), "steering.activate", "a token has 2"},
      {experts(R"("layers": 13, "deactivate": [0, 1, 2])"), "steering.deactivate", "a token has 2"},
      {experts(R"("layers": 13, "activate": [1], "scale": 2)"), "steering.scale", "no such field"},
      {experts(R"("layers": 13, "activate": [1], "vector": [1, 2, 3, 4])"), "steering.vector",
       "no such field"},
      // Other ops at the site.
      {R"({"steering": {"op": "add", "site": "router_logits", "layers": 13, "vector": [1, 2]}})",
       "steering.vector", "router_logits of layer 13 has 4"},
      {R"({"steering": {"op": "add", "site": "router_logits", "layers": 2, "vector": [1, 2, 3, 4]}})",
       "steering.layers", "no mixture of experts"},
      {R"({"steering": {"op": "add", "site": "router_logits", "layers": 13, "heads": 0,
                        "vector": [1, 2, 3, 4]}})",
       "steering.heads", "attn_z"},
      {R"({"steering": {"op": "add", "site": "router_logits", "layers": 13, "vector":
           {"dtype": "float32", "shape": [1, 4], "data": ")" +
           nan + R"("}}})",
       "steering.vector.data", "finite"},
      {R"({"steering": {"op": "add", "site": "routed_experts", "layers": 13, "vector": [1, 2]}})",
       "steering.site", "no op reads or changes it"},
      {R"({"steering_vectors": {"routed_experts": {"13": [1, 2]}}})",
       "steering_vectors.routed_experts", "no op reads or changes it"},
      {R"({"steering_vectors": {"router_logits": {"13": [1, 2]}}})",
       "steering_vectors.router_logits.13", "has 4"},
  };
  for (const auto& [body, path, words] : cases) {
    const auto parsed = config_of(body);
    ASSERT_FALSE(parsed.has_value()) << body;
    EXPECT_EQ(parsed.error().where, path) << body << ": " << parsed.error().message;
    EXPECT_NE(parsed.error().message.find(words), std::string::npos)
        << body << ": " << parsed.error().message;
  }
}

TEST(ParseExperts, ABackendThatTapsNoRoutersIsToldOf) {
  Model model = small_model();
  model.geometry.leave_out_routers();
  const auto refused = config_of(experts(R"("layers": 13, "activate": [1])"), OneName(), model);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("does not tap its router"), std::string::npos)
      << refused.error().message;
  EXPECT_FALSE(config_of(experts(R"("layers": "all", "activate": [1])"), OneName(), model));
}

TEST(ParseExperts, TiersAddToLogits) {
  const auto config = config_of(R"({"steering_vectors": {"router_logits": {"13": [1, 2, 3, 4]}}})");
  ASSERT_TRUE(config) << config.error().to_string();
  const auto program = (*config)->program(1).program;
  ASSERT_EQ(program->ops.size(), 1U);
  EXPECT_EQ(program->ops[0].point.site, tap::Site::kRouterLogits);
}

}  // namespace
}  // namespace rudder::steer
