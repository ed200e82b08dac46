#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "rudder/base/json.h"
#include "rudder/steer/capture/base64.h"
#include "rudder/steer/capture/response_test_support.h"
#include "rudder/steer/capture/result_json.h"
#include "rudder/tensor/dtype.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

TEST(Base64, IsThatOfTheStandard) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
}

TEST_F(ResponseTest, RowsComeInThePackedFormOfSteeringVectors) {
  start();
  const ConsumerResult result =
      capture(R"({"response": {"sites": {"resid_post": [1, 3]}, "positions": "last_prompt"}})");
  ASSERT_EQ(result.status, Status::kOk) << result.error;
  const json::value payload = payload_of(result);
  EXPECT_EQ(payload.at("positions"), json::array{3});
  const json::value& pack = payload.at("rows").at("resid_post");
  EXPECT_EQ(pack.at("dtype"), "bfloat16");
  EXPECT_EQ(pack.at("shape"), (json::array{2, 24}));
  EXPECT_EQ(pack.at("layer_indices"), (json::array{1, 3}));
  EXPECT_EQ(pack.at("data"),
            json::string(packed(
                {row(3, tap::Site::kResidPost, 1), row(3, tap::Site::kResidPost, 3)}, false)));
}

TEST_F(ResponseTest, RowsOfSeveralTokensFollowEachOtherAndWidthsArePackedApart) {
  start();
  const ConsumerResult result = capture(
      R"({"response": {"sites": {"mlp_act": [1, 2]}, "positions": [1, 5], "dtype": "float32"}})");
  const json::value payload = payload_of(result);
  EXPECT_EQ(payload.at("positions"), (json::array{1, 5}));
  const json::value& narrow = payload.at("rows").at("mlp_act.2");
  EXPECT_EQ(narrow.at("shape"), (json::array{2, 40}));
  EXPECT_EQ(narrow.at("layer_indices"), (json::array{2, 2}));
  EXPECT_EQ(
      narrow.at("data"),
      json::string(packed({row(1, tap::Site::kMlpAct, 2), row(5, tap::Site::kMlpAct, 2)}, true)));
  EXPECT_EQ(payload.at("rows").at("mlp_act.1").at("shape"), (json::array{2, 48}));
}

TEST_F(ResponseTest, RowsOfSomeHeadsAreTheseSideBySideInTheOrderAsked) {
  start();
  const auto of_heads = [&](int32_t position, int32_t layer, std::vector<int32_t> heads,
                            int32_t dim) {
    const std::vector<float> whole = row(position, tap::Site::kAttnZ, layer);
    std::vector<float> part;
    for (const int32_t head : heads) {
      part.insert(part.end(), whole.begin() + head * dim, whole.begin() + (head + 1) * dim);
    }
    return part;
  };
  for (const char* dtype : {"bfloat16", "float32"}) {
    const json::value payload = payload_of(capture(fmt::format(
        R"({{"response": {{"sites": {{"attn_z": [1, 3], "resid_post": 1}}, "heads": [2, 0],
             "positions": [1, 5], "dtype": "{}", "values": ["rows", "norms"]}}}})",
        dtype)));
    const json::value& pack = payload.at("rows").at("attn_z");
    EXPECT_EQ(pack.at("shape"), (json::array{4, 12}));
    EXPECT_EQ(pack.at("layer_indices"), (json::array{1, 3, 1, 3}));
    EXPECT_EQ(pack.at("data"),
              json::string(packed({of_heads(1, 1, {2, 0}, 6), of_heads(1, 3, {2, 0}, 6),
                                   of_heads(5, 1, {2, 0}, 6), of_heads(5, 3, {2, 0}, 6)},
                                  std::string_view(dtype) == "float32")));
    EXPECT_EQ(payload.at("rows").at("resid_post").at("shape"), (json::array{2, 24}));
    double squares = 0;
    for (const float value : of_heads(5, 3, {2, 0}, 6)) squares += double{value} * double{value};
    EXPECT_NEAR(payload.at("norms").at("attn_z.3").at(1).as_double(), std::sqrt(squares), 1e-4);
  }
}

TEST_F(ResponseTest, LayersWithOtherHeadsArePackedApartAndProbesAreOfTheHeads) {
  start();
  const json::value payload = payload_of(
      capture(R"({"response": {"sites": {"attn_z": [1, 2]}, "heads": -1, "positions": [1]}})"));
  EXPECT_EQ(payload.at("rows").at("attn_z.1").at("shape"), (json::array{1, 6}));
  EXPECT_EQ(payload.at("rows").at("attn_z.2").at("shape"), (json::array{1, 8}));
  const json::value probed = payload_of(capture(
      R"({"response": {"sites": {"attn_z": 1}, "heads": -1, "positions": [1],
                       "probes": {"p": [1, 0, 0, 0, 0, 2]}}})"));
  const std::vector<float> whole = row(1, tap::Site::kAttnZ, 1);
  EXPECT_NEAR(probed.at("probes").at("p").at("attn_z.1").at(0).to_number<double>(),
              double{whole[18]} + 2 * double{whole[23]}, 1e-4);
}

TEST_F(ResponseTest, HeadsThatTheSitesDoNotHaveAreRefused) {
  start();
  const std::pair<const char*, const char*> cases[] = {
      {R"({"response": {"sites": {"attn_z": 2}, "heads": 2}})", "capture.response.heads"},
      {R"({"response": {"sites": {"attn_out": 2}, "heads": 0}})", "capture.response.heads"},
      {R"({"response": {"sites": {"attn_z": 1}, "heads": [0, 0]}})", "capture.response.heads[1]"},
      {R"({"logging": {"sites": {"attn_z": 1}, "heads": 0}})", "capture.logging.heads"},
      {R"({"response": {"sites": {"attn_z": 1}, "heads": 0, "probes": {"p": [1, 2]}}})",
       "capture.response.probes.p"},
  };
  for (const auto& [field, where] : cases) {
    const json::value value = json::parse(field);
    const auto spec = dispatcher_->spec(&value, std::nullopt);
    ASSERT_FALSE(spec.has_value()) << field;
    EXPECT_EQ(spec.error().where, where) << spec.error().message;
  }
}

TEST_F(ResponseTest, TheLensReadsItsLayersBesideOtherValues) {
  start();
  const auto expected = [&](int32_t position, int32_t layer) {
    std::vector<tap::LensToken> tokens;
    EXPECT_TRUE(lens_->read(row(position, tap::Site::kResidPost, layer), 3, tokens).has_value());
    json::array ids;
    for (const tap::LensToken& token : tokens) ids.push_back(token.token);
    return ids;
  };
  const ConsumerResult result = capture(
      R"({"response": {"lens": {"layers": [3, 1], "top": 3}, "positions": [1, 2, 5],
                       "sites": {"resid_post": [2, 3]}, "values": ["norms"]}})");
  ASSERT_EQ(result.status, Status::kOk) << result.error;
  EXPECT_LE(lens_->calls, 2) << "rows that come together are read together";
  const json::value payload = payload_of(result);
  EXPECT_EQ(payload.at("norms").as_object().size(), 2u);
  EXPECT_FALSE(payload.as_object().contains("rows"));
  ASSERT_EQ(payload.at("lens").as_object().size(), 2u);
  for (const int32_t layer : {1, 3}) {
    const json::value& reading = payload.at("lens").at(fmt::format("resid_post.{}", layer));
    EXPECT_EQ(reading.at("token_ids"),
              (json::array{expected(1, layer), expected(2, layer), expected(5, layer)}));
    EXPECT_EQ(reading.at("logprobs").at(0).as_array().size(), 3u);
  }
}

// Of a residual of several streams the lens reads one that is named, or all of them as the model
// does; sessions that ask for either are read side by side.
TEST_F(ResponseTest, TheLensReadsAStreamOrTheCollapsedRow) {
  geometry_.residual = {tap::ResidualKind::kBlockSums, 3, 2};  // after layer 0: 2, after layer 2: 3
  start();
  const auto expected = [&](int32_t layer, std::optional<int32_t> stream) {
    const std::vector<float> whole = row(5, tap::Site::kResidPost, layer);
    const std::vector<int32_t> made = {layer < 2 ? 2 : 3};
    std::vector<tap::LensToken> tokens;
    if (stream) {
      EXPECT_TRUE(
          lens_->read(std::span(whole).subspan(static_cast<size_t>(*stream) * 24, 24), 2, tokens));
    } else {
      EXPECT_TRUE(lens_->read_collapsed(whole, made, 2, tokens));
    }
    json::array ids;
    for (const tap::LensToken& token : tokens) ids.push_back(token.token);
    return ids;
  };
  const auto told = [&](const std::string& more) {
    return payload_of(capture(R"({"response": {"lens": {"layers": [1, 3], "top": 2)" + more +
                              R"(}, "positions": [5]}})"))
        .at("lens");
  };
  for (const int32_t layer : {1, 3}) {
    const std::string key = fmt::format("resid_post.{}", layer);
    for (const int32_t stream : {0, 1}) {
      const json::value reading = told(fmt::format(R"(, "stream": {})", stream)).at(key);
      EXPECT_EQ(reading.at("token_ids").at(0), expected(layer, stream));
      EXPECT_EQ(reading.at("stream"), stream);
    }
    for (const char* const more : {"", R"(, "stream": "collapsed")"}) {
      const json::value reading = told(more).at(key);
      EXPECT_EQ(reading.at("token_ids").at(0), expected(layer, std::nullopt));
      EXPECT_EQ(reading.at("stream"), "collapsed");
    }
  }
  for (const char* const wrong : {"2", "3", "-1", R"("all")", "null", "[0]"}) {
    const json::value field = json::parse(
        std::string(R"({"response": {"lens": {"layers": [1], "stream": )") + wrong + "}}}");
    const auto refused = dispatcher_->spec(&field);
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_EQ(refused.error().where, "capture.response.lens.stream");
  }
}

// Of a residual whose rows alone do not say what the end reads of them a stream has to be named.
TEST_F(ResponseTest, TheLensRefusesToCollapseWhatNoRowSaysHowTo) {
  geometry_.residual = {.kind = tap::ResidualKind::kMixedStreams, .streams = 3, .collapses = false};
  start();
  for (const char* const wrong : {"", R"(, "stream": "collapsed")", R"(, "stream": 3)"}) {
    const json::value field =
        json::parse(std::string(R"({"response": {"lens": {"layers": [1])") + wrong + "}}}");
    const auto refused = dispatcher_->spec(&field);
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_EQ(refused.error().where, "capture.response.lens.stream");
  }
  const json::value field = json::parse(R"({"response": {"lens": {"layers": [1], "stream": 2}}})");
  EXPECT_TRUE(dispatcher_->spec(&field).has_value());
}

TEST_F(ResponseTest, TheLensAloneNeedsNoSitesAndStreams) {
  start();
  const std::string field = R"({"response": {"lens": {"layers": 2}, "positions": "last_prompt"}})";
  const json::value payload = payload_of(capture(field));
  EXPECT_FALSE(payload.as_object().contains("rows"));
  const json::value ids = payload.at("lens").at("resid_post.2").at("token_ids");
  EXPECT_EQ(ids.at(0).as_array().size(), 5u);
  EXPECT_EQ(payload_of(capture(field, true)).at("events"), 1);
  const std::vector<CaptureEvent> events = inbound_.take_events();
  ASSERT_EQ(events.size(), 1u);
  std::string text;
  append_event_values(text, events[0]);
  EXPECT_EQ(parse_json(text, "event")->at("lens").at("resid_post.2").at("token_ids"), ids.at(0));
}

TEST_F(ResponseTest, AWrongLensIsNamed) {
  start();
  for (const auto& [lens, where] : std::vector<std::pair<std::string, std::string>>{
           {R"({"layers": [9]})", "capture.response.lens.layers[0]"},
           {R"({"top": 3})", "capture.response.lens.layers"},
           {R"({"layers": 1, "top": 0})", "capture.response.lens.top"},
           {R"({"layers": 1, "top": 21})", "capture.response.lens.top"},
           {R"({"layers": 1, "site": "x"})", "capture.response.lens.site"},
           {"3", "capture.response.lens"}}) {
    const json::value field = json::parse(R"({"response": {"lens": )" + lens + "}}");
    const auto refused = dispatcher_->spec(&field);
    ASSERT_FALSE(refused.has_value()) << lens;
    EXPECT_EQ(refused.error().where, where);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
  const json::value norms =
      json::parse(R"({"response": {"lens": {"layers": 1}, "values": ["norms"]}})");
  EXPECT_EQ(dispatcher_->spec(&norms).error().where, "capture.response.sites");
  lens_ = nullptr;
  start();
  const json::value field = json::parse(R"({"response": {"lens": {"layers": 1}}})");
  const auto refused = dispatcher_->spec(&field);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().where, "capture.response.lens");
}

TEST_F(ResponseTest, ProbesAndNormsAreNumbers) {
  start();
  std::string probe;
  std::vector<float> vector;
  for (int i = 0; i < 24; ++i) {
    vector.push_back(static_cast<float>(i - 11));
    probe += (i > 0 ? "," : "") + std::to_string(i - 11);
  }
  for (const char* measure : {"dot", "projection", "cosine"}) {
    const ConsumerResult result = capture(
        R"({"response": {"sites": {"resid_pre": [2]}, "positions": "all_generated",
                    "values": ["norms", "probes"], "measure": ")" +
        std::string(measure) + R"(", "probes": {"mine": [)" + probe + R"(], "theirs": "known"}}})");
    ASSERT_EQ(result.status, Status::kOk) << result.error;
    const json::value payload = payload_of(result);
    EXPECT_EQ(payload.as_object().if_contains("rows"), nullptr);
    for (int32_t i = 0; i < 3; ++i) {
      const std::vector<float> h = row(4 + i, tap::Site::kResidPre, 2);
      double dot = 0;
      double squares = 0;
      double vector_squares = 0;
      for (size_t k = 0; k < 24; ++k) {
        dot += double{h[k]} * vector[k];
        squares += double{h[k]} * h[k];
        vector_squares += double{vector[k]} * vector[k];
      }
      double expected = dot;
      if (std::string(measure) != "dot") expected /= std::sqrt(vector_squares);
      if (std::string(measure) == "cosine") expected /= std::sqrt(squares);
      const auto at = static_cast<size_t>(i);
      EXPECT_NEAR(
          payload.at("probes").at("mine").at("resid_pre.2").as_array()[at].to_number<double>(),
          expected, 1e-5 * (1 + std::abs(expected)));
      EXPECT_NEAR(payload.at("norms").at("resid_pre.2").as_array()[at].to_number<double>(),
                  std::sqrt(squares), 1e-5 * std::sqrt(squares));
    }
  }
}

TEST_F(ResponseTest, RowsOfAnAnswerAreProbesAsTheyAre) {
  start();
  const ConsumerResult first =
      capture(R"({"response": {"sites": {"resid_post": [1, 3]}, "positions": [2]}})");
  const json::value rows = payload_of(first).at("rows").at("resid_post");
  const ConsumerResult second = capture(
      R"({"response": {"sites": {"resid_post": [1, 3]}, "positions": [2], "measure": "cosine",
                       "probes": {"itself": )" +
      json::serialize(rows) + "}}}");
  ASSERT_EQ(second.status, Status::kOk) << second.error;
  const json::value probe = payload_of(second).at("probes").at("itself");
  EXPECT_NEAR(probe.at("resid_post.1").as_array()[0].to_number<double>(), 1, 1e-6);
  EXPECT_NEAR(probe.at("resid_post.3").as_array()[0].to_number<double>(), 1, 1e-6);
}

TEST_F(ResponseTest, MeansAreOverTheCapturedPositions) {
  start();
  for (const bool stream : {false, true}) {
    const ConsumerResult result =
        capture(R"({"response": {"sites": {"resid_post": [1, 2]}, "positions": "all_prompt",
                    "values": ["means"]}})",
                stream);
    ASSERT_EQ(result.status, Status::kOk) << result.error;
    std::vector<std::vector<float>> means;
    for (const int32_t layer : {1, 2}) {
      std::vector<double> sums(24);
      for (int32_t p = 0; p < 4; ++p) {
        const std::vector<float> h = row(p, tap::Site::kResidPost, layer);
        for (size_t i = 0; i < 24; ++i) sums[i] += double{h[i]};
      }
      means.emplace_back();
      for (const double sum : sums) means.back().push_back(static_cast<float>(sum / 4));
    }
    EXPECT_TRUE(inbound_.take_events().empty());  // a token has no mean
    ASSERT_TRUE(result.values);
    ASSERT_EQ(result.values->means.size(), 1u);
    const ResultRows& mean = result.values->means[0];
    EXPECT_EQ(mean.key, "resid_post");
    EXPECT_EQ(mean.layers, (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(mean.width, 24);
    std::vector<float> joined = means[0];
    joined.insert(joined.end(), means[1].begin(), means[1].end());
    EXPECT_EQ(mean.to_floats(), joined);
    // As the client gets them, beside what else there is.
    const json::value payload = payload_of(result);
    EXPECT_TRUE(payload.as_object().contains(stream ? "events" : "positions"));
    const json::value& pack = payload.at("means").at("resid_post");
    EXPECT_EQ(pack.at("dtype"), "float32");
    EXPECT_EQ(pack.at("shape"), (json::array{2, 24}));
    EXPECT_EQ(pack.at("layer_indices"), (json::array{1, 2}));
    EXPECT_EQ(pack.at("data"), json::string(packed(means, true)));
  }
}

TEST_F(ResponseTest, AStreamGetsAnEventAToken) {
  start();
  const ConsumerResult result =
      capture(R"({"response": {"sites": {"resid_post": [0]}, "positions": "all_generated",
                  "values": ["rows", "norms"]}})",
              true);
  EXPECT_EQ(json::serialize(payload_of(result)), R"({"events":3})");
  const std::vector<CaptureEvent> events = inbound_.take_events();
  ASSERT_EQ(events.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) {
    const CaptureEvent& event = events[static_cast<size_t>(i)];
    EXPECT_EQ(event.consumer, "response");
    EXPECT_EQ(event.position, 4 + i);
    ASSERT_EQ(event.values.rows.size(), 1u);  // values, until an answer is written
    EXPECT_EQ(event.values.rows[0].dtype, tensor::DType::kBF16);
    EXPECT_EQ(event.values.rows[0].data.size(), 24 * sizeof(uint16_t));
    std::string text;
    append_event_values(text, event);
    const json::value payload = *parse_json(text, "event");
    EXPECT_EQ(payload.at("position"), 4 + i);
    EXPECT_EQ(payload.at("rows").at("resid_post").at("data"),
              json::string(packed({row(4 + i, tap::Site::kResidPost, 0)}, false)));
    EXPECT_TRUE(payload.at("norms").at("resid_post.0").is_number());
  }
}

TEST_F(ResponseTest, AnAnswerThatIsTooLongIsAnErrorAndItsRoomIsGivenBack) {
  start(3000);  // 7 rows of 24 bf16 numbers and their text are about 800 bytes
  const std::string small = R"({"response": {"sites": {"resid_post": [0]}, "positions": "all"}})";
  const std::string large =
      R"({"response": {"sites": {"resid_post": "all", "mlp_act": "all"}, "positions": "all"}})";
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(capture(small).status, Status::kOk);
    const ConsumerResult refused = capture(large);
    EXPECT_EQ(refused.status, Status::kError);
    EXPECT_NE(refused.error.find("capture-max-response-bytes"), std::string::npos);
    EXPECT_EQ(capture(large, true).status, Status::kOk);  // events hold nothing
  }
}

TEST_F(ResponseTest, OptionsThatAreWrongAreRefusedByPath) {
  start();
  const auto refused = [&](const std::string& fields) {
    const json::value value =
        *parse_json(R"({"response": {"sites": {"resid_post": [0]}, )" + fields + "}}", "test");
    const auto spec = dispatcher_->spec(&value);
    EXPECT_FALSE(spec.has_value()) << fields;
    return spec ? std::string() : spec.error().where;
  };
  EXPECT_EQ(refused(R"("colour": 1)"), "capture.response.colour");
  EXPECT_EQ(refused(R"("values": [])"), "capture.response.values");
  EXPECT_EQ(refused(R"("values": ["rows", "all"])"), "capture.response.values[1]");
  EXPECT_EQ(refused(R"("values": ["probes"])"), "capture.response.probes");
  EXPECT_EQ(refused(R"("dtype": "float64")"), "capture.response.dtype");
  EXPECT_EQ(refused(R"("measure": "angle")"), "capture.response.measure");
  EXPECT_EQ(refused(R"("probes": {})"), "capture.response.probes");
  EXPECT_EQ(refused(R"("probes": {"p": [1, 2]})"), "capture.response.probes.p");
  EXPECT_EQ(refused(R"("probes": {"p": "unknown"})"), "capture.response.probes.p");
  std::string list = "[1e39";
  for (int i = 1; i < 24; ++i) list += ",1";
  EXPECT_EQ(refused(R"("probes": {"p": )" + list + "]}"), "capture.response.probes.p[0]");
  std::string zeros = "[0";
  for (int i = 1; i < 24; ++i) zeros += ",0";
  EXPECT_EQ(refused(R"("probes": {"p": )" + zeros + "]}"), "capture.response.probes.p");
}

TEST_F(ResponseTest, AShortBodyDoesNotAskForManyNumbers) {
  tap::Geometry wide = geometry_;
  wide.hidden = 16384;
  auto made = Dispatcher::create(
      {wide,
       small_limits(),
       [](std::string_view, tap::Point) { return std::vector<float>(16384, 1.0f); },
       {}},
      {});
  ASSERT_TRUE(made.has_value());
  json::object probes;
  for (int i = 0; i < 256; ++i) probes["p" + std::to_string(i)] = "name";
  const auto field = [&](json::array layers) {
    return json::value{{"response", {{"sites", {{"resid_post", layers}}}, {"probes", probes}}}};
  };
  const json::value one = field({0});
  EXPECT_TRUE((*made)->spec(&one).has_value());
  const json::value two = field({0, 1});
  const auto refused = (*made)->spec(&two);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().where, "capture.response.probes");
}

TEST_F(ResponseTest, LogLinesSayWhatTheRowsWere) {
  start();
  const ConsumerResult rows = capture(
      R"({"logging": {"sites": {"resid_post": [1]}, "positions": "all", "lines": "rows"}})");
  EXPECT_EQ(rows.payload, R"({"rows":7,"nonfinite":0})");
  std::lock_guard lock(mutex_);
  ASSERT_EQ(lines_.size(), 8u);  // a row each, and the summary
  EXPECT_NE(lines_[2].find("request=r choice=0 position=2 resid_post.1 norm="), std::string::npos)
      << lines_[2];
  EXPECT_NE(lines_[7].find("rows=7 norm mean="), std::string::npos) << lines_[7];
}

// Every part, in one answer and in one event.
TEST(Results, ValuesAreWrittenAsTheyAre) {
  CapturedValues values;
  values.positions = {2, 5};
  ResultRows rows = {"resid_post", tensor::DType::kBF16, {1, 1}, 1, {}};
  rows.data = {std::byte{0x80}, std::byte{0x3F}, std::byte{0}, std::byte{0xC0}};  // 1, -2
  EXPECT_EQ(rows.to_floats(), (std::vector<float>{1, -2}));
  values.rows = {rows};
  values.norms = {{"resid_post.1", {1, 2}}, {"resid_post.2", {3, 4}}};
  values.probes = {{"a\"", {{"resid_post.1", {0.5, 0.25}}}}};
  values.means = {{"resid_post", tensor::DType::kF32, {1}, 1, std::vector<std::byte>(4)}};
  EXPECT_EQ(results_json({{.consumer = "response", .error = {}, .payload = {}, .values = values}}),
            R"({"response":{"status":"ok","error":null,"payload":{"positions":[2,5],)"
            R"("rows":{"resid_post":{"dtype":"bfloat16","shape":[2,1],"layer_indices":[1,1],)"
            R"("data":"gD8AwA=="}},"norms":{"resid_post.1":[1,2],"resid_post.2":[3,4]},)"
            R"("probes":{"a\"":{"resid_post.1":[0.5,0.25]}},)"
            R"("means":{"resid_post":{"dtype":"float32","shape":[1,1],"layer_indices":[1],)"
            R"("data":"AAAAAA=="}}}}})");
  CaptureEvent event = {"response", 0, 7, {}};
  event.values.norms = {{"resid_post.1", {2.5}}};
  std::string out;
  append_event_values(out, event);
  EXPECT_EQ(out, R"({"position":7,"norms":{"resid_post.1":2.5}})");
}

TEST(Results, AreOneObjectByConsumer) {
  EXPECT_EQ(results_json({{"a", Status::kOk, "", R"({"x":1})"},
                          {"b\"", Status::kPartialError, "lost \"2\"", ""},
                          {"c", Status::kNotRequested, "", ""}}),
            R"({"a":{"status":"ok","error":null,"payload":{"x":1}},)"
            R"("b\"":{"status":"partial_error","error":"lost \"2\"","payload":null},)"
            R"("c":{"status":"not_requested","error":null,"payload":null}})");
}

}  // namespace
}  // namespace rudder::steer::capture
