// Steering of a residual that has several streams: what arrives from a request, and what the device
// makes of it, beside the same at a model whose residual is one of them.
#include "rudder/steer/streams.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "rudder/steer/parse_test_support.h"
#include "rudder/testing/reference_taps.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;
using Values = std::vector<double>;

constexpr tap::Point kPost = {3, tap::Site::kResidPost};
const Values kFirst = {0.5, -1, 2, 0.25};
const Values kSecond = {-0.75, 1.5, 3, -2};

Model model_of_streams(int32_t count) {
  Model model = small_model();
  model.geometry.residual = {
      count == 1 ? tap::ResidualKind::kOneStream : tap::ResidualKind::kMixedStreams, count};
  return model;
}

Result<ParsedSteering> parsed_with(const std::string& body, int32_t streams = 2) {
  return parse_steering(object_of(body), model_of_streams(streams), OneName());
}

// The program of the request, as it changes a row of resid_post of layer 3.
Values steered_row(const std::string& body, const Values& row, int32_t streams) {
  const Model model = model_of_streams(streams);
  const auto steering = parse_steering(object_of(body), model, OneName());
  if (!steering) {
    ADD_FAILURE() << body << ": " << steering.error().to_string();
    return {};
  }
  const auto config = Config::build(std::make_shared<const Model>(model), steering->ops);
  if (!config) {
    ADD_FAILURE() << config.error().to_string();
    return {};
  }
  testing::ReferenceLatches latches;
  return testing::reference_program(*(*config)->program(1).program, kPost, row, 0, latches);
}

Values joined(const Values& first, const Values& second) {
  Values both = first;
  both.insert(both.end(), second.begin(), second.end());
  return both;
}

void expect_row_near(const Values& got, const Values& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 1e-5) << what << " " << i;
}

std::string element_body(const std::string& op, const std::string& stream) {
  return fmt::format(R"({{"steering": {{"site": "resid_post", "layers": 3, {}{}}}}})", op,
                     stream.empty() ? "" : fmt::format(R"(, "stream": {})", stream));
}

TEST(Streams, AnOpOfAStreamIsTheOpOnItsRow) {
  const std::string vector = R"("vector": [0.5, 1, -1, 0.25], )";
  const std::string second = R"("target": [1, -0.5, 0.25, 2])";
  const std::string ops[] = {
      R"("op": "patch", "scale": 0.75)",
      R"("op": "ablate")",
      R"("op": "mean_ablate", "mean": [1, 2, 3, 4])",
      R"("op": "orthogonal", "coefficient": 1.75)",
      R"("op": "swap", )" + second,
      R"("op": "rotate", "angle": 40, )" + second,
      R"("op": "rotate", "angle": 40, "mode": "by", )" + second,
      R"("op": "add", "scale": 3)",
      R"("op": "add", "scale": 3, "gate": {"probe": {"vector": [1, 0, 0, 1], "threshold": 0}})",
      R"("op": "add_norm", "scale": 0.5)",
      R"("op": "add_renorm", "scale": 2)",
      R"("op": "add_renorm", "scale": 2, "only_if_grew": true)",
      R"("op": "clamp", "lo": -0.1, "hi": 0.1)",
      R"("op": "set", "value": 6)",
  };
  for (const std::string& op : ops) {
    const Values first = steered_row(element_body(vector + op, ""), kFirst, 1);
    const Values other = steered_row(element_body(vector + op, ""), kSecond, 1);
    const Values row = joined(kFirst, kSecond);
    expect_row_near(steered_row(element_body(vector + op, "0"), row, 2), joined(first, kSecond),
                    op + " at 0");
    expect_row_near(steered_row(element_body(vector + op, "1"), row, 2), joined(kFirst, other),
                    op + " at 1");
    expect_row_near(steered_row(element_body(vector + op, R"("all")"), row, 2),
                    joined(first, other), op + " at all");
    // A residual of one stream has that one.
    expect_row_near(steered_row(element_body(vector + op, "0"), kFirst, 1), first, op);
    expect_row_near(steered_row(element_body(vector + op, R"("all")"), kFirst, 1), first, op);
  }
  const std::string zeros = R"("op": "patch", "source": "zeros")";
  expect_row_near(steered_row(element_body(zeros, "1"), joined(kFirst, kSecond), 2),
                  joined(kFirst, Values(4)), "zeros");
}

// A whole row is a vector too; with a stream, its part of that.
TEST(Streams, AWholeRowNeedsNone) {
  const std::string add = R"("op": "add", "vector": [1, 2, 3, 4, 5, 6, 7, 8])";
  const Values row = joined(kFirst, kSecond);
  const Values first = {1.5, 1, 5, 4.25};
  const Values second = {4.25, 7.5, 10, 6};
  expect_row_near(steered_row(element_body(add, ""), row, 2), joined(first, second), "whole");
  expect_row_near(steered_row(element_body(add, "1"), row, 2), joined(kFirst, second), "its part");
  expect_row_near(steered_row(element_body(add, R"("all")"), row, 2), joined(first, second),
                  "all parts");
}

TEST(Streams, TiersTakeThem) {
  const Values row = joined(kFirst, kSecond);
  const auto tier = [](const std::string& entry) {
    return fmt::format(R"({{"steering_vectors": {{"resid_post": {{"3": {}}}}}}})", entry);
  };
  const Values second = {0.25, 3.5, 6, 2};
  expect_row_near(steered_row(tier(R"({"vector": [1, 2, 3, 4], "stream": 1})"), row, 2),
                  joined(kFirst, second), "one");
  expect_row_near(
      steered_row(tier(R"({"vector": [1, 2, 3, 4], "stream": "all", "scale": 1})"), row, 2),
      joined({1.5, 1, 5, 4.25}, second), "all");
  // As a capture gives rows: 1, 2, 3, 4 in float32.
  const std::string packed =
      R"("dtype": "float32", "shape": [1, 4], "layer_indices": [3], "data": "AACAPwAAAEAAAEBAAACAQA==")";
  const auto site = [&](const std::string& more) {
    return fmt::format(R"({{"steering_vectors": {{"resid_post": {{{}{}}}}}}})", packed, more);
  };
  expect_row_near(steered_row(site(R"(, "stream": 1)"), row, 2), joined(kFirst, second), "packed");
  expect_row_near(
      steered_row(site(R"(, "residual": {"kind": "mixed_streams", "streams": 2, "stream": 1,
                           "layout": ["hidden"]})"),
                  row, 2),
      joined(kFirst, second), "as captured");
}

TEST(Streams, ProbesOfOtherPointsTakeOne) {
  const std::string score = R"("op": "add", "vector": [1, 0, 0, 0], "stream": 0, "gate":
      {"prompt_score": {"site": "resid_post", "layer": 1, "vector": [1, 2, 3, 4], "threshold": 0)";
  const auto one = parsed_with(element_body(score + R"(, "stream": 1}})", ""));
  ASSERT_TRUE(one) << one.error().to_string();
  const auto values = one->ops.at(0).gate.vector.values();
  EXPECT_EQ(std::vector<float>(values.begin(), values.end()),
            (std::vector<float>{0, 0, 0, 0, 1, 2, 3, 4}));
  const auto all = parsed_with(element_body(score + R"(, "stream": "all"}})", ""));
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().where, "steering.gate.prompt_score.stream");
  const auto none = parsed_with(element_body(score + "}}", ""));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().where, "steering.gate.prompt_score.vector");
}

// Of sums of blocks, those that no layer in front of the point has finished: an op on one would
// change what nobody reads.
TEST(Streams, ABlockIsThereWhereALayerHasFinishedIt) {
  Model model = small_model();
  model.geometry.residual = {tap::ResidualKind::kBlockSums, 3, 2};
  const auto parsed_at = [&](const std::string& site, int32_t layer, int32_t stream) {
    return parse_steering(
        object_of(fmt::format(R"({{"steering": {{"site": "{}", "layers": {}, "op": "add",
                                  "vector": [1, 2, 3, 4], "stream": {}}}}})",
                              site, layer, stream)),
        model, OneName());
  };
  EXPECT_EQ(tap::residual_kind_name(model.geometry.residual.kind), "block_sums");
  // The first branch of layers 0 and 2 finishes a block.
  constexpr int32_t kFirst[] = {0, 1, 5};  // twice the layer, and one more for resid_post
  for (int32_t stream = 0; stream < 3; ++stream) {
    for (int32_t layer = 0; layer < model.geometry.num_layers; ++layer) {
      for (const bool is_post : {false, true}) {
        const auto got = parsed_at(is_post ? "resid_post" : "resid_pre", layer, stream);
        EXPECT_EQ(got.has_value(), 2 * layer + (is_post ? 1 : 0) >= kFirst[stream])
            << "stream " << stream << ", layer " << layer << ", post " << is_post;
      }
    }
  }
  const auto early = parsed_at("resid_pre", 2, 2);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().where, "steering.stream");
  EXPECT_EQ(early.error().message, "block 1 is finished behind resid_pre of layer 2");
  EXPECT_EQ(parsed_at("resid_pre", 0, 1).error().message,
            "block 0 is finished behind resid_pre of layer 0");
}

TEST(Streams, WhatDoesNotFitIsToldWhatItFits) {
  const auto expect_refused = [](const Result<ParsedSteering>& got, const std::string& where,
                                 const std::string& message) {
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(got.error().where, where);
    EXPECT_EQ(got.error().message, message);
  };
  const std::string fits =
      "a vector of 4 elements; resid_post of layer 3 has 8: 4 elements fit attn_in, attn_out, "
      "mlp_in, mlp_out, and with \"stream\" resid_pre, resid_mid, resid_post";
  expect_refused(parsed_with(element_body(R"("op": "add", "vector": [1, 2, 3, 4])", "")),
                 "steering.vector", fits);
  expect_refused(parsed_with(R"({"steering_vectors": {"resid_post": {"3": [1, 2, 3, 4]}}})"),
                 "steering_vectors.resid_post.3", fits);
  expect_refused(
      parsed_with(R"({"steering_vectors": {"resid_post": {"3": {"vector": [1, 2, 3, 4]}}}})"),
      "steering_vectors.resid_post.3.vector", fits);
  expect_refused(
      parsed_with(element_body(R"("op": "add", "vector": [1, 2, 3])", "0")), "steering.vector",
      "a vector of 3 elements; resid_post of layer 3 has 8: no point of this layer has 3");
  const std::string add = R"("op": "add", "vector": [1, 2, 3, 4])";
  const std::string numbers =
      "\"all\" or a number from 0 to 1 is needed: the residual of this model has 2 streams";
  for (const char* const stream : {"2", "-1", "0.5", "\"both\"", "[0]", "true", "{}"}) {
    expect_refused(parsed_with(element_body(add, stream)), "steering.stream", numbers);
  }
  expect_refused(parsed_with(element_body(add, "1"), 1), "steering.stream",
                 "\"all\" or a number from 0 to 0 is needed: the residual of this model has 1 "
                 "stream");
  expect_refused(
      parsed_with(
          R"({"steering": {"op": "add", "site": "mlp_out", "layers": 3, "vector": [1, 2, 3, 4],
                              "stream": 0}})"),
      "steering.stream", "resid_pre, resid_mid and resid_post have streams, mlp_out has none");
}

}  // namespace
}  // namespace rudder::steer
