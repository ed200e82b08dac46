// Fields that clients and routers send: what is done with them, and what is refused by name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "rudder/base/json.h"
#include "rudder/server/testing/exposition_validator.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

Script say_x(const engine::RequestParams&) {
  return say({"x"});
}

json::value error_of(const ClientResponse& answer) {
  return parse_json(answer.body, "body").value().at("error");
}

struct Start {
  std::string_view path;
  std::string_view body;  // without its end
};
constexpr Start kStarts[] = {{kCompletionsPath, R"({"prompt":"a",)"},
                             {kChatPath, R"({"messages":[{"role":"user","content":"a"}],)"},
                             {"/v1/responses", R"({"input":"a",)"}};

TEST(Fields, WhatLooksLikeSteeringIsRefusedWithTheNameToUse) {
  TestServer test(say_x);
  const std::pair<const char*, const char*> cases[] = {
      {"steering_vector", "use steering_vectors"},
      {"steer", "use steering"},
      {"decode_steering_vector", "use decode_steering_vectors"},
      {"prefill_steering_clamps", "use steering"},
      {"steering_clamps", "use steering"},
      {"sae_clamp_specs", "--enable-steering"},
      {"sae_full_reconstruction_specs", "--enable-steering"},
      {"patch", "use steering"},
      {"patch_vectors", "use steering"},
      {"captures", "use capture"},
      {"capture_activations", "use capture"},
      {"capture_wat", "use capture_wait"},
      {"stering", "use steering"},
      {"stearing_name", "use steering_name"}};
  for (const Start& start : kStarts) {
    for (const auto& [field, message] : cases) {
      const ClientResponse answer =
          test.post(start.path, fmt::format(R"({}"{}":{{}}}})", start.body, field));
      ASSERT_EQ(answer.status, 400) << start.path << " " << field;
      const json::value error = error_of(answer);
      EXPECT_EQ(error.at("param").as_string(), field);
      EXPECT_NE(error.at("message").as_string().find(message), std::string::npos) << answer.body;
    }
    for (const char* other : {"start", "stored", "captain", "pat", "streaming", "top_a"}) {
      const ClientResponse answer =
          test.post(start.path, fmt::format(R"({}"{}":1}})", start.body, other));
      EXPECT_EQ(answer.status, 200) << other << answer.body;
    }
  }
}

TEST(Fields, RoutersMaySendTheirDefaults) {
  TestServer test(say_x);
  for (const Start& start : {kStarts[0], kStarts[1]}) {
    const auto post = [&](std::string_view rest) {
      return test.post(start.path, fmt::format("{}{}}}", start.body, rest));
    };
    const ClientResponse answer = post(
        R"("no_stop_trim":false,"separate_reasoning":true,"stream_reasoning":true,)"
        R"("include_reasoning":true,"return_hidden_states":false,"continue_final_message":false,)"
        R"("add_generation_prompt":true,"stop_regex":null,"lora_path":null,"session_params":null,)"
        R"("custom_logit_processor":null,"bootstrap_host":null,"custom_params":null)");
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.field("x-rudder-ignored-fields"), "");
    for (const char* other :
         {R"("no_stop_trim":true)", R"("stream_reasoning":false)", R"("lora_path":"x")",
          R"("return_hidden_states":true)", R"("stop_regex":"a+")"}) {
      EXPECT_EQ(post(other).status, 400) << other;
    }
  }
  EXPECT_EQ(test.post(kCompletionsPath, R"({"prompt":"a","continue_final_message":true})").status,
            400);
}

TEST(Fields, AnObjectMayHaveToFitASchema) {
  const auto constraints_of = [](std::string_view format) {
    TestServer test(say_x);
    const ClientResponse answer = test.post(
        kCompletionsPath, fmt::format(R"({{"prompt":"a","response_format":{}}})", format));
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.field("x-rudder-ignored-fields"), "") << format;
    return check_exposition(test.get("/metrics").body)
        .samples.at("rudder:grammar_cache_bytes{model_name=\"tiny\"}");
  };
  const double any = constraints_of(R"({"type":"json_object"})");
  EXPECT_EQ(constraints_of(R"({"type":"json_object","schema":null})"), any);
  EXPECT_EQ(constraints_of(R"({"type":"json_object","schema":{}})"), any);
  const char* schema = R"({"properties":{"a":{"type":"boolean"}},"required":["a"]})";
  const double of_schema =
      constraints_of(fmt::format(R"({{"type":"json_object","schema":{}}})", schema));
  EXPECT_NE(of_schema, any) << "another grammar";
  TestServer test(say_x);
  const ClientResponse wrong = test.post(
      kCompletionsPath,
      R"({"prompt":"a","response_format":{"type":"json_object","schema":{"type":"nothing"}}})");
  EXPECT_EQ(wrong.status, 400);
  EXPECT_NE(wrong.body.find(R"("param":"response_format.schema)"), std::string::npos) << wrong.body;
  const ClientResponse unknown = test.post(
      kCompletionsPath, R"({"prompt":"a","response_format":{"type":"json_object","shema":{}}})");
  EXPECT_EQ(unknown.field("x-rudder-ignored-fields"), "response_format.shema");
}

TEST(Fields, WhatHasNoValueIsNull) {
  TestServer test(say_x);
  const auto document = [&](const Start& start) {
    return parse_json(test.post(start.path, fmt::format("{}\"n\":1}}", start.body)).body, "body")
        .value();
  };
  const json::value chat = document(kStarts[1]);
  for (const char* field :
       {"prompt_logprobs", "prompt_token_ids", "service_tier", "kv_transfer_params"}) {
    EXPECT_TRUE(chat.at(field).is_null()) << field;
  }
  const json::value& choice = chat.at("choices").at(0);
  for (const char* field : {"token_ids", "logprobs", "stop_reason"}) {
    EXPECT_TRUE(choice.at(field).is_null()) << field;
  }
  for (const char* field : {"reasoning", "reasoning_content", "refusal"}) {
    EXPECT_TRUE(choice.at("message").at(field).is_null()) << field;
  }
  const json::value text = document(kStarts[0]);
  for (const char* field : {"token_ids", "prompt_token_ids", "prompt_logprobs", "logprobs"}) {
    EXPECT_TRUE(text.at("choices").at(0).at(field).is_null()) << field;
  }
  for (const char* field : {"service_tier", "kv_transfer_params"}) {
    EXPECT_TRUE(text.at(field).is_null()) << field;
  }
}

TEST(Fields, APromptThatDoesNotFitSaysWhatClientsLookFor) {
  TestServer test(say_x, {}, 64);
  const std::string prompt(80, 'p');
  const std::pair<std::string_view, std::string> cases[] = {
      {kCompletionsPath, fmt::format(R"({{"prompt":"{}"}})", prompt)},
      {kCompletionsPath, R"({"prompt":"abc","max_tokens":62})"},
      {kChatPath, fmt::format(R"({{"messages":[{{"role":"user","content":"{}"}}]}})", prompt)},
      {kChatPath, R"({"messages":[{"role":"user","content":"abc"}],"max_completion_tokens":60})"},
      {"/v1/responses", fmt::format(R"({{"input":"{}"}})", prompt)}};
  for (const auto& [path, body] : cases) {
    const ClientResponse answer = test.post(path, body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(error_of(answer).at("code").as_string(), "context_length_exceeded") << answer.body;
    EXPECT_TRUE(std::string_view(error_of(answer).at("message").as_string())
                    .starts_with("This model's maximum context length is 64 tokens."))
        << answer.body;
  }
  EXPECT_EQ(error_of(test.post(kChatPath, cases[3].second)).at("param").as_string(),
            "max_completion_tokens");
}

TEST(Fields, UsageInEachEventIsUsageAtTheEndToo) {
  TestServer test(say_x);
  const auto usages = [&](const char* options) {
    const ClientResponse answer =
        test.post(kCompletionsPath,
                  fmt::format(R"({{"prompt":"a","stream":true,"stream_options":{}}})", options));
    EXPECT_EQ(answer.status, 200) << answer.body;
    int with_numbers = 0;
    for (size_t at = 0; (at = answer.body.find("\"usage\":{", at)) != std::string::npos; ++at) {
      ++with_numbers;
    }
    const bool at_end = answer.body.find("\"choices\":[]") != std::string::npos;
    return std::pair(with_numbers > (at_end ? 1 : 0), at_end);
  };
  EXPECT_EQ(usages(R"({"continuous_usage_stats":true})"), std::pair(true, true));
  EXPECT_EQ(usages(R"({"continuous_usage_stats":true,"include_usage":true})"),
            std::pair(true, true));
  EXPECT_EQ(usages(R"({"continuous_usage_stats":true,"include_usage":false})"),
            std::pair(false, false));
  EXPECT_EQ(usages(R"({"include_usage":true})"), std::pair(false, true));
  EXPECT_EQ(usages("{}"), std::pair(false, false));
}

TEST(Fields, OpenapiAsksForTheKeysThatThereAre) {
  const auto security_of = [](const ServerSettings& settings, const char* path,
                              const char* method) {
    TestServer test(say_x, settings);
    const json::value document = parse_json(test.get("/openapi.json").body, "openapi").value();
    const json::object& operation = document.at("paths").at(path).at(method).as_object();
    const json::value* security = operation.if_contains("security");
    return security == nullptr ? std::string() : to_json_text(*security);
  };
  ServerSettings settings;
  EXPECT_EQ(security_of(settings, "/v1/completions", "post"), "");
  EXPECT_EQ(security_of(settings, "/v1/steering/set", "post"), "");
  settings.api_key = {"k"};
  EXPECT_EQ(security_of(settings, "/v1/completions", "post"), R"([{"apiKey":[]}])");
  EXPECT_EQ(security_of(settings, "/v1/steering/set", "post"), R"([{"apiKey":[]}])");
  EXPECT_EQ(security_of(settings, "/health", "get"), "");
  settings.steering_api_key = {"s"};
  EXPECT_EQ(security_of(settings, "/v1/steering/set", "post"), R"([{"steeringKey":[]}])");
}

}  // namespace
}  // namespace rudder::server
