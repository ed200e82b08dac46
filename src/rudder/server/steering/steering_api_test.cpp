// Steering and capture over real sockets: what reaches the engine, what is refused and how, modules
// and global steering, results and events of captures.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "rudder/base/json.h"
#include "rudder/server/http/route_table.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kModules = "/v1/steering/modules";

tap::Geometry geometry() {
  constexpr uint16_t kInner = tap::dense_sites_but(tap::Site::kFinalNorm);
  return {.num_layers = 4,
          .hidden = 4,
          .mlp_width = {8, 8, 8, 8},
          .heads = {{2, 2}, {2, 2}, {2, 2}, {2, 2}},
          .sites = {kInner, kInner, kInner, tap::kDenseSites},
          .dtype = tensor::DType::kF32};
}

tap::Limits limits() {
  return {.num_rows = 4,
          .num_ops = 64,
          .num_floats = 1024,
          .num_capture_sets = 4,
          .capture_elements = 1024};
}

steer::Model steer_model() {
  steer::Model model;
  model.geometry = geometry();
  model.limits = limits();
  model.hash_secret = {1, 2};
  return model;
}

// Three tokens, the last of them with what the script says of captures.
Script captured_script(const engine::RequestParams& params) {
  Script script = say({"a", "b", "c"}, engine::FinishReason::kLength);
  if (params.capture.value == 0) return script;
  engine::Event values;
  steer::capture::CapturedValues norms;
  norms.positions = {7};
  norms.norms = {{"resid_post.1", {2.5F}}};
  values.captures.push_back({"response", 0, 7, norms});
  script.events.insert(script.events.begin() + 1, values);
  steer::capture::ConsumerResult result;
  result.consumer = "response";
  result.values.emplace();
  result.values->positions = {7};
  script.events.back().capture_results = {result};
  return script;
}

class SteeringApiTest : public ::testing::Test {
 protected:
  explicit SteeringApiTest(ServerSettings settings = {}) : engine_(captured_script) {
    steer::capture::Dispatcher::Parts parts;
    parts.geometry = geometry();
    parts.limits = limits();
    auto captures = steer::capture::Dispatcher::create(std::move(parts), {});
    EXPECT_TRUE(captures) << captures.error().to_string();
    engine_.set_taps(geometry(), limits(), std::move(*captures));
    settings.port = 0;
    auto server = Server::start(
        {.engine = &engine_, .model = byte_model(), .steering = &library_, .version = "1.2.3"},
        settings);
    EXPECT_TRUE(server) << server.error().to_string();
    server_ = std::move(*server);
  }

  ClientResponse send(std::string_view bytes, std::string_view method) {
    TestClient client(server_->port());
    client.send(bytes);
    return client.receive(method);
  }
  ClientResponse post(std::string_view path, std::string_view body, std::string_view more = "") {
    return send(post_bytes(path, body, more), "POST");
  }
  ClientResponse call(std::string_view method, std::string_view path) {
    return send(fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n\r\n", method, path), method);
  }
  // The engine's parameters for a completion of "hi there" with these fields.
  engine::RequestParams submitted_with(std::string_view fields) {
    const size_t before = engine_.submitted().size();
    const ClientResponse answer =
        post(kCompletionsPath, fmt::format(R"({{"prompt":"hi there",{}}})", fields));
    EXPECT_EQ(answer.status, 200) << answer.body;
    const auto submitted = engine_.submitted();
    return submitted.size() > before ? submitted.back() : engine::RequestParams();
  }
  // What the engine got for these fields; null: neither steering nor capture.
  std::shared_ptr<const tap::SequenceTaps> taps_with(std::string_view fields) {
    submitted_with(fields);
    return engine_.submitted_taps().back().sequence;
  }
  static json::object error_of(const ClientResponse& answer) {
    return parse_json(answer.body, "answer")->at("error").as_object();
  }
  static json::value document(const ClientResponse& answer) {
    return *parse_json(answer.body, "answer");
  }

  ScriptedEngine engine_;
  steer::Library library_{steer_model(), nullptr};
  std::unique_ptr<Server> server_;
};

constexpr std::string_view kAdd =
    R"({"op":"add","site":"resid_post","layers":[1],"vector":[1,2,3,4]})";

TEST_F(SteeringApiTest, FieldsBecomeTheEnginesTaps) {
  EXPECT_EQ(taps_with(R"("max_tokens":3)"), nullptr);
  EXPECT_EQ(taps_with(R"("steering":[],"steering_vectors":null)"), nullptr);
  const auto general = taps_with(fmt::format(R"("steering":{})", kAdd));
  const auto tiers = taps_with(R"("steering_vectors":{"resid_post":{"1":[1,2,3,4]}})");
  ASSERT_TRUE(general && tiers);
  ASSERT_EQ(general->segments.size(), 1u);
  ASSERT_NE(general->segments[0].program, nullptr);
  EXPECT_EQ(general->segments[0].program->ops.size(), 1u);
  EXPECT_EQ(general->segments[0].content, tiers->segments[0].content);

  const auto decode = taps_with(R"("decode_steering_vectors":{"resid_post":{"1":[1,2,3,4]}})");
  ASSERT_EQ(decode->segments.size(), 2u);
  EXPECT_EQ(decode->segments[0].program, nullptr);
  EXPECT_EQ(decode->segments[1].begin, 8);
  EXPECT_EQ(decode->segments[1].content, general->segments[0].content);
  EXPECT_EQ(decode->segments[1].program, general->segments[0].program);  // kept once
}

TEST_F(SteeringApiTest, RolesAreThoseOfAChat) {
  const std::string field = R"("steering":{"op":"add","site":"resid_post","layers":[1],)"
                            R"("vector":[1,2,3,4],"select":{"roles":["user"]}})";
  const ClientResponse answer =
      post(kChatPath, fmt::format(R"({{"messages":[{{"role":"system","content":"be"}},)"
                                  R"({{"role":"user","content":"hello"}}],{}}})",
                                  field));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const engine::RequestParams params = engine_.submitted().back();
  const auto taps = engine_.submitted_taps().back().sequence;
  ASSERT_NE(taps, nullptr);
  std::string steered;
  for (size_t i = 0; i < params.prompt.size(); ++i) {
    const tap::TapSegment* at = nullptr;
    for (const auto& segment : taps->segments) {
      if (std::cmp_less_equal(segment.begin, i)) at = &segment;
    }
    if (at->program != nullptr) steered.push_back(static_cast<char>(params.prompt[i]));
  }
  EXPECT_EQ(steered, "hello");

  const ClientResponse refused =
      post(kCompletionsPath, fmt::format(R"({{"prompt":"a",{}}})", field));
  EXPECT_EQ(refused.status, 400);
  EXPECT_TRUE(error_of(refused).at("param").as_string().starts_with("steering")) << refused.body;
}

class ThoughtRolesTest : public SteeringApiTest {
 protected:
  static ServerSettings with_reasoning() {
    ServerSettings settings;
    settings.reasoning_parser = "qwen3";
    return settings;
  }
  ThoughtRolesTest() : SteeringApiTest(with_reasoning()) {}
};

// This model's tokens are bytes: no mark is one token.
TEST_F(ThoughtRolesTest, MarksOfSeveralTokensAreRefusedWhereTheyMatter) {
  const auto ask = [&](std::string_view roles) {
    return post(kChatPath,
                fmt::format(R"({{"messages":[{{"role":"user","content":"hello"}}],"steering":)"
                            R"({{"op":"add","site":"resid_post","layers":[1],)"
                            R"("vector":[1,2,3,4],"select":{{"roles":{}}}}}}})",
                            roles));
  };
  for (const std::string_view roles : {R"(["reasoning"])", R"(["assistant","user"])"}) {
    const ClientResponse refused = ask(roles);
    EXPECT_EQ(refused.status, 400) << roles;
    EXPECT_TRUE(error_of(refused).at("param").as_string().starts_with("steering"));
    EXPECT_NE(error_of(refused).at("message").as_string().find("<think>"), std::string::npos);
  }
  for (const std::string_view roles : {R"(["user"])", R"(["assistant","reasoning"])"}) {
    const ClientResponse taken = ask(roles);
    EXPECT_EQ(taken.status, 200) << taken.body;
    EXPECT_FALSE(engine_.submitted().back().taps.thoughts);
  }
}

TEST_F(SteeringApiTest, BadFieldsAreNamed) {
  struct Case {
    std::string fields;
    int status;
    std::string_view param;
  };
  const Case cases[] = {
      {R"("steering":{"op":"add","site":"resid_post","layers":[1],"vector":[1,2,3]})", 400,
       "steering.vector"},
      {R"("steering":[{"name":"nobody"}])", 404, "steering[0].name"},
      {R"("steering_name":"nobody")", 404, "steering_name"},
      {R"("steering_vectors":{"resid_post":{"4":[1,2,3,4]}})", 400, "steering_vectors.resid_post"},
      {R"("capture":{"nobody":{"sites":{"resid_post":[1]}}})", 400, "capture.nobody"},
      {R"("capture":{"response":{"sites":{"resid_post":[9]}}})", 400,
       "capture.response.sites.resid_post"},
      {R"("capture_wait":1)", 400, "capture_wait"},
      // More programs than the table has rows.
      {R"("steering":[{"op":"add","site":"resid_post","layers":[1],"vector":[1,2,3,4],)"
       R"("select":{"prompt":[[0,1]]}},{"op":"add","site":"resid_post","layers":[1],)"
       R"("vector":[2,2,3,4],"select":{"prompt":[[1,2]]}},{"op":"add","site":"resid_post",)"
       R"("layers":[1],"vector":[3,2,3,4],"select":{"prompt":[[2,3]]}},{"op":"add",)"
       R"("site":"resid_post","layers":[1],"vector":[4,2,3,4],"select":{"prompt":[[3,4]]}}])",
       400, "steering"},
  };
  for (const Case& c : cases) {
    const ClientResponse answer =
        post(kCompletionsPath, fmt::format(R"({{"prompt":"hi there",{}}})", c.fields));
    EXPECT_EQ(answer.status, c.status) << c.fields << answer.body;
    if (answer.status == 200) continue;
    EXPECT_TRUE(error_of(answer).at("param").as_string().starts_with(c.param)) << answer.body;
  }
  EXPECT_TRUE(engine_.submitted().empty());
}

TEST_F(SteeringApiTest, ModulesAreRegisteredListedReplacedAndRemoved) {
  const std::string module = R"({"name":"calm","steering_vectors":{"resid_post":{"1":[1,2,3,4]}}})";
  const std::string other = R"({"name":"calm","vectors":{"resid_post":{"1":[4,3,2,1]}}})";
  ClientResponse answer = post(kModules, module);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(document(answer).at("name").as_string(), "calm");
  const auto named = taps_with(R"("steering":{"name":"calm"})");
  EXPECT_EQ(named->segments.at(0).content,
            taps_with(fmt::format(R"("steering":{})", kAdd))->segments.at(0).content);

  answer = post(kModules, other);
  EXPECT_EQ(answer.status, 409) << answer.body;
  EXPECT_EQ(error_of(answer).at("code").as_string(), "conflict");
  answer = post("/v1/steering/modules/register",
                other.substr(0, other.size() - 1) + R"(,"replace":true})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_NE(taps_with(R"("steering_name":"calm")")->segments.at(0).content,
            named->segments.at(0).content);

  answer = call("GET", kModules);
  EXPECT_EQ(document(answer).at("count").as_int64(), 1);
  EXPECT_EQ(document(answer).at("modules").as_array().at(0).at("name").as_string(), "calm");
  EXPECT_EQ(post(kModules, R"({"vectors":{}})").status, 400);
  EXPECT_EQ(post(kModules, "[]").status, 400);
  EXPECT_EQ(call("DELETE", "/v1/steering/modules/calm").status, 200);
  EXPECT_EQ(call("DELETE", "/v1/steering/modules/calm").status, 404);
  const ClientResponse idle = post(kModules, R"({"name":"a","steering":[]})");
  EXPECT_EQ(idle.status, 400);
  EXPECT_NE(idle.body.find(R"("param":"steering")"), std::string::npos) << idle.body;
  const ClientResponse quoted = call("DELETE", "/v1/steering/modules/%ff");
  EXPECT_EQ(quoted.status, 404);
  EXPECT_NE(quoted.body.find("'\xef\xbf\xbd'"), std::string::npos) << quoted.body;
  EXPECT_EQ(post("/v1/steering/modules/unregister", R"({"name":"calm"})").status, 404);
  answer = post("/v1/steering/modules/unregister", "{}");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(error_of(answer).at("param").as_string(), "name");
}

TEST_F(SteeringApiTest, DictionariesAreRegisteredListedReplacedAndRemoved) {
  constexpr std::string_view kDictionaries = "/v1/steering/dictionaries";
  constexpr std::string_view kSmall = R"({"name":"d","path":"small"})";
  EXPECT_NE(post(kDictionaries, kSmall).body.find("--dictionary-root"), std::string::npos);
  ASSERT_TRUE(
      library_.allow_dictionaries_below(std::string(RUDDER_SOURCE_DIR) + "/tests/dictionaries"));
  const ClientResponse answer = post(kDictionaries, kSmall);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(document(answer).at("layers").at(0).at("read").as_string(), "resid_post.1");
  EXPECT_EQ(post(kDictionaries, kSmall).status, 409);
  EXPECT_EQ(post(kDictionaries, R"({"name":"d","path":"small","replace":true})").status, 200);
  EXPECT_EQ(document(call("GET", kDictionaries)).at("count").as_int64(), 1);

  const auto steered = submitted_with(
      R"("steering":{"op":"feature","dictionary":"d","feature":1,"kind":"add","value":1})");
  const auto plain = submitted_with(fmt::format(R"("steering":{})", kAdd));
  ASSERT_FALSE(steered.taps.segments.empty());
  EXPECT_EQ(steered.taps.segments, plain.taps.segments);

  const std::pair<std::string_view, std::string_view> wrong[] = {
      {R"({"name":"e"})", "path"},
      {R"({"path":"small"})", "name"},
      {R"({"name":"a b","path":"small"})", "name"},
      {R"({"name":"e","path":"/etc"})", "path"},
      {R"({"name":"e","path":"../small"})", "path"},
      {R"({"name":"e","path":"small/../../x"})", "path"},
      {R"({"name":"e","path":"absent"})", "path"},
      {R"({"name":"e","path":""})", "path"},
      {R"({"name":"e","path":"small","site":"resid_post.2"})", "path"},
      {R"({"name":"e","path":"small","site":"resid_post"})", "site"},
      {R"({"name":"e","path":"small","replace":1})", "replace"},
      {R"({"name":"e","path":"small","what":1})", "what"}};
  for (const auto& [body, field] : wrong) {
    const ClientResponse refused = post(kDictionaries, body);
    EXPECT_EQ(refused.status, 400) << body << refused.body;
    EXPECT_EQ(document(refused).at("error").at("param").as_string(), json::string_view(field))
        << body << refused.body;
  }
  EXPECT_EQ(call("DELETE", fmt::format("{}/d", kDictionaries)).status, 200);
  EXPECT_EQ(call("DELETE", fmt::format("{}/d", kDictionaries)).status, 404);
}

TEST_F(SteeringApiTest, GlobalSteeringIsOfEveryRequest) {
  ClientResponse answer = post("/v1/steering/set", R"({"vectors":{"resid_post":{"1":[1,2,3,4]}}})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(json::serialize(document(answer)),
            R"({"status":"ok","hook_points":["resid_post"],"layers_updated":[1]})");
  EXPECT_NE(taps_with(R"("max_tokens":3)"), nullptr);
  answer = call("GET", "/v1/steering");
  EXPECT_FALSE(document(answer).at("global").as_array().empty());
  EXPECT_TRUE(document(answer).at("rows").is_object());
  EXPECT_EQ(post("/v1/steering/set", R"({"vectors":{"resid_post":{"7":[1,2,3,4]}}})").status, 400);
  EXPECT_EQ(post("/v1/steering/clear", "{}").status, 200);
  EXPECT_EQ(taps_with(R"("max_tokens":3)"), nullptr);
}

TEST_F(SteeringApiTest, ResultsOfCapturesAreBesideOneChoiceAndInEachOfSeveral) {
  const std::string capture = R"("capture":{"response":{"sites":{"resid_post":[1]}}})";
  const std::string expected =
      R"({"response":{"status":"ok","error":null,"payload":{"positions":[7]}}})";
  const engine::RequestParams params = submitted_with(capture);
  const engine::ResolvedTaps taps = engine_.submitted_taps().back();
  ASSERT_NE(taps.capture, nullptr);
  EXPECT_EQ(taps.capture->id, params.capture);
  EXPECT_EQ(taps.sequence->capture, taps.capture->set);
  EXPECT_FALSE(params.capture_delivery.events);
  EXPECT_TRUE(params.capture_delivery.results);
  EXPECT_TRUE(params.client_id.starts_with("cmpl-"));

  ClientResponse answer = post(kCompletionsPath, R"({"prompt":"a",)" + capture + "}");
  EXPECT_EQ(json::serialize(document(answer).at("capture_results")), expected);
  answer = post(kChatPath, R"({"messages":[{"role":"user","content":"a"}],)" + capture + "}");
  EXPECT_EQ(json::serialize(document(answer).at("capture_results")), expected);
  answer = post(kCompletionsPath, R"({"prompt":["a","b"],)" + capture + "}");
  const json::value several = document(answer);
  EXPECT_FALSE(several.as_object().contains("capture_results"));
  for (const json::value& choice : several.at("choices").as_array()) {
    EXPECT_EQ(json::serialize(choice.at("capture_results")), expected);
  }
  const auto submitted = engine_.submitted();
  EXPECT_NE(submitted[submitted.size() - 1].client_id, submitted[submitted.size() - 2].client_id);
}

TEST_F(SteeringApiTest, AStreamHasAnEventForEachCapturedToken) {
  for (const auto& [path, prompt] :
       {std::pair(kCompletionsPath, R"("prompt":"a")"),
        std::pair(kChatPath, R"("messages":[{"role":"user","content":"a"}])")}) {
    const ClientResponse answer =
        post(path, fmt::format(R"({{{},"stream":true,"capture":{{"response":{{"sites":)"
                               R"({{"resid_post":[1]}}}}}}}})",
                               prompt));
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_TRUE(engine_.submitted().back().capture_delivery.events);
    size_t num_captures = 0, num_results = 0;
    for (size_t at = answer.body.find("data: {"); at != std::string::npos;
         at = answer.body.find("data: {", at + 1)) {
      const size_t end = answer.body.find("\n\n", at);
      const auto event = parse_json(answer.body.substr(at + 6, end - at - 6), "event");
      ASSERT_TRUE(event) << answer.body;
      if (const json::value* capture = event->as_object().if_contains("capture")) {
        ++num_captures;
        EXPECT_TRUE(event->at("choices").as_array().empty());
        EXPECT_EQ(json::serialize(*capture),
                  R"({"consumer":"response","choice":0,"position":7,)"
                  R"("values":{"position":7,"norms":{"resid_post.1":2.5E0}}})");
      }
      if (event->as_object().contains("capture_results")) {
        ++num_results;
        EXPECT_FALSE(event->at("choices").as_array().at(0).at("finish_reason").is_null());
      }
    }
    EXPECT_EQ(num_captures, 1u);
    EXPECT_EQ(num_results, 1u);
  }
}

// Every route is in it, and every reference leads somewhere.
TEST_F(SteeringApiTest, TheOpenApiDocumentIsWhole) {
  const ClientResponse answer = call("GET", "/openapi.json");
  const json::value openapi = document(answer);
  for (const Route& route : routes()) {
    std::string method(route.method);
    for (char& ch : method) ch = static_cast<char>(ch | 0x20);
    const json::object& path = openapi.at("paths").at(std::string(route.path)).as_object();
    ASSERT_TRUE(path.contains(method)) << route.path;
    EXPECT_TRUE(path.at(method).as_object().contains("summary"))
        << route.path << " is not described";
  }
  const json::object& schemas = openapi.at("components").at("schemas").as_object();
  constexpr std::string_view kStart = R"("$ref":"#/components/schemas/)";
  size_t num_references = 0;
  for (size_t at = answer.body.find(kStart); at != std::string::npos;
       at = answer.body.find(kStart, at + 1), ++num_references) {
    const size_t begin = at + kStart.size();
    const std::string name = answer.body.substr(begin, answer.body.find('"', begin) - begin);
    EXPECT_TRUE(schemas.contains(name)) << name;
  }
  EXPECT_GT(num_references, 20u);
  const json::object& examples = openapi.at("paths")
                                     .at("/v1/completions")
                                     .at("post")
                                     .at("requestBody")
                                     .at("content")
                                     .at("application/json")
                                     .at("examples")
                                     .as_object();
  EXPECT_GT(examples.size(), 12u);
}

TEST_F(SteeringApiTest, MetricsCountRowsAndCaptures) {
  const ClientResponse answer = call("GET", "/metrics");
  for (const char* name : {"rudder:steering_rows{", "rudder:steering_uploads_total{",
                           "rudder:capture_tokens_total{", "rudder:capture_rows_total{"}) {
    EXPECT_NE(answer.body.find(name), std::string::npos) << name;
  }
}

class SteeringAdminTest : public SteeringApiTest {
 protected:
  SteeringAdminTest() : SteeringApiTest(settings()) {}
  static ServerSettings settings() {
    ServerSettings settings;
    settings.api_key = {"user"};
    settings.steering_api_key = {"admin"};
    return settings;
  }
};

TEST_F(SteeringAdminTest, ChangesWantTheAdminKey) {
  const std::string user = "Authorization: Bearer user\r\n",
                    admin = "Authorization: Bearer admin\r\n";
  for (const std::string_view path :
       {"/v1/steering/clear", "/v1/steering/set", "/v1/steering/modules",
        "/v1/steering/modules/register", "/v1/steering/modules/unregister"}) {
    EXPECT_EQ(post(path, "{}").status, 401) << path;
    EXPECT_EQ(post(path, "{}", user).status, 401) << path;
    EXPECT_NE(post(path, "{}", admin).status, 401) << path;
  }
  EXPECT_EQ(post(kCompletionsPath, R"({"prompt":"a"})", admin).status, 401);
  EXPECT_EQ(post(kCompletionsPath, R"({"prompt":"a"})", user).status, 200);
}

}  // namespace
}  // namespace rudder::server
