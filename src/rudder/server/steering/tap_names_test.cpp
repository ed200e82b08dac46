// No word of steering or capture runs without effect, wherever in a body it stands.
#include "rudder/server/steering/tap_names.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "rudder/base/json.h"
#include "rudder/steer/parse.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

// The path that is refused; "" where the body is taken.
std::string refused(std::string_view body) {
  const auto value = parse_json(body, "test");
  EXPECT_TRUE(value) << body;
  const Result<void> done = refuse_misplaced_taps(value->as_object());
  if (done) return "";
  EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
  return done.error().where;
}

// As other servers call them, where they would be fields.
TEST(TapNames, OfOthersAreRefused) {
  for (const char* name : {"sae", "features", "activations", "hidden_states", "hiddenStates",
                           "output_hidden_states", "logit_lens", "representation_control"}) {
    EXPECT_EQ(refused(fmt::format(R"({{"{}":[1]}})", name)), name);
    EXPECT_EQ(refused(fmt::format(R"({{"{}":true}})", name)), name);
    EXPECT_EQ(refused(fmt::format(R"({{"extra_body":{{"{}":true}}}})", name)),
              fmt::format("extra_body.{}", name));
    for (const char* body :
         {R"({{"{}":false}})", R"({{"{}":[]}})", R"({{"metadata":{{"{}":"x"}}}})",
          R"({{"client_metadata":{{"{}":["x"]}}}})",
          R"({{"messages":[{{"role":"user","content":"a","{}":"x"}}]}})"}) {
      EXPECT_EQ(refused(fmt::format(fmt::runtime(body), name)), "");
    }
  }
}

TEST(TapNames, AreRefusedInEveryCarrier) {
  for (const char* carrier : {"extra_body", "vllm_xargs", "extra_args", "custom_params", "nvext",
                              "metadata", "chat_template_kwargs", "stream_options", "anything"}) {
    for (const std::string_view field : steer::steering_fields()) {
      EXPECT_EQ(refused(fmt::format(R"({{"{}":{{"{}":"calm"}}}})", carrier, field)),
                fmt::format("{}.{}", carrier, field));
    }
    for (const char* field : {"capture", "steering_pair", "stop_when", "steering_vector"}) {
      EXPECT_EQ(refused(fmt::format(R"({{"{}":{{"a":[1,{{"{}":{{"b":1}}}}]}}}})", carrier, field)),
                fmt::format("{}.a[1].{}", carrier, field));
    }
  }
  EXPECT_EQ(refused(R"({"extra_body":{"extra_body":{"steering":{"name":"calm"}}}})"),
            "extra_body.extra_body.steering");
  EXPECT_EQ(refused(R"({"extra_body":[{"stering":[{"name":"calm"}]}]})"), "extra_body[0].stering");
  EXPECT_EQ(refused(R"({"messages":[{"role":"user","content":"a","steering":{"name":"calm"}}]})"),
            "messages[0].steering");
  EXPECT_EQ(refused(R"({"steer":{"name":"calm"}})"), "steer");
  for (const char* carrier :
       {"text", "output_config", "output_format", "tool_choice", "response_format",
        "structured_outputs", "text.format", "output_config.format", "tool_choice.allowed_tools",
        "response_format.json_schema", "tool_choice.function"}) {
    std::string body = R"({"steering":{"name":"calm"}})";
    std::string_view rest = carrier;
    while (!rest.empty()) {
      const size_t dot = rest.rfind('.');
      const size_t begin = dot == rest.npos ? 0 : dot + 1;
      body = fmt::format(R"({{"{}":{}}})", rest.substr(begin), body);
      rest = rest.substr(0, dot == rest.npos ? 0 : dot);
    }
    EXPECT_EQ(refused(body), fmt::format("{}.steering", carrier));
  }
  EXPECT_EQ(refused(R"({"tools":[{"function":{"name":"f","capture":{"a":1}}}]})"),
            "tools[0].function.capture");
  EXPECT_EQ(refused(R"({"messages":[{"content":[{"type":"text","text":"a"},{"steering":[1]}]}]})"),
            "messages[0].content[1].steering");
  for (const char* item : {"messages", "tools", "input"}) {
    EXPECT_EQ(refused(fmt::format(R"({{"{}":[{{"steer_vector_request":{{"scale":2}}}}]}})", item)),
              fmt::format("{}[0].steer_vector_request", item));
  }
  EXPECT_EQ(refused(R"({"response_format":{"type":"text","controlVectors":[1]}})"),
            "response_format.controlVectors");
  EXPECT_EQ(refused(R"({"metadata":{"Steering":"calm"}})"), "metadata.Steering");
  // As a text, and in a message or a tool.
  EXPECT_EQ(refused(R"({"extra_body":"{\"steering\":{\"name\":\"calm\"}}"})"),
            "extra_body.steering");
  EXPECT_EQ(refused(R"({"a":{"extra_args":" [{\"stering\":[1]}]"}})"), "a.extra_args[0].stering");
  EXPECT_EQ(refused(R"({"messages":[{"content":"a","extra_body":{"steering":[1]}}]})"),
            "messages[0].extra_body.steering");
  EXPECT_EQ(refused(R"({"tools":[{"function":{"name":"f","extra":"{\"capture\":{\"a\":1}}"}}]})"),
            "tools[0].function.extra.capture");
}

// As other servers and papers call them, and as other languages write them.
TEST(TapNames, AreRefusedInEverySpelling) {
  for (const char* name : {"Steering",
                           "STEERING",
                           "steering-config",
                           "steeringConfig",
                           "activationSteering",
                           "activation_steering",
                           "activation_patching",
                           "Activation-Steering",
                           "steer_vector_request",
                           "feature_steering",
                           "control_vector",
                           "controlVectors",
                           "control-vectors",
                           "interventions",
                           "saeFeatures",
                           "patchSweep",
                           "Capture",
                           "stopWhen",
                           "stop-when",
                           "clamps",
                           "featureClamps",
                           "ablation"}) {
    EXPECT_EQ(refused(fmt::format(R"({{"{}":{{"name":"calm"}}}})", name)), name);
    EXPECT_EQ(refused(fmt::format(R"({{"extra_body":{{"{}":{{"name":"calm"}}}}}})", name)),
              fmt::format("extra_body.{}", name));
  }
}

TEST(TapNames, AreRefusedBesideTheBody) {
  const auto refused_beside = [](std::string_view query, std::vector<HttpField> header) {
    const Result<void> done = refuse_taps_beside_body(query, header);
    return done ? std::string() : done.error().where;
  };
  EXPECT_EQ(refused_beside("", {{"host", "a"}, {"x-steering", "calm"}}), "header.x-steering");
  EXPECT_EQ(refused_beside("", {{"steering", "calm"}}), "header.steering");
  EXPECT_EQ(refused_beside("", {{"x-rudder-steering-scale", "2"}}),
            "header.x-rudder-steering-scale");
  EXPECT_EQ(refused_beside("", {{"capture", "1"}}), "header.capture");
  EXPECT_EQ(refused_beside("", {{"x-control-vector", "calm"}}), "header.x-control-vector");
  EXPECT_EQ(refused_beside("", {{"interventions", "calm"}}), "header.interventions");
  EXPECT_EQ(refused_beside("a=b&steering=calm", {}), "query.steering");
  EXPECT_EQ(refused_beside("stop_when", {}), "query.stop_when");
  EXPECT_EQ(refused_beside("a=%7B&st%65ering=calm", {}), "query.steering");
  EXPECT_EQ(refused_beside("steering%5Bname%5D=calm", {}), "query.steering[name]");
  EXPECT_EQ(refused_beside("control%2Dvector=1", {}), "query.control-vector");
  EXPECT_EQ(refused_beside("extra_body=%7B%22steering%22%3A+%7B%22name%22:%22calm%22%7D%7D", {}),
            "query.extra_body.steering");
  EXPECT_EQ(refused_beside("steer-vector=a&b", {}), "query.steer-vector");
  for (const char* query : {"", "&", "=", "%", "%zz=%", "beta=true", "extra_body=%7B%22a%22%3A1%7D",
                            "extra_body", "api-version=2024-10-21&x=steering"}) {
    EXPECT_EQ(refused_beside(query, {{"x-request-id", "steering"},
                                     {"x-capture-id", "7"},
                                     {"x-stainless-lang", "python"},
                                     {"steering", ""}}),
              "")
        << query;
  }
}

TEST(TapNames, WordsOfTheClientsAreNot) {
  for (const char* body : {
           R"({"steering":{"name":"calm"},"capture":{"response":{"sites":{}}}})",
           R"({"return_steered_tokens":true,"steering_pair":true,"capture_wait":true})",
           R"({"messages":[{"role":"user","content":[{"type":"text","steering":"x"}]}]})",
           R"({"messages":[{"content":[{"type":"tool_use","input":{"steering":{"a":1}}}]}]})",
           R"({"messages":[{"role":"tool","content":[{"steering":{"a":1}},{"capture":[1]}]}]})",
           R"({"messages":[{"role":"function","content":[{"steer":{"a":1}}]}]})",
           R"({"input":[{"type":"apply_patch_call","patch":{"a":1},"action":{"steer":[1]}}]})",
           R"({"tools":[{"function":{"name":"f","parameters":{"properties":{"steering":{}}}}}]})",
           R"({"response_format":{"json_schema":{"schema":{"properties":{"capture":{"a":1}}}}}})",
           R"({"json_schema":{"properties":{"steering":{"type":"string"}}}})",
           R"({"text":{"format":{"type":"json_schema","schema":{"steering":{"a":1}}}}})",
           R"({"metadata":{"patch_version":"1.2","capture_id":"7"}})",
           R"({"extra_body":{"steering":null,"capture":{},"steering_pair":false}})",
           R"({"extra_body":"steering","extra_args":"{no json","suffix":"{\"steering\":[1]}"})",
           R"({"chat_template_kwargs":{"patch":"a","enable_thinking":false}})",
           R"({"logit_bias":{"5":1},"stream_options":{"include_usage":true}})",
       }) {
    EXPECT_EQ(refused(body), "") << body;
  }
}

}  // namespace
}  // namespace rudder::server
