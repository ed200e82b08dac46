// Requests over HTTP to tiny models whose residual has several streams: the server, its engine and
// its executor, with no part scripted. No config.json leads to such a model, so that the binary
// cannot serve one.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <vector>

#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/base/json.h"
#include "rudder/engine/engine.h"
#include "rudder/exec/head_lens.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::metamorphic {
namespace {

namespace json = boost::json;
using testing::TinyArch;

constexpr int32_t kVocab = 258;  // bytes, and the two marks of byte_model()

class StreamsRequest : public ::testing::TestWithParam<TinyArch> {
 protected:
  StreamsRequest() {
    exec::DeviceExecutor::Model model;
    model.ops = backends().back().make();
    model.spec = testing::tiny_spec(GetParam());
    model.spec.vocab = kVocab;
    model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
    step::Capacity capacity = with_taps(kRoomy, GetParam());
    capacity.vocab_size = kVocab;
    steer::capture::Dispatcher::Parts captures;
    captures.geometry = capacity.geometry;
    captures.limits = capacity.taps;
    captures.lens = value_of(exec::HeadLens::make(
        model.ops->reader_ops()->make_reader(), model.spec,
        {model.weights.final_norm, {model.weights.head}, model.weights.layers.back().residual}));
    hidden_ = model.spec.hidden;
    num_streams_ = capacity.geometry.residual.streams;
    server::ServerModel served = server::byte_model();
    engine::Engine::Parts parts;
    parts.executor = value_of(start_executor(std::move(model), capacity));
    parts.tokenizer = served.tokenizer;
    parts.clock = std::make_shared<SteadyClock>();
    parts.model_identity = "streams";
    parts.eos_ids = {kVocab - 1};
    parts.captures = value_of(steer::capture::Dispatcher::create(std::move(captures), {}));
    engine_ = value_of(engine::Engine::start(std::move(parts), {}));
    steer::Model steered;
    steered.geometry = capacity.geometry;
    steered.limits = capacity.taps;
    steered.hash_secret = {1, 2};
    library_ = std::make_unique<steer::Library>(std::move(steered), nullptr);
    server::ServerSettings settings;
    settings.port = 0;
    server_ = value_of(server::Server::start(
        {.engine = engine_.get(), .model = std::move(served), .steering = library_.get()},
        settings));
  }

  server::ClientResponse post(const std::string& fields) {
    server::TestClient client(server_->port());
    client.send(server::post_bytes(
        server::kCompletionsPath,
        fmt::format(R"({{"prompt": "Once upon", "max_tokens": 1, "temperature": 0, "logprobs": 0,
                        {}}})",
                    fields)));
    return client.receive("POST");
  }
  json::value answer_to(const std::string& fields) {
    const server::ClientResponse response = post(fields);
    EXPECT_EQ(response.status, 200) << response.body;
    return value_of(parse_json(response.body, "answer"));
  }
  static json::value payload_of(const json::value& answer) {
    return answer.at("capture_results").at("response").at("payload");
  }

  // The model's width, this number in front.
  std::string vector_of(double first) const {
    std::vector<double> values(static_cast<size_t>(hidden_));
    values[0] = first;
    return fmt::format("[{}]", fmt::join(values, ","));
  }
  // The first number of a stream at the end of a layer, of each token of the prompt.
  std::vector<double> first_numbers(int32_t layer, int32_t stream, const std::string& steering) {
    const json::value payload = payload_of(answer_to(fmt::format(
        R"({}"capture": {{"response": {{"sites": {{"resid_post": [{}]}}, "positions": "all_prompt",
            "point": "post", "stream": {}, "probes": {{"first": {}}}}}}})",
        steering, layer, stream, vector_of(1))));
    std::vector<double> numbers;
    const auto& told =
        payload.at("probes").at("first").at(fmt::format("resid_post.{}", layer)).as_array();
    for (const json::value& number : told) numbers.push_back(number.to_number<double>());
    EXPECT_EQ(numbers.size(), 9u);
    return numbers;
  }

  int32_t hidden_ = 0;
  int32_t num_streams_ = 0;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<steer::Library> library_;
  std::unique_ptr<server::Server> server_;
};

TEST_P(StreamsRequest, OneStreamIsSteeredAndCaptured) {
  constexpr int32_t kLayer = 1;
  const auto steered = [&](int32_t stream) {
    return fmt::format(R"("steering": {{"op": "add", "site": "resid_post", "layers": {},
                          "stream": {}, "vector": {}}}, )",
                       kLayer, stream, vector_of(0.5));
  };
  constexpr int32_t kMade = 2;  // by this layer; of sums the prefix and the embedding
  for (int32_t steered_one = 0; steered_one < kMade; ++steered_one) {
    for (int32_t stream = 0; stream < kMade; ++stream) {
      const std::vector<double> plain = first_numbers(kLayer, stream, "");
      const std::vector<double> got = first_numbers(kLayer, stream, steered(steered_one));
      for (size_t t = 0; t < plain.size(); ++t) {
        EXPECT_NEAR(got[t], plain[t] + (stream == steered_one ? 0.5 : 0), 1e-5)
            << "stream " << stream << ", steered " << steered_one << ", token " << t;
      }
    }
    // The next layer reads it.
    EXPECT_NE(first_numbers(kLayer + 1, 0, steered(steered_one)), first_numbers(kLayer + 1, 0, ""));
  }
}

TEST_P(StreamsRequest, AVectorThatDoesNotFitIsToldWhichPointsItFits) {
  const auto refused = [&](const std::string& more) {
    const server::ClientResponse response = post(fmt::format(
        R"("steering": {{"op": "add", "site": "resid_post", "layers": 1, "vector": {}{}}})",
        vector_of(1), more));
    EXPECT_EQ(response.status, 400) << response.body;
    return value_of(parse_json(response.body, "answer")).at("error").as_object();
  };
  const json::object bare = refused("");
  EXPECT_EQ(bare.at("param"), "steering.vector");
  EXPECT_EQ(std::string(bare.at("message").as_string()),
            fmt::format("a vector of 64 elements; resid_post of layer 1 has {}: "
                        "64 elements fit attn_in, attn_z, attn_out, mlp_in, mlp_out, and with "
                        "\"stream\" resid_pre, resid_mid, resid_post",
                        64 * num_streams_));
  EXPECT_EQ(refused(R"(, "stream": 7)").at("param"), "steering.stream");
  if (GetParam() == TinyArch::kBlockSums) {
    EXPECT_EQ(refused(R"(, "stream": 2)").at("message"),
              "block 1 is finished behind resid_post of layer 1");
  }
}

// Numbers that streams are written by are captured where the kind makes them of each token.
TEST_P(StreamsRequest, NumbersOfStreamsAreCapturedAndNotSteered) {
  const bool has_post = GetParam() == TinyArch::kDelayed || GetParam() == TinyArch::kGatedStreams;
  const bool has_mix = GetParam() == TinyArch::kDelayed;
  for (const auto& [site, is_there, width] :
       {std::tuple("mhc_attn_post_mix", has_post, num_streams_),
        std::tuple("mhc_attn_res_mix", has_mix, num_streams_ * num_streams_),
        std::tuple("mhc_ffn_post_mix", has_post, num_streams_),
        std::tuple("mhc_ffn_res_mix", has_mix, num_streams_ * num_streams_)}) {
    const std::string ask = fmt::format(
        R"("capture": {{"response": {{"sites": {{"{}": [1]}}, "positions": "all_prompt"}}}})",
        site);
    const server::ClientResponse response = post(ask);
    ASSERT_EQ(response.status, is_there ? 200 : 400) << response.body;
    if (is_there) {
      const json::value answer = value_of(parse_json(response.body, "answer"));
      const json::value pack = payload_of(answer).at("rows").at(site);
      EXPECT_EQ(pack.at("dtype"), "float32");
      EXPECT_EQ(pack.at("shape"), (json::array{9, width}));
      EXPECT_EQ(pack.at("residual").at("streams"), num_streams_);
    } else {
      EXPECT_NE(response.body.find("writes streams by such numbers"), std::string::npos);
    }
    const server::ClientResponse steered = post(fmt::format(
        R"("steering": {{"op": "add", "site": "{}", "layers": [1], "vector": [1]}})", site));
    EXPECT_EQ(steered.status, 400);
    EXPECT_NE(steered.body.find("no op reads or changes it"), std::string::npos) << steered.body;
  }
}

// At the last layer the collapsed row is what the model itself reads.
TEST_P(StreamsRequest, TheLensReadsAStreamOrTheCollapsedRow) {
  const auto read = [&](const std::string& more) {
    const json::value answer = answer_to(fmt::format(
        R"("capture": {{"response": {{"lens": {{"layers": [2], "top": 1{}}}}}}})", more));
    const json::value told = payload_of(answer).at("lens").at("resid_post.2");
    return std::tuple(
        told.at("logprobs").at(0).at(0).to_number<double>(), told.at("stream"),
        answer.at("choices").at(0).at("logprobs").at("token_logprobs").at(0).to_number<double>());
  };
  if (GetParam() == TinyArch::kDelayed) {
    for (const char* const more : {"", R"(, "stream": "collapsed")"}) {
      const server::ClientResponse refused = post(fmt::format(
          R"("capture": {{"response": {{"lens": {{"layers": [2], "top": 1{}}}}}}})", more));
      EXPECT_EQ(refused.status, 400);
      EXPECT_NE(refused.body.find("capture.response.lens.stream"), std::string::npos);
    }
    EXPECT_EQ(std::get<1>(read(R"(, "stream": 1)")), 1);
    return;
  }
  const auto [collapsed, named, own] = read("");
  EXPECT_EQ(named, "collapsed");
  EXPECT_NEAR(collapsed, own, 1e-4);
  EXPECT_EQ(std::get<0>(read(R"(, "stream": "collapsed")")), collapsed);
  for (int32_t stream = 0; stream < num_streams_; ++stream) {
    const auto of_stream = read(fmt::format(R"(, "stream": {})", stream));
    EXPECT_EQ(std::get<1>(of_stream), stream);
    EXPECT_GT(std::abs(std::get<0>(of_stream) - own), 1e-3) << stream;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, StreamsRequest,
                         ::testing::Values(TinyArch::kTwoStreams, TinyArch::kDelayed,
                                           TinyArch::kGatedStreams, TinyArch::kBlockSums),
                         [](const auto& test) {
                           return std::string(testing::tiny_arch_name(test.param));
                         });

}  // namespace
}  // namespace rudder::metamorphic
