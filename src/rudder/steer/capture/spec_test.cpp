#include "rudder/steer/capture/spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <set>
#include <sstream>

#include "rudder/base/json.h"
#include "rudder/steer/capture/capture_fixture.h"
#include "rudder/steer/capture/consumer.h"

namespace rudder::steer::capture {
namespace {

class SpecTest : public ::testing::Test {
 protected:
  SpecTest() : a_("a"), b_("b") {
    context_.geometry = small_geometry();
    context_.limits = small_limits();
    context_.consumers = {&a_, &b_};
  }

  Result<CaptureSpec> parse(const std::string& text) {
    RUDDER_TRY(const boost::json::value field, parse_json(text, "test"));
    RUDDER_TRY(std::vector<ParsedAsk> asks, parse_asks(field, "capture", context_));
    return combine(std::move(asks), std::nullopt, context_);
  }

  void expect_refused(const std::string& text, const std::string& where) {
    const Result<CaptureSpec> spec = parse(text);
    ASSERT_FALSE(spec.has_value()) << text;
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument) << text;
    EXPECT_EQ(spec.error().where, where) << text << ": " << spec.error().message;
  }

  TestConsumer a_;
  TestConsumer b_;
  SpecContext context_;
};

TEST_F(SpecTest, SitesAreListsAllOrRanges) {
  const Result<CaptureSpec> spec =
      parse(R"({"a": {"sites": {"resid_post": [2, 0], "post_attn": "all",
                                "blocks.1.hook_mlp_out": true,
                                "mlp_act": {"ranges": [[1, 2]], "layers": [3]}}}})");
  ASSERT_TRUE(spec.has_value()) << spec.error().to_string();
  std::vector<std::pair<int32_t, tap::Site>> points;
  for (const tap::CapturePoint& point : spec->set->points) {
    EXPECT_FALSE(point.after);
    points.emplace_back(point.point.layer, point.point.site);
  }
  using tap::Site;
  const std::vector<std::pair<int32_t, Site>> expected = {
      {0, Site::kResidMid}, {0, Site::kResidPost}, {1, Site::kResidMid},
      {1, Site::kMlpAct},   {1, Site::kMlpOut},    {2, Site::kResidMid},
      {2, Site::kMlpAct},   {2, Site::kResidPost}, {3, Site::kMlpAct}};
  EXPECT_EQ(points, expected);
}

// Of a residual of several streams a consumer gets the whole row or a stream of it.
TEST_F(SpecTest, AStreamIsAPartOfTheRow) {
  context_.geometry.residual = {tap::ResidualKind::kMixedStreams, 3};
  const auto layouts_of = [&](const std::string& more) {
    const Result<CaptureSpec> spec = parse(
        R"({"a": {"sites": {"resid_post": [1], "mlp_out": [1], "resid_pre": [2]})" + more + "}}");
    EXPECT_TRUE(spec.has_value()) << spec.error().to_string();
    return row_layouts(*spec, spec->asks[0], context_.geometry);
  };
  const std::vector<RowLayout> whole = layouts_of("");
  const std::vector<RowLayout> all = layouts_of(R"(, "stream": "all")");
  const std::vector<RowLayout> second = layouts_of(R"(, "stream": 1)");
  ASSERT_EQ(whole.size(), 3u);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(all[i].offset, whole[i].offset);
    EXPECT_EQ(all[i].width, whole[i].width);
    const bool is_residual = tap::is_residual(whole[i].point.point.site);
    EXPECT_EQ(whole[i].width, is_residual ? 72 : 24);
    EXPECT_EQ(second[i].width, 24);
    EXPECT_EQ(second[i].bytes, 48u);
    EXPECT_EQ(second[i].offset, whole[i].offset + (is_residual ? 48 : 0));
    EXPECT_EQ(residual_json(whole[i]),
              is_residual
                  ? R"("residual":{"kind":"mixed_streams","streams":3,"stream":"all",)"
                    R"("names":["stream 0","stream 1","stream 2"],"layout":["stream","hidden"]})"
                  : "");
    EXPECT_EQ(residual_json(second[i]),
              is_residual ? R"("residual":{"kind":"mixed_streams","streams":3,"stream":1,)"
                            R"("names":["stream 1"],"layout":["hidden"]})"
                          : "");
  }
  // Names are the kind's.
  context_.geometry.residual = {tap::ResidualKind::kBlockSums, 3, 2};
  EXPECT_NE(residual_json(layouts_of("").back()).find(R"("names":["prefix","block 0","block 1"])"),
            std::string::npos);
  context_.geometry.residual = {tap::ResidualKind::kMixedStreams, 3};
  for (const char* const wrong : {"3", "-1", "1.5", "\"first\"", "null", "[0]"}) {
    expect_refused(std::string(R"({"a": {"sites": {"resid_post": [1]}, "stream": )") + wrong + "}}",
                   "capture.a.stream");
  }
  expect_refused(R"({"a": {"sites": {"mlp_out": [1]}, "stream": 0}})", "capture.a.stream");
  // A residual of one stream is that one.
  context_.geometry.residual = {};
  EXPECT_EQ(layouts_of(R"(, "stream": 0)")[0].width, 24);
  EXPECT_EQ(residual_json(layouts_of("")[0]), "");
  expect_refused(R"({"a": {"sites": {"resid_post": [1]}, "stream": 1}})", "capture.a.stream");
}

// Numbers that streams are written by say whose they are, and have no stream to name.
TEST_F(SpecTest, NumbersOfStreamsSayWhatTheirAxesAre) {
  context_.geometry.residual = {tap::ResidualKind::kMixedStreams, 3};
  context_.geometry.sites[1] =
      static_cast<uint16_t>(context_.geometry.sites[1] | tap::kPostMixSites | tap::kResMixSites);
  const auto layouts_of = [&](const std::string& sites) {
    const Result<CaptureSpec> spec =
        parse(R"({"a": {"stream": 1, "sites": {"resid_pre": [1], )" + sites + "}}}");
    EXPECT_TRUE(spec.has_value()) << spec.error().to_string();
    return row_layouts(*spec, spec->asks[0], context_.geometry);
  };
  const std::vector<RowLayout> layouts =
      layouts_of(R"("mhc_attn_post_mix": [1], "mhc_ffn_res_mix": [1])");
  ASSERT_EQ(layouts.size(), 3u);
  const std::string whose = R"("residual":{"kind":"mixed_streams","streams":3,"stream":"all",)"
                            R"("names":["stream 0","stream 1","stream 2"],"layout":)";
  EXPECT_EQ(layouts[1].width, 3);
  EXPECT_EQ(layouts[1].dtype, tensor::DType::kF32);
  EXPECT_EQ(residual_json(layouts[1]), whose + R"(["stream"]})");
  EXPECT_EQ(layouts[2].width, 9);
  EXPECT_EQ(layouts[2].bytes, 36u);
  EXPECT_EQ(residual_json(layouts[2]), whose + R"(["from_stream","stream"]})");
  expect_refused(R"({"a": {"sites": {"mhc_ffn_res_mix": [1]}, "stream": 0}})", "capture.a.stream");
  expect_refused(R"({"a": {"sites": {"mhc_ffn_res_mix": [2]}}})",
                 "capture.a.sites.mhc_ffn_res_mix[0]");
}

TEST_F(SpecTest, ConsumersShareOneSetAndHaveAMaskEach) {
  const Result<CaptureSpec> spec =
      parse(R"({"a": {"sites": {"resid_post": [1, 3]}, "positions": "all"},
                "b": {"sites": {"resid_post": [3], "resid_pre": [1]}, "point": "post"}})");
  ASSERT_TRUE(spec.has_value());
  ASSERT_EQ(spec->set->points.size(), 4u);  // resid_post.3 before and after are two rows
  ASSERT_EQ(spec->asks.size(), 2u);
  for (const Ask& ask : spec->asks) {
    for (const int32_t point : ask.points) {
      EXPECT_EQ(spec->set->points[static_cast<size_t>(point)].after, ask.consumer == 1);
    }
  }
  const Result<CaptureSpec> same = parse(R"({"a": {"sites": {"resid_post": [1]}},
                                            "b": {"sites": {"post_block": [1]}}})");
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(same->set->points.size(), 1u);
  EXPECT_EQ(same->asks[0].points, same->asks[1].points);
}

TEST_F(SpecTest, LayersHaveTheFormsThatOpsHave) {
  const auto layers = [&](const std::string& sites) {
    const Result<CaptureSpec> spec = parse(R"({"a": {"sites": )" + sites + "}}");
    EXPECT_TRUE(spec.has_value()) << spec.error().to_string();
    std::vector<int32_t> found;
    for (const tap::CapturePoint& point : spec->set->points) found.push_back(point.point.layer);
    return found;
  };
  EXPECT_EQ(layers(R"({"resid_post": -1})"), (std::vector<int32_t>{3}));
  EXPECT_EQ(layers(R"({"resid_post": [-4, 2]})"), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(layers(R"({"resid_post": "0-1,-1"})"), (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(layers(R"({"final_norm": true})"), (std::vector<int32_t>{3}));
  EXPECT_EQ(layers(R"({"blocks.2.mlp.hook_post": true})"), (std::vector<int32_t>{2}));
}

TEST_F(SpecTest, ErrorsNameTheField) {
  expect_refused(R"([])", "capture");
  expect_refused(R"({"nobody": {}})", "capture.nobody");
  expect_refused(R"({"a": []})", "capture.a");
  expect_refused(R"({"a": {}})", "capture.a.sites");
  expect_refused(R"({"a": {"sites": {}}})", "capture.a.sites");
  expect_refused(R"({"a": {"sites": {"resid_past": [1]}}})", "capture.a.sites.resid_past");
  expect_refused(R"({"a": {"sites": {"resid_post": []}}})", "capture.a.sites.resid_post");
  expect_refused(R"({"a": {"sites": {"resid_post": [0, 4]}}})", "capture.a.sites.resid_post[1]");
  expect_refused(R"({"a": {"sites": {"resid_post": [-5]}}})", "capture.a.sites.resid_post[0]");
  expect_refused(R"({"a": {"sites": {"resid_post": [1.5]}}})", "capture.a.sites.resid_post[0]");
  expect_refused(R"({"a": {"sites": {"resid_post": [1e300]}}})", "capture.a.sites.resid_post[0]");
  expect_refused(R"({"a": {"sites": {"resid_post": "some"}}})", "capture.a.sites.resid_post");
  expect_refused(R"({"a": {"sites": {"resid_mid": [3]}}})", "capture.a.sites.resid_mid[0]");
  expect_refused(R"({"a": {"sites": {"resid_post": [1, 1]}}})", "capture.a.sites.resid_post[1]");
  expect_refused(R"({"a": {"sites": {"resid_post": [1], "post_block": [1]}}})", "capture.a.sites");
  expect_refused(R"({"a": {"sites": {"resid_post.1": [1]}}})", "capture.a.sites.resid_post.1");
  expect_refused(R"({"a": {"sites": {"resid_post.9": true}}})", "capture.a.sites.resid_post.9");
  expect_refused(R"({"a": {"sites": {"resid_post": {"ranges": [[2, 1]]}}}})",
                 "capture.a.sites.resid_post.ranges[0]");
  expect_refused(R"({"a": {"sites": {"resid_post": {"ranges": [[2]]}}}})",
                 "capture.a.sites.resid_post.ranges[0]");
  expect_refused(R"({"a": {"sites": {"resid_post": {"rows": [[2]]}}}})",
                 "capture.a.sites.resid_post.rows");
  expect_refused(R"({"a": {"sites": {"resid_post": [1]}, "positions": "some"}})",
                 "capture.a.positions");
  expect_refused(R"({"a": {"sites": {"resid_post": [1]}, "positions": []}})",
                 "capture.a.positions");
  expect_refused(R"({"a": {"sites": {"resid_post": [1]}, "positions": [0, "x"]}})",
                 "capture.a.positions[1]");
  expect_refused(R"({"a": {"sites": {"resid_post": [1]}, "point": "during"}})", "capture.a.point");
}

TEST_F(SpecTest, ARecordThatTheExecutorHasNoRoomForIsRefused) {
  context_.limits.capture_elements = 127;
  EXPECT_TRUE(parse(R"({"a": {"sites": {"resid_post": [1]}}})").has_value());
  expect_refused(R"({"a": {"sites": {"resid_post": [1, 2]}}})", "capture.a.sites");
}

TEST_F(SpecTest, RangesAreThoseOfTheWords) {
  constexpr int32_t kPrompt = 7;
  const auto positions = [&](const std::string& words) {
    const Result<CaptureSpec> spec =
        parse(R"({"a": {"sites": {"resid_post": [1]}, "positions": )" + words + "}}");
    EXPECT_TRUE(spec.has_value());
    const auto ranges = captured_ranges(*spec, kPrompt);
    EXPECT_TRUE(ranges.has_value());
    std::set<int32_t> covered;
    for (int32_t p = 0; p < 12; ++p) {
      if (contains(*ranges, p)) covered.insert(p);
    }
    return covered;
  };
  EXPECT_EQ(positions(R"("last_prompt")"), (std::set<int32_t>{6}));
  EXPECT_EQ(positions(R"("all_prompt")"), (std::set<int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(positions(R"("all_generated")"), (std::set<int32_t>{7, 8, 9, 10, 11}));
  EXPECT_EQ(positions(R"("all")").size(), 12u);
  EXPECT_EQ(positions("[0, -1, 9, 0, -7, 3, 2]"), (std::set<int32_t>{0, 2, 3, 6, 9}));
}

TEST_F(SpecTest, APositionBeforeThePromptIsRefusedWhenItsLengthIsKnown) {
  const Result<CaptureSpec> spec =
      parse(R"({"a": {"sites": {"resid_post": [1]}, "positions": [1, -8]}})");
  ASSERT_TRUE(spec.has_value());
  tap::SequenceTaps taps;
  EXPECT_TRUE(Dispatcher::apply(*spec, 8, taps).has_value());
  EXPECT_EQ(taps.capture, spec->set);
  const Result<void> refused = Dispatcher::apply(*spec, 7, taps);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().where, "capture.a.positions[1]");
}

TEST_F(SpecTest, TheManualsFirstExampleIsTaken) {
  std::ifstream file(RUDDER_SOURCE_DIR "/docs/capture.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string document = text.str();
  const size_t begin = document.find("-d '") + 4;
  const std::string body = document.substr(begin, document.find("}'", begin) + 1 - begin);
  const auto request = parse_json(body, "example");
  ASSERT_TRUE(request) << body;
  // Of a model with as many layers as the example names, and with the consumers of the example.
  context_.geometry.num_layers = 12;
  context_.geometry.mlp_width.assign(12, 48);
  context_.geometry.sites.assign(12, context_.geometry.sites[0]);
  context_.limits.capture_elements = 1 << 20;
  TestConsumer response("response");
  TestConsumer filesystem("filesystem");
  context_.consumers = {&response, &filesystem};
  const auto asks = parse_asks(request->at("capture"), "capture", context_);
  ASSERT_TRUE(asks) << asks.error().to_string();
  EXPECT_EQ(asks->size(), 2u);
  const auto spec = combine(*asks, std::nullopt, context_);
  ASSERT_TRUE(spec) << spec.error().to_string();
  EXPECT_EQ(spec->set->points.size(), 15u) << "resid_post of each layer, mlp_act of three";
}

}  // namespace
}  // namespace rudder::steer::capture
