// How large answers may be beside their requests: what is computed is charged before it is, what
// repeats the request is bounded by it, and what is refused for its size is not made first.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/server/generation/answer_format.h"
#include "rudder/server/http/amplification.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

constexpr int32_t kHidden = 4096;
constexpr std::string_view kEmbeddings = "/v1/embeddings";
constexpr std::string_view kResponsesPath = "/v1/responses";

tap::Geometry wide_geometry() {
  constexpr uint16_t kInner = tap::dense_sites_but(tap::Site::kFinalNorm);
  return {.num_layers = 2,
          .hidden = kHidden,
          .mlp_width = {8, 8},
          .heads = {{2, 2}, {2, 2}},
          .sites = {kInner, tap::kDenseSites},
          .dtype = tensor::DType::kF32};
}

tap::Limits wide_limits() {
  return {.num_rows = 4,
          .num_ops = 64,
          .num_floats = 4 * kHidden,
          .num_capture_sets = 4,
          .capture_elements = 2 * kHidden};
}

// What the consumer `response` says of one input.
steer::capture::CaptureResults pooled(const std::vector<float>& row) {
  steer::capture::ResultRows mean;
  mean.key = "final_norm";
  mean.layers = {1};
  mean.width = static_cast<int32_t>(row.size());
  mean.data.resize(row.size() * sizeof(float));
  std::memcpy(mean.data.data(), row.data(), mean.data.size());
  steer::capture::ConsumerResult result;
  result.consumer = "response";
  result.values.emplace();
  result.values->means.push_back(std::move(mean));
  return {result};
}

// An engine that embeds, and a server on it.
struct EmbeddingServer {
  explicit EmbeddingServer(ServerSettings settings)
      : engine([this](const engine::RequestParams&) {
          Script script = say({"a"});
          script.hold = is_held;
          script.events.back().capture_results = pooled(std::vector<float>(kHidden, 0.1234567F));
          return script;
        }) {
    steer::capture::Dispatcher::Parts parts;
    parts.geometry = wide_geometry();
    parts.limits = wide_limits();
    auto captures = steer::capture::Dispatcher::create(std::move(parts), {});
    EXPECT_TRUE(captures) << captures.error().to_string();
    engine.set_taps(wide_geometry(), wide_limits(), std::move(*captures));
    settings.port = 0;
    auto started = Server::start(
        {.engine = &engine, .model = byte_model({std::string(200, 'x')}), .version = "1.2.3"},
        settings);
    EXPECT_TRUE(started) << started.error().to_string();
    server = std::move(*started);
  }

  ClientResponse post(std::string_view path, std::string_view body) const {
    TestClient client(server->port());
    client.send(post_bytes(path, body));
    return client.receive();
  }

  std::atomic<bool> is_held = false;
  ScriptedEngine engine;
  std::unique_ptr<Server> server;
};

TEST(Amplification, EmbeddingsThatFitNoAnswerAreRefusedBeforeTheyAreComputed) {
  ServerSettings settings;
  settings.max_answer_bytes = 100'000;
  const EmbeddingServer test(settings);
  const ClientResponse fits = test.post(kEmbeddings, R"({"input":"a"})");
  EXPECT_EQ(fits.status, 200) << fits.body;
  EXPECT_GT(fits.body.size(), size_t{kHidden} * 8) << "4,096 numbers for one letter";
  const ClientResponse refused = test.post(kEmbeddings, R"({"input":["a","b"]})");
  EXPECT_EQ(refused.status, 400) << refused.body;
  EXPECT_NE(refused.body.find(R"("param":"input")"), std::string::npos) << refused.body;
  EXPECT_EQ(test.engine.submitted().size(), 1u) << "nothing was computed for it";
  for (const std::string_view smaller : {R"({"input":["a","b"],"encoding_format":"base64"})",
                                         R"({"input":["a","b"],"dimensions":9})"})
    EXPECT_EQ(test.post(kEmbeddings, smaller).status, 200) << smaller;
}

TEST(Amplification, EmbeddingsOfAllClientsAreChargedBeforeTheyAreComputed) {
  constexpr size_t kFit = 13;  // vectors of 78 kB in 1 MiB
  ServerSettings settings;
  settings.max_buffered_output = 1 << 20;
  settings.response_store_bytes = 0;
  EmbeddingServer test(settings);
  test.is_held = true;
  std::vector<TestClient> clients;
  for (size_t i = 0; i < kFit; ++i) {
    clients.emplace_back(test.server->port());
    clients.back().send(post_bytes(kEmbeddings, R"({"input":"a"})"));
    ASSERT_TRUE(eventually([&] { return test.engine.num_active() == i + 1; })) << i;
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(test.post(kEmbeddings, R"({"input":"a"})").status, 503) << "at once";
  }
  EXPECT_EQ(test.engine.submitted().size(), kFit);
  test.is_held = false;
  test.engine.release();
  for (TestClient& client : clients) EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(test.post(kEmbeddings, R"({"input":"a"})").status, 200) << "given back";
}

// The longest spellings: of any magnitude, below 0, with all digits.
std::vector<float> long_numbers() {
  std::mt19937 random(1);
  std::vector<float> row;
  for (int exponent = -45; exponent < 39; ++exponent) {
    for (int i = 0; i < 40; ++i) {
      const double digits = 1 + std::uniform_real_distribution<double>(0, 9)(random);
      row.push_back(static_cast<float>(-digits * std::pow(10.0, exponent)));
      if (!std::isfinite(row.back())) row.back() = std::numeric_limits<float>::lowest();
    }
  }
  return row;
}

TEST(Amplification, AVectorTakesNoMoreThanItWasChargedFor) {
  const std::vector<float> row = long_numbers();
  for (const bool as_base64 : {false, true}) {
    AnswerOptions options;
    options.api = Api::kEmbeddings;
    options.num_choices = 3;
    options.embedding = {.as_base64 = as_base64,
                         .normalised = false,
                         .dimensions = static_cast<int32_t>(row.size())};
    const auto format = AnswerFormat::create(options, byte_model().tokenizer);
    const Result<std::string> kept = format->keep_captures(pooled(row));
    ASSERT_TRUE(kept) << kept.error().to_string();
    std::vector<ChoicePiece> choices(3);
    for (int32_t i = 0; i < 3; ++i) {
      choices[static_cast<size_t>(i)].index = i;
      choices[static_cast<size_t>(i)].capture_results = *kept;
    }
    const auto bytes = std::ssize(format->document(choices, {}));
    constexpr int64_t kAround = 200;  // id, model, usage
    EXPECT_LE(bytes, format->computed_bytes() + kAround);
    EXPECT_GT(bytes, format->computed_bytes() / 3) << "nor much less";
  }
}

TEST(Amplification, AResponseRepeatsItsRequestThreeTimesAtMost) {
  TestServer test([](const engine::RequestParams&) { return say({"a", "b"}); });
  // Of every form that is repeated; none of it is part of the prompt.
  const std::string large(200'000, 's');
  const std::string schema = fmt::format(
      R"("text":{{"format":{{"type":"json_schema","name":"x","schema":{{"description":"{}","type":"string"}}}}}})",
      large);
  const std::string tools = fmt::format(
      R"("tool_choice":"none","tools":[{{"type":"function","name":"f","parameters":{{"description":"{}","type":"object"}}}}])",
      large);
  const std::string metadata = fmt::format(R"("metadata":{{"k":"{}"}})", large);
  for (const std::string& field : {schema, tools, metadata}) {
    for (const bool stream : {false, true}) {
      const std::string body = fmt::format(R"({{"input":"a",{},"stream":{}}})", field, stream);
      const ClientResponse answer = test.post(kResponsesPath, body);
      ASSERT_EQ(answer.status, 200) << answer.body.substr(0, 300);
      EXPECT_TRUE(answer.complete) << field.substr(0, 40);
      EXPECT_GT(answer.body.size(), large.size()) << "it is repeated";
      EXPECT_LT(answer.body.size(), (stream ? 3 : 1) * body.size() + 10'000);
      EXPECT_LE(std::ssize(answer.body), largest_answer_to(std::ssize(body)));
    }
  }
}

// What a stream says at once is no sign of a slow reader, however much it is.
TEST(Amplification, WhatIsRepeatedAtOnceDoesNotMakeAReaderSlow) {
  const std::string large(900'000, 'l');
  TestServer test(
      [&](const engine::RequestParams& params) {
        return say({params.prompt.size() > 100 ? "a" : large, "b"});
      },
      {}, 2'000'000);
  for (const std::string& body :
       {fmt::format(R"({{"input":"a","stream":true,"metadata":{{"k":"{}"}}}})", large),
        std::string(R"({"input":"a","stream":true})")}) {
    const ClientResponse answer = test.post(kResponsesPath, body);
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.complete);
    EXPECT_NE(answer.body.find("event: response.completed"), std::string::npos)
        << "cut behind " << answer.body.size() << " bytes";
  }
  const std::string prompt(1'200'000, 'p');
  const ClientResponse echo = test.post(
      kCompletionsPath,
      fmt::format(R"({{"prompt":"{}","echo":true,"stream":true,"n":3,"max_tokens":4}})", prompt));
  EXPECT_EQ(echo.status, 200) << echo.body.substr(0, 200);
  EXPECT_TRUE(echo.body.ends_with("data: [DONE]\n\n")) << "cut behind " << echo.body.size();
}

TEST(Amplification, WhatIsRefusedForItsSizeIsNotMadeFirst) {
  ServerSettings settings;
  settings.max_prompts = 1024;
  const EmbeddingServer test(settings);
  std::string prompts = "\"a\"";
  for (int i = 1; i < 1024; ++i) prompts += ",\"a\"";
  const std::string body =
      fmt::format(R"({{"prompt":[{}],"stop":["{}"]}})", prompts, std::string(900, 's'));
  const ClientResponse rendered = test.post("/v1/completions/render", body);
  ASSERT_EQ(rendered.status, 400) << rendered.body.substr(0, 200);
  constexpr std::string_view kBefore = "would have ";
  const size_t number = rendered.body.find(kBefore);
  ASSERT_NE(number, std::string::npos) << rendered.body;
  EXPECT_LT(std::stoll(rendered.body.substr(number + kBefore.size())),
            largest_answer_to(std::ssize(body)) + 3000)
      << "1.4 MB were not made";
  // Each id is 4 bytes and names a token of 200.
  std::string ids = "258";
  for (int i = 1; i < 20'000; ++i) ids += ",258";
  const ClientResponse text = test.post("/detokenize", fmt::format(R"({{"tokens":[{}]}})", ids));
  EXPECT_EQ(text.status, 400) << text.body.substr(0, 200);
  EXPECT_NE(text.body.find("are 4000000 bytes of text"), std::string::npos) << text.body;
  EXPECT_NE(text.body.find(R"("param":"tokens")"), std::string::npos) << text.body;
}

}  // namespace
}  // namespace rudder::server
