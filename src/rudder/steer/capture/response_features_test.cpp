// The option `dictionary` of the consumer `response`.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/steer/capture/response_test_support.h"
#include "rudder/steer/capture/result_json.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

TEST_F(ResponseTest, FeaturesAreThoseOfTheRowsWhereTheDictionaryReads) {
  start();
  const auto features_of = [&](int32_t position) {
    std::vector<float> features(12);
    encode(*set_->layers[0], row(position, tap::Site::kResidPost, 2), features);
    return features;
  };
  const json::value top = payload_of(capture(
      R"({"response": {"dictionary": "d", "top": 3, "positions": "all", "sites": {"resid_post": 1},
                       "values": ["norms"]}})"));
  EXPECT_EQ(top.at("norms").as_object().size(), 1u);
  const json::value& told = top.at("dictionary");
  EXPECT_EQ(told.at("name"), "d");
  EXPECT_EQ(told.at("layer"), 2);
  ASSERT_EQ(told.at("features").as_array().size(), 7u);
  for (int32_t position = 0; position < 7; ++position) {
    const auto expected = top_features(features_of(position), 3);
    const json::array& numbers = told.at("features").at(static_cast<size_t>(position)).as_array();
    ASSERT_EQ(numbers.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(numbers[i], expected[i].feature);
  }
  const std::string listed =
      R"({"response": {"dictionary": "d", "features": [4, 0], "positions": "all_generated"}})";
  const json::value values = payload_of(capture(listed)).at("dictionary").at("values");
  ASSERT_EQ(values.as_array().size(), 3u);
  for (int32_t position = 4; position < 7; ++position) {
    const json::array& got = values.at(static_cast<size_t>(position - 4)).as_array();
    EXPECT_NEAR(got.at(0).to_number<double>(), features_of(position)[4], 1e-4);
    EXPECT_NEAR(got.at(1).to_number<double>(), features_of(position)[0], 1e-4);
  }
  EXPECT_EQ(payload_of(capture(listed, true)).at("events"), 3);
  const std::vector<CaptureEvent> events = inbound_.take_events();
  ASSERT_EQ(events.size(), 3u);
  std::string text;
  append_event_values(text, events[1]);
  EXPECT_EQ(parse_json(text, "event")->at("dictionary").at("values"), values.at(1));
}

TEST_F(ResponseTest, AWrongDictionaryIsNamed) {
  start();
  for (const auto& [fields, where] : std::vector<std::pair<std::string, std::string>>{
           {R"("dictionary": "x")", "dictionary"},
           {R"("dictionary": 3)", "dictionary"},
           {R"("dictionary": "d", "layer": 1)", "layer"},
           {R"("dictionary": "d", "layer": "2")", "layer"},
           {R"("dictionary": "d", "top": 0)", "top"},
           {R"("dictionary": "d", "top": 1025)", "top"},
           {R"("dictionary": "d", "features": [])", "features"},
           {R"("dictionary": "d", "features": [3, 12])", "features[1]"},
           {R"("dictionary": "d", "features": [3], "top": 2)", "features"},
           {R"("sites": {"resid_post": 1}, "top": 2)", "top"},
           {R"("sites": {"resid_post": 1}, "features": [2])", "features"}}) {
    const json::value field = json::parse(R"({"response": {)" + fields + "}}");
    const auto refused = dispatcher_->spec(&field);
    ASSERT_FALSE(refused.has_value()) << fields;
    EXPECT_EQ(refused.error().where, "capture.response." + where);
  }
}

}  // namespace
}  // namespace rudder::steer::capture
