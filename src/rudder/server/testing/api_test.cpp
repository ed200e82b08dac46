// The protocol over real sockets: requests in, the exact answers out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "rudder/base/json.h"
#include "rudder/server/http/route_table.h"
#include "rudder/server/testing/exposition_validator.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// Says back the prompt's bytes, one a token; a prompt that begins with "!" breaks after one.
Script echo_script(const engine::RequestParams& params) {
  std::vector<std::string> pieces;
  for (const int32_t id : params.prompt) {
    if (id < 256) pieces.emplace_back(1, static_cast<char>(id));
  }
  Script script = say(pieces);
  script.cached_tokens = 1;
  if (pieces.at(0) == "!") {
    script.events.resize(2);
    script.events[1] = engine::Event();
    script.events[1].finish = engine::FinishReason::kError;
    script.events[1].error = Error{ErrorCode::kNumerical, "row 7 has NaN", "logits"};
    if (pieces.at(1) == "!") script.events.erase(script.events.begin());
  }
  return script;
}

class ApiTest : public ::testing::Test {
 protected:
  TestServer test_{echo_script};
};

const std::string kId = "x-request-id: r1\r\n";

TEST_F(ApiTest, CompletionWhole) {
  const ClientResponse answer =
      test_.post(kCompletionsPath, R"({"prompt":"hi","max_tokens":5,"frobnicate":1})", kId);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.field("content-type"), "application/json");
  EXPECT_EQ(answer.field("x-request-id"), "r1");
  EXPECT_EQ(answer.field("x-rudder-ignored-fields"), "frobnicate");
  EXPECT_EQ(without_times(answer.body),
            R"({"id":"cmpl-r1","object":"text_completion","created":0,"model":"tiny","choices":[)"
            R"({"index":0,"text":"hi","logprobs":null,"finish_reason":"stop","stop_reason":null,)"
            R"("token_ids":null,"prompt_token_ids":null,"prompt_logprobs":null}],)"
            R"("usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,)"
            R"("prompt_tokens_details":{"cached_tokens":1}},"system_fingerprint":"rudder-1.2.3",)"
            R"("service_tier":null,"kv_transfer_params":null})");
}

TEST_F(ApiTest, CompletionStream) {
  const ClientResponse answer = test_.post(
      kCompletionsPath,
      R"({"prompt":"hi","model":"tiny","stream":true,"stream_options":{"include_usage":true}})",
      kId);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.field("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(answer.field("cache-control"), "no-cache");
  EXPECT_TRUE(answer.complete);
  const std::string start =
      R"(data: {"id":"cmpl-r1","object":"text_completion","created":0,"model":"tiny","choices":[)";
  EXPECT_EQ(
      without_times(answer.body),
      start + R"({"index":0,"text":"h","logprobs":null,"finish_reason":null}],"usage":null})" +
          "\n\n" + start +
          R"({"index":0,"text":"i","logprobs":null,"finish_reason":"stop","stop_reason":null}],)" +
          R"("system_fingerprint":"rudder-1.2.3","usage":null})" + "\n\n" + start +
          R"(],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,)"
          R"("prompt_tokens_details":{"cached_tokens":1}}})"
          "\n\ndata: [DONE]\n\n");
}

TEST_F(ApiTest, ChatWholeAndStreamSayTheSame) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":1})";
  const ClientResponse whole = test_.post(kChatPath, body + "}", kId);
  ASSERT_EQ(whole.status, 200) << whole.body;
  const std::string said = "user\nx\nassistant\n";
  const auto document = parse_json(whole.body, "body").value();
  EXPECT_EQ(document.at("object").as_string(), "chat.completion");
  EXPECT_EQ(document.at("id").as_string(), "chatcmpl-r1");
  EXPECT_EQ(document.at("choices").at(0).at("message").at("content").as_string(), said);

  const ClientResponse stream = test_.post(kChatPath, body + R"(,"stream":true})", kId);
  std::string joined;
  size_t events = 0;
  std::string_view rest = stream.body;
  std::string last;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    ASSERT_NE(end, std::string_view::npos);
    const std::string_view event = rest.substr(6, end - 6);
    rest.remove_prefix(end + 2);
    last = event;
    if (event == "[DONE]") continue;
    const auto json = parse_json(event, "event").value();
    const auto& delta = json.at("choices").at(0).at("delta").as_object();
    if (events++ == 0) {
      EXPECT_EQ(delta.at("role").as_string(), "assistant");
    }
    if (delta.contains("content")) joined += delta.at("content").as_string();
  }
  EXPECT_EQ(joined, said);
  EXPECT_EQ(last, "[DONE]");
  EXPECT_EQ(events, said.size() + 1) << "the role, then an event a token";
}

TEST_F(ApiTest, SeveralPromptsAndChoicesAreIndexed) {
  const ClientResponse answer =
      test_.post(kCompletionsPath, R"({"prompt":["ab","c"],"n":2,"echo":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const auto json = parse_json(answer.body, "body").value();
  const char* expected[] = {"abab", "abab", "cc", "cc"};
  ASSERT_EQ(json.at("choices").as_array().size(), 4u);
  for (int64_t i = 0; i < 4; ++i) {
    const auto& choice = json.at("choices").at(static_cast<size_t>(i));
    EXPECT_EQ(choice.at("index").as_int64(), i);
    EXPECT_EQ(choice.at("text").as_string(), expected[i]);
  }
  EXPECT_EQ(json.at("usage").at("prompt_tokens").as_int64(), 3);
  EXPECT_EQ(json.at("usage").at("completion_tokens").as_int64(), 6);
}

engine::OutputToken scored(int32_t id, float logprob) {
  engine::OutputToken token;
  token.token = id;
  token.has_logprobs = true;
  token.logprob = logprob;
  token.rank = 1;
  token.top = {{id, logprob}};
  return token;
}

// Scores of "abc" in two steps, then "d" and "e".
Script scoring_script(const engine::RequestParams&) {
  Script script = say({"d", "e"}, engine::FinishReason::kLength);
  for (engine::Event& event : script.events) {
    event.tokens[0] = scored(event.tokens[0].token, -0.5f);
  }
  script.events.insert(script.events.begin(), engine::Event());
  script.events[0].prompt_logprobs = {scored('b', -1)};
  script.events[1].prompt_logprobs = {scored('c', -2)};
  return script;
}

TEST(ApiScores, EchoWithLogprobsWholeAndStreamed) {
  TestServer test(scoring_script);
  const std::string body = R"({"prompt":"abc","echo":true,"logprobs":1,"n":2)";
  const auto whole = parse_json(test.post(kCompletionsPath, body + "}").body, "body").value();
  for (const auto& choice : whole.at("choices").as_array()) {
    EXPECT_EQ(choice.at("text").as_string(), "abcde");
    EXPECT_EQ(json::serialize(choice.at("logprobs").at("token_logprobs")),
              "[null,-1,-2,-5E-1,-5E-1]");
    EXPECT_EQ(json::serialize(choice.at("logprobs").at("text_offset")), "[0,1,2,3,4]");
  }
  const ClientResponse stream = test.post(kCompletionsPath, body + R"(,"stream":true})");
  const std::string first =
      R"("text":"abcd","logprobs":{"text_offset":[0,1,2,3],"token_logprobs":[null,-1,-2,-0.5],)";
  const std::string second = R"("text":"e","logprobs":{"text_offset":[4],)";
  EXPECT_NE(stream.body.find(R"({"index":0,)" + first), std::string::npos) << stream.body;
  EXPECT_NE(stream.body.find(R"({"index":1,)" + first), std::string::npos);
  EXPECT_NE(stream.body.find(R"({"index":1,)" + second), std::string::npos);
}

// Scores come in pieces and are held once: the answer is a few times their size, not of the
// vocabulary's.
TEST(ApiScores, AHundredThousandTokens) {
  constexpr int32_t kTokens = 100'000;
  const auto script = [](const engine::RequestParams& params) {
    Script made = say({"x"}, engine::FinishReason::kLength);
    for (size_t begin = 1; begin < params.prompt.size(); begin += 2048) {
      engine::Event event;
      for (size_t i = begin; i < std::min(begin + 2048, params.prompt.size()); ++i) {
        event.prompt_logprobs.push_back(scored(params.prompt[i], -1.5f));
      }
      made.events.insert(made.events.end() - 1, std::move(event));
    }
    return made;
  };
  TestServer test(script, {}, 131'072);
  const ClientResponse answer =
      test.post(kCompletionsPath,
                R"({"prompt":")" + std::string(kTokens, 'a') +
                    R"(","prompt_logprobs":1,"max_tokens":1,"truncate_prompt_tokens":100000})");
  ASSERT_EQ(answer.status, 200) << answer.body.substr(0, 300);
  size_t count = 0;
  for (size_t at = answer.body.find("\"rank\""); at != std::string::npos;
       at = answer.body.find("\"rank\"", at + 1)) {
    ++count;
  }
  EXPECT_EQ(count, size_t{kTokens} - 1);
  EXPECT_LT(answer.body.size(), size_t{kTokens} * 96);
}

// As evaluation harnesses ask: how likely was this text?
TEST(ApiScores, MaxTokensZeroTellsThePromptAlone) {
  TestServer test(scoring_script);
  for (const char* stream : {"", R"(,"stream":true,"stream_options":{"include_usage":true})"}) {
    const ClientResponse answer = test.post(
        kCompletionsPath,
        std::string(R"({"prompt":"abc","echo":true,"logprobs":1,"max_tokens":0)") + stream + "}");
    EXPECT_NE(answer.body.find(
                  R"("text":"abc","logprobs":{"text_offset":[0,1,2],"token_logprobs":[null,-1,-2],)"
                  R"("tokens":["a","b","c"],"top_logprobs":[null,{"b":-1},{"c":-2}]})"),
              std::string::npos)
        << answer.body;
    EXPECT_NE(answer.body.find(R"("finish_reason":"length")"), std::string::npos);
    EXPECT_NE(answer.body.find(R"("completion_tokens":0)"), std::string::npos);
  }
}

TEST(ApiScores, PromptLogprobsBesideAChat) {
  TestServer test(scoring_script);
  const auto answer =
      parse_json(test.post(kChatPath,
                           R"({"messages":[{"role":"user","content":"x"}],"prompt_logprobs":1})")
                     .body,
                 "body")
          .value();
  const auto& told = answer.at("prompt_logprobs").as_array();
  ASSERT_EQ(told.size(), 3u);
  EXPECT_TRUE(told[0].is_null());
  EXPECT_EQ(told[1].at("98").at("decoded_token").as_string(), "b");
}

TEST(ApiScores, WhatLogprobsTakeIsBoundedBeforeAnythingRuns) {
  ServerSettings settings;
  settings.max_buffered_output = 1000;
  settings.response_store_bytes = 0;
  TestServer test(scoring_script, settings);
  ClientResponse answer = test.post(kCompletionsPath, R"({"prompt":"abc","prompt_logprobs":2})");
  EXPECT_EQ(answer.status, 200) << "3 tokens, 3 of each";
  answer = test.post(kCompletionsPath, R"({"prompt":"abc","prompt_logprobs":3})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find(R"("param":"prompt_logprobs")"), std::string::npos) << answer.body;
  EXPECT_EQ(test.engine.submitted().size(), 1u);
  answer = test.post(kCompletionsPath, R"({"prompt":"a","logprobs":9})");
  EXPECT_EQ(answer.status, 503) << "two tokens of output with ten each";
}

TEST_F(ApiTest, AFailureBeforeTheFirstTokenIsAStatus) {
  for (const char* stream : {"false", "true"}) {
    const ClientResponse answer =
        test_.post(kCompletionsPath, fmt::format(R"({{"prompt":"!!","stream":{}}})", stream));
    EXPECT_EQ(answer.status, 500);
    EXPECT_EQ(answer.body,
              R"({"error":{"message":"the model produced a value that is not a number for this )"
              R"(request","type":"server_error","param":null,"code":"numerical_error"}})");
  }
}

TEST_F(ApiTest, AFailureInMidStreamIsAnEvent) {
  const ClientResponse answer = test_.post(kCompletionsPath, R"({"prompt":"!x","stream":true})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.complete);
  EXPECT_NE(answer.body.find("data: {\"error\":{"), std::string::npos);
  EXPECT_EQ(answer.body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(answer.body.find("NaN"), std::string::npos) << "details are for the log";
}

TEST_F(ApiTest, ErrorsOfEveryKind) {
  struct Case {
    std::string bytes;
    int status;
    const char* body_part;
    const char* field;
  };
  const std::string get = " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const Case cases[] = {
      {"GET /nope" + get, 404, R"("code":"not_found")", ""},
      {"GET /v1/completions" + get, 405, R"("code":"method_not_allowed")", "allow"},
      {"DELETE /v1/models" + get, 405, R"("code":"method_not_allowed")", "allow"},
      {"GET /v1/models/none" + get, 404, R"("param":"model","code":"model_not_found")", ""},
      {post_bytes(kCompletionsPath, R"({"prompt":"a","model":"m"})"), 404,
       R"("param":"model","code":"model_not_found")", ""},
      {post_bytes(kCompletionsPath, "{"), 400, R"("code":"invalid_json")", ""},
      {post_bytes(kCompletionsPath, R"({"prompt":"a","top_p":2})"), 400, R"("param":"top_p")", ""},
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 415,
       R"("code":"unsupported_media_type")", ""},
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\r\n", 415,
       R"("code":"unsupported_media_type")", ""},
      {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
       "Content-Encoding: identity, GZip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
       415, R"(content-encoding 'GZip' is not supported)", "accept-encoding"},
      {post_bytes("/tokenize", "{}"), 400, R"("param":"prompt")", ""},
      {post_bytes("/detokenize", R"({"tokens":["a"]})"), 400, R"("param":"tokens[0]")", ""},
      {"GET / HTTP/1.1\r\n\r\n", 400, R"("code":"bad_request")", ""},
  };
  for (const Case& c : cases) {
    TestClient client = test_.client();
    client.send(c.bytes);
    const ClientResponse answer = client.receive();
    EXPECT_EQ(answer.status, c.status) << c.bytes;
    EXPECT_NE(answer.body.find(c.body_part), std::string::npos) << c.bytes << answer.body;
    EXPECT_TRUE(answer.body.starts_with(R"({"error":{"message":")")) << answer.body;
    EXPECT_FALSE(answer.field("x-request-id").empty()) << c.bytes;
    if (*c.field != '\0') {
      EXPECT_FALSE(answer.field(c.field).empty()) << c.bytes;
    }
  }
}

TEST_F(ApiTest, OverloadIsToldAtOnce) {
  test_.engine.set_full(true);
  const ClientResponse answer = test_.post(kCompletionsPath, R"({"prompt":"hi"})");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.field("retry-after"), "1");
  EXPECT_NE(answer.body.find(R"("code":"overloaded")"), std::string::npos);
  test_.engine.set_retry_after(17);  // also behind the body, where a priority may displace others
  const char* ranked = R"({"prompt":"hi","priority":-1})";
  EXPECT_EQ(test_.post(kCompletionsPath, ranked).field("retry-after"), "17");
  test_.engine.set_full(false);
  EXPECT_EQ(test_.post(kCompletionsPath, R"({"prompt":"hi"})").status, 200);
}

TEST_F(ApiTest, HealthFollowsTheEngine) {
  EXPECT_EQ(test_.get("/health").status, 200);
  test_.engine.set_stuck(true);
  EXPECT_EQ(test_.get("/health").status, 503);
  EXPECT_EQ(test_.get("/readyz").status, 503);
  EXPECT_EQ(test_.get("/livez").status, 200);
}

TEST_F(ApiTest, ModelsVersionInfo) {
  EXPECT_EQ(test_.get("/v1/models").body,
            R"({"object":"list","data":[{"id":"tiny","object":"model","created":1700000000,)"
            R"("owned_by":"rudder","root":"org/tiny","parent":null,"max_model_len":4096},)"
            R"({"id":"org/tiny-alias","object":"model","created":1700000000,"owned_by":"rudder",)"
            R"("root":"org/tiny","parent":null,"max_model_len":4096}]})");
  EXPECT_EQ(test_.get("/v1/models/org%2Ftiny-alias").status, 200);
  EXPECT_EQ(test_.get("/version").body, R"({"version":"1.2.3"})");
  const ClientResponse info = test_.get("/server_info");
  EXPECT_TRUE(parse_json(info.body, "info")) << info.body;
}

TEST_F(ApiTest, TokenizeAndBack) {
  EXPECT_EQ(test_.post("/tokenize", R"({"prompt":"hi"})").body,
            R"({"count":2,"max_model_len":4096,"tokens":[104,105],"token_strs":null})");
  EXPECT_EQ(test_.post("/tokenize", R"({"prompt":"a b","return_token_strs":true})").body,
            "{\"count\":3,\"max_model_len\":4096,\"tokens\":[97,32,98],"
            "\"token_strs\":[\"a\",\"\xC4\xA0\",\"b\"]}");
  const ClientResponse chat =
      test_.post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_NE(chat.body.find("\"tokens\":[256,117"), std::string::npos) << chat.body;
  EXPECT_EQ(test_.post("/detokenize", R"({"tokens":[104,105,256]})").body,
            R"({"prompt":"hi<|im_start|>"})");
}

TEST_F(ApiTest, TokenizeNamesWhatHasNoEffectOnTokens) {
  const ClientResponse steered = test_.post(
      "/tokenize",
      R"({"prompt":"hi","steering":[{"name":"mood"}],"capture":{},"add_special_tokens":false})");
  EXPECT_EQ(steered.status, 200) << steered.body;
  EXPECT_EQ(steered.field("x-rudder-ignored-fields"), "steering, capture");
  const ClientResponse back = test_.post("/detokenize", R"({"tokens":[104],"steering":[]})");
  EXPECT_EQ(back.field("x-rudder-ignored-fields"), "steering");
  EXPECT_EQ(test_.post("/tokenize", R"({"prompt":"hi"})").field("x-rudder-ignored-fields"), "");
  for (const char* path : {"/tokenize", "/detokenize"}) {
    const ClientResponse misplaced = test_.post(
        path, R"({"prompt":"hi","tokens":[104],"extra_body":{"steering":[{"name":"mood"}]}})");
    EXPECT_EQ(misplaced.status, 400) << path;
    EXPECT_NE(misplaced.body.find("extra_body"), std::string::npos) << misplaced.body;
  }
}

TEST_F(ApiTest, MetricsAreValidAndClosed) {
  test_.post(kCompletionsPath, R"({"prompt":"hi"})");
  for (int i = 0; i < 50; ++i) test_.get(fmt::format("/nope-{}", i));
  const ClientResponse answer = test_.get("/metrics");
  EXPECT_EQ(answer.field("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  const ExpositionCheck check = check_exposition(answer.body);
  EXPECT_EQ(check.problem, "");
  const auto sample = [&](const std::string& key) {
    const auto it = check.samples.find(key);
    EXPECT_NE(it, check.samples.end()) << key << "\n" << answer.body;
    return it == check.samples.end() ? -1.0 : it->second;
  };
  EXPECT_EQ(sample("rudder:kv_cache_usage_perc{model_name=\"tiny\",engine=\"0\"}"), 0.25);
  EXPECT_EQ(sample("rudder:time_to_first_token_seconds_bucket{model_name=\"tiny\",engine=\"0\",le="
                   "\"+Inf\"}"),
            10);
  EXPECT_EQ(sample("rudder:http_requests_total{model_name=\"tiny\",method=\"POST\",handler=\""
                   "/v1/completions\",status=\"2xx\"}"),
            1);
  EXPECT_EQ(sample("rudder:http_requests_total{model_name=\"tiny\",method=\"other\",handler="
                   "\"other\",status=\"4xx\"}"),
            50);
  const std::string spec = "rudder:spec_decode_num_";
  EXPECT_EQ(sample(spec + "draft_tokens_total{model_name=\"tiny\",engine=\"0\"}"), 9);
  EXPECT_EQ(
      sample(spec +
             "accepted_tokens_per_pos_total{model_name=\"tiny\",engine=\"0\",position=\"1\"}"),
      2);
  EXPECT_GT(sample("process_resident_memory_bytes"), 1e6);
  EXPECT_GT(sample("process_start_time_seconds"), 1.6e9);
  EXPECT_GT(sample("process_open_fds"), 3);
  sample(
      "rudder:cache_config_info{model_name=\"tiny\",engine=\"0\",block_size=\"16\",num_gpu_blocks="
      "\"100\"}");
}

TEST(Api, MetricsUnderAnotherName) {
  ServerSettings settings;
  settings.metrics_prefix = "vllm";
  TestServer test(echo_script, settings);
  EXPECT_NE(test.get("/metrics")
                .body.find("\nvllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 0\n"),
            std::string::npos);
}

TEST(Api, EveryRouteThatIsNotPublicWantsAKey) {
  ServerSettings settings;
  settings.api_key = {"first", "second"};
  TestServer test(echo_script, settings);
  struct Credential {
    const char* field;
    bool good;
  };
  const Credential credentials[] = {{"", false},
                                    {"Authorization: Bearer wrong\r\n", false},
                                    {"Authorization: Basic first\r\n", false},
                                    {"Authorization: Bearer first\r\n", true},
                                    {"Authorization: Bearer second\r\n", true},
                                    {"x-api-key: wrong\r\n", false},
                                    {"x-api-key: second\r\n", true}};
  const auto status_of = [&](std::string_view method, std::string path, const char* field) {
    TestClient client = test.client();
    client.send(
        fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}Content-Type: "
                    "application/json\r\nContent-Length: 2\r\n\r\n{{}}",
                    method, path, field));
    return client.receive(method).status;
  };
  for (const Route& route : routes()) {
    std::string path(route.path);
    if (const size_t at = path.find("{id}"); at != std::string::npos) path.replace(at, 4, "tiny");
    for (const Credential& credential : credentials) {
      const bool open = credential.good || route.access == Access::kPublic;
      EXPECT_EQ(status_of(route.method, path, credential.field) != 401, open)
          << route.method << " " << path << " with " << credential.field;
    }
    if (route.access == Access::kPublic) continue;
    // No spelling of a guarded path is a way around the key.
    for (const std::string& spelled :
         {"/" + path, path + "/", "/." + path, "/health/.." + path, path + ";x", path + "%20",
          "http://a" + path, "/%2e" + path, std::string("/HEALTH"), path + "?key=first"}) {
      EXPECT_EQ(status_of(route.method, spelled, ""), 401) << spelled;
    }
    EXPECT_EQ(status_of("HEAD", path, ""), 401) << path;
    EXPECT_EQ(status_of("PUT", path, ""), 401) << path;
  }
  // Tenants' prefixes are kept apart.
  test.post(kCompletionsPath, R"({"prompt":"a","cache_salt":"s"})",
            "Authorization: Bearer first\r\n");
  test.post(kCompletionsPath, R"({"prompt":"a","cache_salt":"s"})",
            "Authorization: Bearer second\r\n");
  const auto submitted = test.engine.submitted();
  ASSERT_EQ(submitted.size(), 2u);
  EXPECT_NE(submitted[0].cache_salt, submitted[1].cache_salt);
}

TEST(Api, CorsIsOffUntilOriginsAreNamed) {
  const std::string preflight =
      "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://ok\r\n"
      "Access-Control-Request-Method: POST\r\n\r\n";
  {
    TestServer test(echo_script);
    TestClient client = test.client();
    client.send(preflight);
    const ClientResponse answer = client.receive();
    EXPECT_EQ(answer.status, 204);
    EXPECT_EQ(answer.field("allow"), "POST, OPTIONS");
    EXPECT_EQ(answer.field("access-control-allow-origin"), "");
  }
  ServerSettings settings;
  settings.allowed_origins = {"https://ok"};
  TestServer test(echo_script, settings);
  TestClient client = test.client();
  client.send(preflight);
  const ClientResponse answer = client.receive();
  EXPECT_EQ(answer.field("access-control-allow-origin"), "https://ok");
  EXPECT_EQ(answer.field("access-control-allow-methods"), "POST, OPTIONS");
  EXPECT_EQ(test.get("/health", "Origin: https://ok\r\n").field("access-control-allow-origin"),
            "https://ok");
  EXPECT_EQ(test.get("/health", "Origin: https://no\r\n").field("access-control-allow-origin"), "");
}

}  // namespace
}  // namespace rudder::server
