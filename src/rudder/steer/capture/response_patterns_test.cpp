// The option `patterns`: which attention patterns are captured, and how they are told.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "rudder/steer/capture/pattern_ask.h"
#include "rudder/steer/capture/response_test_support.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

class PatternsTest : public ResponseTest {
 protected:
  // Patterns of a layer at these positions, as they are told.
  static std::string told(const std::vector<int32_t>& positions, int32_t layer,
                          const std::vector<int32_t>& heads, bool as_float32 = false) {
    std::string bytes;
    for (const int32_t position : positions) {
      for (const int32_t head : heads) {
        for (int32_t key = 0; key <= position; ++key) {
          const uint16_t half = pattern_value(position, layer, head, key);
          const float value = tensor::to_float(tensor::BF16{half});
          if (as_float32) bytes.append(reinterpret_cast<const char*>(&value), 4);
          if (!as_float32) bytes.append(reinterpret_cast<const char*>(&half), 2);
        }
      }
    }
    return base64(bytes);
  }

  // "": taken.
  std::string refused_at(const std::string& field, std::string* message = nullptr) {
    const json::value parsed = *parse_json(field, "test");
    const auto spec = dispatcher_->spec(&parsed, {});
    if (spec) return "";
    if (message != nullptr) *message = spec.error().message;
    return spec.error().where;
  }
};

TEST_F(PatternsTest, RowsOfHeadsComePositionByPosition) {
  start();
  const ConsumerResult result = capture(
      R"({"response": {"patterns": {"layers": [2, 0], "heads": [-1, 0], "keys": 9}, "positions": [2, 5]}})");
  ASSERT_EQ(result.status, Status::kOk) << result.error;
  const json::value payload = payload_of(result);
  EXPECT_EQ(payload.at("positions"), (json::array{2, 5}));
  const json::value& first = payload.at("patterns").at("0");
  EXPECT_EQ(first.at("heads"), (json::array{3, 0}));
  EXPECT_EQ(first.at("keys"), (json::array{3, 6}));
  EXPECT_EQ(first.at("dtype"), "bfloat16");
  EXPECT_EQ(first.at("data"), json::string(told({2, 5}, 0, {3, 0})));
  const json::value& third = payload.at("patterns").at("2");  // of two heads
  EXPECT_EQ(third.at("heads"), (json::array{1, 0}));
  EXPECT_EQ(third.at("data"), json::string(told({2, 5}, 2, {1, 0})));
  EXPECT_FALSE(payload.as_object().contains("rows"));
}

TEST_F(PatternsTest, StandBesideRowsAndStreamAToken) {
  start();
  const ConsumerResult result = capture(
      R"({"response": {"sites": {"resid_post": 1}, "patterns": {"layers": "all", "heads": 1}, "positions": "all",
                       "dtype": "float32"}})",
      true);
  ASSERT_EQ(result.status, Status::kOk) << result.error;
  EXPECT_EQ(payload_of(result).at("events"), 7);
  const std::vector<CaptureEvent> events = inbound_.take_events();
  ASSERT_EQ(events.size(), 7u);
  for (int32_t position = 0; position < 7; ++position) {
    std::string text;
    append_event_values(text, events[static_cast<size_t>(position)]);
    const json::value values = *parse_json(text, "event");
    EXPECT_EQ(values.at("position"), position);
    EXPECT_EQ(values.at("patterns").as_object().size(), 4u);
    EXPECT_EQ(values.at("patterns").at("3").at("keys"), position + 1);
    EXPECT_EQ(values.at("patterns").at("3").at("data"),
              json::string(told({position}, 3, {1}, true)));
    EXPECT_TRUE(values.at("rows").as_object().contains("resid_post"));
  }
}

// The operator's own capture asks for other heads and more keys of the same layer: one record has
// both, and the request gets its own.
TEST_F(PatternsTest, TwoAsksOfALayerShareItsRecord) {
  CaptureSettings settings;
  settings.max_response_bytes = 1 << 20;
  settings.global = R"({"response": {"patterns": {"layers": [1], "heads": [2, 0], "keys": 40}}})";
  auto made =
      Dispatcher::create({geometry_, small_limits(), {}, {}, lens_, dictionaries_}, settings);
  ASSERT_TRUE(made.has_value()) << made.error().to_string();
  dispatcher_ = std::move(*made);
  const std::string field =
      R"({"response": {"patterns": {"layers": 1, "heads": [3], "keys": 8}, "positions": [4]}})";
  const auto spec = make_spec(*dispatcher_, field);
  ASSERT_EQ(spec->set->patterns.size(), 1u);
  EXPECT_EQ(spec->set->patterns[0].keys, 40);
  EXPECT_EQ(spec->set->patterns[0].heads, (std::vector<int32_t>{0, 2, 3}));
  const CaptureId id = dispatcher_->begin({.spec = spec,
                                           .request_id = "r",
                                           .choice = 0,
                                           .prompt_len = 4,
                                           .stream = false,
                                           .wait = true,
                                           .on_results = inbound_.results(),
                                           .on_event = inbound_.events()});
  FakeStep(geometry_).add(id, 9, *spec, 3, 5).push_to(*dispatcher_);
  dispatcher_->end(id);
  const CaptureResults results = inbound_.wait();
  ASSERT_EQ(results.size(), 1u);
  const json::value payload = payload_of(results[0]);
  EXPECT_EQ(payload.at("patterns").at("1").at("data"), json::string(told({4}, 1, {3})));
}

// The device has one entry for each set: sets with the same points and other patterns are others.
TEST_F(PatternsTest, RequestsShareASetWhereAllOfItIsEqual) {
  start();
  const auto set_of = [&](const std::string& heads) {
    return make_spec(
        *dispatcher_,
        R"({"response": {"sites": {"resid_post": 1}, "patterns": {"layers": [1], "heads": )" +
            heads + "}}}");
  };
  const auto first = set_of("[0, 1]");
  EXPECT_EQ(set_of("[1, 0]")->set, first->set);
  EXPECT_NE(set_of("[0]")->set, first->set);
}

TEST_F(PatternsTest, WhatIsToldIsCharged) {
  start(500);
  const std::string field =
      R"({"response": {"patterns": {"layers": [0], "heads": HEADS}, "positions": "all"}})";
  const auto of_heads = [&](const std::string& heads) {
    std::string text = field;
    return capture(text.replace(text.find("HEADS"), 5, heads)).status;
  };
  EXPECT_EQ(of_heads("[0, 1]"), Status::kOk);
  EXPECT_EQ(of_heads("\"all\""), Status::kError);
}

TEST_F(PatternsTest, WrongFieldsAreNamed) {
  start();
  const auto of = [](const std::string& patterns) {
    return R"({"response": {"patterns": )" + patterns + "}}";
  };
  const std::string at = "capture.response.patterns";
  EXPECT_EQ(refused_at(of(R"({"layers": [0, -1], "heads": {"heads": [0], "ranges": [[1, -1]]}})")),
            "");
  EXPECT_EQ(refused_at(of("3")), at);
  EXPECT_EQ(refused_at(of("{}")), at + ".layers");
  EXPECT_EQ(refused_at(of(R"({"layers": [0, 4]})")), at + ".layers[1]");
  EXPECT_EQ(refused_at(of(R"({"layers": [2], "heads": [2]})")), at + ".heads[0]");
  EXPECT_EQ(refused_at(of(R"({"layers": "all", "heads": 3})")), at + ".heads");
  EXPECT_EQ(refused_at(of(R"({"layers": 1, "keys": 0})")), at + ".keys");
  EXPECT_EQ(refused_at(of(R"({"layers": 1, "queries": 0})")), at + ".queries");
  EXPECT_EQ(refused_at(of(R"({"layers": 1, "keys": 70000})")), at);
  EXPECT_EQ(refused_at(R"({"response": {"patterns": {"layers": 1}, "point": "post"}})"),
            "capture.response.point");
  EXPECT_EQ(refused_at(R"({"response": {"patterns": {"layers": 1}, "values": ["norms"]}})"),
            "capture.response.sites");
  std::string message;
  EXPECT_EQ(refused_at(R"({"logging": {"patterns": {"layers": 1}}})", &message),
            "capture.logging.patterns");
  EXPECT_NE(message.find("response alone, not to logging"), std::string::npos) << message;
  EXPECT_EQ(
      refused_at(R"({"response": {"sites": {"blocks.1.attn.hook_pattern": true}}})", &message),
      "capture.response.sites.blocks.1.attn.hook_pattern");
  EXPECT_NE(message.find("`patterns`"), std::string::npos) << message;
}

TEST_F(PatternsTest, ABackendWithoutThemRefusesThemByName) {
  tap::Limits limits = small_limits();
  limits.patterns = false;
  CaptureSettings settings;
  settings.max_response_bytes = 1 << 20;
  dispatcher_ = *Dispatcher::create({geometry_, limits, {}, {}, lens_, dictionaries_}, settings);
  std::string message;
  EXPECT_EQ(refused_at(R"({"response": {"patterns": {"layers": 1}}})", &message),
            "capture.response.patterns");
  EXPECT_NE(message.find("captures no attention patterns"), std::string::npos) << message;
}

// A row has the keys of positions 0 to keys - 1; the last token of a sequence is never read.
TEST_F(PatternsTest, PositionsBehindTheKeysAreRefused) {
  start();
  const auto checked = [&](const std::string& positions, int32_t prompt_len, int32_t max_len) {
    const auto spec =
        make_spec(*dispatcher_, R"({"response": {"patterns": {"layers": [1], "keys": 10},
                                                              "positions": )" +
                                    positions + "}}");
    const Result<void> fits = check_pattern_keys(*spec, prompt_len, max_len);
    return fits ? std::string() : fits.error().where + ": " + fits.error().message;
  };
  EXPECT_EQ(checked("\"all\"", 4, 11), "");
  EXPECT_NE(checked("\"all\"", 4, 12), "");
  EXPECT_EQ(checked("\"last_prompt\"", 10, 90), "");
  EXPECT_EQ(checked("\"last_prompt\"", 11, 90),
            "capture.response.patterns.keys: a row may have 10 keys, and a captured position 11 "
            "(max_tokens counts, too)");
  EXPECT_EQ(checked("[0, 9]", 30, 90), "");
  EXPECT_NE(checked("[0, 10]", 30, 90), "");
}

TEST(Patterns, OfSeveralAsksAreOneALayer) {
  const auto merged = merge_patterns({{.layer = 3, .keys = 8, .heads = {1}},
                                      {.layer = 0, .keys = 2, .heads = {0, 5}},
                                      {.layer = 3, .keys = 4, .heads = {0, 1, 9}}});
  ASSERT_EQ(merged.size(), 2u);
  EXPECT_EQ(merged[0], (tap::CapturePattern{.layer = 0, .keys = 2, .heads = {0, 5}}));
  EXPECT_EQ(merged[1], (tap::CapturePattern{.layer = 3, .keys = 8, .heads = {0, 1, 9}}));
}

}  // namespace
}  // namespace rudder::steer::capture
