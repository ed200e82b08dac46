// The option `dictionary` of the consumer `response`.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/steer/capture/host_feature_reader.h"
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
    const auto expected = features::top_features(features_of(position), 3);
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

// The host's, which the first call keeps waiting at a gate; it may have no room, or fail.
class GatedReader final : public features::FeatureReader {
 public:
  Result<void> check(const features::Dictionary& /*dictionary*/) const override {
    if (!no_room.empty()) return fail(ErrorCode::kInvalidArgument, no_room);
    return {};
  }
  Result<void> read(std::span<const features::FeatureRow> rows, tensor::DType dtype,
                    std::vector<std::vector<features::FeatureValue>>& told) override {
    sizes.push_back(rows.size());
    if (sizes.size() == 1) gate.wait();
    if (!fault.empty()) return fail(ErrorCode::kInternal, fault);
    return host_->read(rows, dtype, told);
  }
  size_t rows_together() const override { return 64; }
  features::FeatureReaderStats stats() const override { return host_->stats(); }

  Gate gate;
  std::vector<size_t> sizes;  // of calls
  std::string no_room;
  std::string fault;

 private:
  const std::shared_ptr<features::FeatureReader> host_ = make_host_feature_reader();
};

class TogetherTest : public ResponseTest {
 protected:
  static constexpr size_t kRequests = 6;

  // Requests that ask for these in turn, with a token each, and wait for a reader that is at work.
  std::vector<ConsumerResult> capture_at_once(const std::vector<std::string>& fields) {
    start();
    std::vector<Inbound> inbound(kRequests);
    std::vector<CaptureId> ids;
    std::vector<std::shared_ptr<const CaptureSpec>> specs;
    for (size_t i = 0; i < kRequests; ++i) {
      specs.push_back(make_spec(*dispatcher_, fields[i % fields.size()]));
      ids.push_back(dispatcher_->begin({.spec = specs.back(),
                                        .request_id = "r",
                                        .choice = 0,
                                        .prompt_len = 1,
                                        .stream = false,
                                        .wait = true,
                                        .on_results = inbound[i].results(),
                                        .on_event = {}}));
    }
    const auto push = [&](int32_t position) {
      FakeStep step(geometry_);
      for (size_t i = 0; i < kRequests; ++i) {
        step.add(ids[i], sequence(i), *specs[i], position, position + 1);
      }
      step.push_to(*dispatcher_);
    };
    push(0);
    EXPECT_TRUE(eventually([&] { return queued_records(*specs[0]) == kRequests; }));
    push(1);
    EXPECT_TRUE(eventually([&] { return queued_records(*specs[0]) == 2 * kRequests; }));
    reader_->gate.open();
    for (const CaptureId id : ids) dispatcher_->end(id);
    std::vector<ConsumerResult> results;
    for (Inbound& one : inbound) results.push_back(one.wait().at(0));
    return results;
  }
  static uint64_t sequence(size_t request) { return 100 + request; }
  // All specs have records of one size.
  size_t queued_records(const CaptureSpec& spec) const {
    const auto bytes = tap::record_elements(*spec.set, geometry_) * int64_t{sizeof(tensor::BF16)};
    return static_cast<size_t>(dispatcher_->stats().consumers.at(0).queued_bytes / bytes);
  }
  std::vector<float> row_of(size_t request, int32_t position, int32_t layer) const {
    const tap::CapturePoint point{{layer, tap::Site::kResidPost}, false};
    std::vector<float> values;
    for (int32_t i = 0; i < geometry_.hidden; ++i) {
      const uint16_t bits = row_value(sequence(request), position, point, i);
      values.push_back(tensor::to_float(tensor::BF16{bits}));
    }
    return values;
  }
  std::vector<float> features_of(size_t request, int32_t position) {
    std::vector<float> features(12);
    encode(*set_->layers[0], row_of(request, position, 2), features);
    return features;
  }

  const std::shared_ptr<GatedReader> reader_ = std::make_shared<GatedReader>();
};

// Each gets its own, whatever the others ask.
TEST_F(TogetherTest, WhatWaitsIsReadInOneCall) {
  features_ = reader_;
  const std::vector<ConsumerResult> results = capture_at_once(
      {R"({"response": {"dictionary": "d", "top": 3, "positions": "all"}})",
       R"({"response": {"dictionary": "d", "features": [7, 2], "positions": "all"}})"});
  // One call, if the consumer's thread woke when all rows were there.
  ASSERT_FALSE(reader_->sizes.empty());
  EXPECT_LE(reader_->sizes.size(), 4u);
  EXPECT_GE(std::ranges::max(reader_->sizes), kRequests);
  EXPECT_EQ(std::accumulate(reader_->sizes.begin(), reader_->sizes.end(), size_t{0}),
            2 * kRequests);
  EXPECT_EQ(dispatcher_->stats().features.rows, 2 * kRequests);
  EXPECT_FALSE(dispatcher_->stats().features.on_device);
  for (size_t i = 0; i < kRequests; ++i) {
    ASSERT_EQ(results[i].status, Status::kOk) << results[i].error;
    const json::value told = payload_of(results[i]).at("dictionary");
    for (int32_t position = 0; position < 2; ++position) {
      const std::vector<float> features = features_of(i, position);
      const auto at = static_cast<size_t>(position);
      if (i % 2 == 1) {
        const json::array& values = told.at("values").at(at).as_array();
        EXPECT_NEAR(values.at(0).to_number<double>(), features[7], 1e-4);
        EXPECT_NEAR(values.at(1).to_number<double>(), features[2], 1e-4);
        continue;
      }
      const auto expected = features::top_features(features, 3);
      const json::array& numbers = told.at("features").at(at).as_array();
      ASSERT_EQ(numbers.size(), expected.size());
      for (size_t n = 0; n < expected.size(); ++n) EXPECT_EQ(numbers[n], expected[n].feature);
    }
  }
}

// Of the lens, too: each gets as many tokens as it asked for.
TEST_F(TogetherTest, TheLensReadsWhatWaitsInOneCall) {
  features_ = reader_;
  const std::vector<ConsumerResult> results = capture_at_once(
      {R"({"response": {"dictionary": "d", "positions": "all", "lens": {"layers": [1, 3], "top": 2}}})",
       R"({"response": {"dictionary": "d", "positions": "all", "lens": {"layers": [1, 3], "top": 4}}})"});
  EXPECT_LE(lens_->calls, 4);
  for (size_t i = 0; i < kRequests; ++i) {
    ASSERT_EQ(results[i].status, Status::kOk) << results[i].error;
    ASSERT_TRUE(results[i].values.has_value());
    const std::vector<LensReading>& lens = results[i].values->lens;
    ASSERT_EQ(lens.size(), 2u);
    for (size_t layer = 0; layer < 2; ++layer) {
      ASSERT_EQ(lens[layer].tokens.size(), 2u);
      for (int32_t position = 0; position < 2; ++position) {
        SortingLens alone;
        std::vector<tap::LensToken> expected;
        const std::vector<float> row = row_of(i, position, lens[layer].layer);
        ASSERT_TRUE(alone.read(row, i % 2 == 0 ? 2 : 4, expected).has_value());
        const std::vector<tap::LensToken>& told = lens[layer].tokens[static_cast<size_t>(position)];
        EXPECT_TRUE(
            std::ranges::equal(told, expected, {}, &tap::LensToken::token, &tap::LensToken::token));
      }
    }
  }
}

TEST_F(TogetherTest, AFaultOfTheLensIsThatOfWhoAsked) {
  features_ = reader_;
  lens_->fault = "the head has fallen off";
  const std::vector<ConsumerResult> results = capture_at_once(
      {R"({"response": {"dictionary": "d", "positions": "all", "lens": {"layers": [2]}}})",
       R"({"response": {"dictionary": "d", "positions": "all"}})"});
  for (size_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(results[i].status, i % 2 == 0 ? Status::kError : Status::kOk);
    if (i % 2 == 0) {
      EXPECT_NE(results[i].error.find("fallen off"), std::string::npos) << results[i].error;
    }
  }
}

TEST_F(TogetherTest, AFaultOfTheReaderIsThatOfWhoAsked) {
  features_ = reader_;
  reader_->fault = "the device has fallen off the bus";
  const std::vector<ConsumerResult> results = capture_at_once(
      {R"({"response": {"dictionary": "d", "positions": "all"}})",
       R"({"response": {"sites": {"resid_post": 2}, "values": ["norms"], "positions": "all"}})"});
  for (size_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(results[i].status, i % 2 == 0 ? Status::kError : Status::kOk);
    if (i % 2 == 0) {
      EXPECT_NE(results[i].error.find("off the bus"), std::string::npos) << results[i].error;
    }
  }
}

TEST_F(TogetherTest, ADictionaryWithoutRoomIsRefused) {
  features_ = reader_;
  reader_->no_room = "its encoder takes 75 MB";
  start();
  const json::value field = json::parse(R"({"response": {"dictionary": "d"}})");
  const auto refused = dispatcher_->spec(&field);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().where, "capture.response.dictionary");
  EXPECT_EQ(refused.error().message, "its encoder takes 75 MB");
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
