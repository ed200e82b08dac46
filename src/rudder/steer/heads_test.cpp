// Ops on some heads of attn_z: what arrives from a request, and what the device makes of it, beside
// the op on the row of these heads alone.
#include "rudder/steer/heads.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "rudder/steer/parse_test_support.h"
#include "rudder/testing/reference_taps.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;
using Values = std::vector<double>;

// Layers of 4 heads of 2, of 3 of 4 and of 1 of 12.
tap::Geometry three_layers() {
  tap::Geometry geometry;
  geometry.num_layers = 3;
  geometry.hidden = 8;
  geometry.mlp_width.assign(3, 16);
  geometry.heads = {{4, 2}, {3, 4}, {1, 12}};
  geometry.sites.assign(3, tap::dense_sites_but(tap::Site::kFinalNorm));
  return geometry;
}

std::vector<tap::Point> at_z(const std::vector<int32_t>& layers) {
  std::vector<tap::Point> points;
  for (const int32_t layer : layers) points.push_back({layer, tap::Site::kAttnZ});
  return points;
}

TEST(Heads, EveryForm) {
  const std::pair<const char*, PartList> cases[] = {
      {"2", {2}},
      {"-1", {3}},
      {R"("0,2-3")", {0, 2, 3}},
      {"[3, 1]", {3, 1}},
      {R"({"heads": [3], "ranges": [[0, 1]]})", {3, 0, 1}},
      {R"("all")", {}},
      {R"("0-3")", {}},
      {"[3, 2, 1, 0]", {3, 2, 1, 0}},
  };
  for (const auto& [text, heads] : cases) {
    const auto read = read_heads(json::parse(text), at_z({0}), three_layers(), "heads");
    ASSERT_TRUE(read) << text << ": " << read.error().to_string();
    EXPECT_EQ(read->at(0), heads) << text;
  }
  // By layer: the last head of each.
  const auto last = read_heads(-1, at_z({0, 1, 2}), three_layers(), "heads");
  ASSERT_TRUE(last);
  EXPECT_EQ(*last, (std::vector<PartList>{{3}, {2}, {}}));
}

TEST(Heads, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"4", "heads"},         {"-5", "heads"},
      {"[]", "heads"},        {"null", "heads"},
      {"[1, 1]", "heads[1]"}, {R"("2-1")", "heads"},
      {"[1, 9]", "heads[1]"}, {R"({"layers": [1]})", "heads.layers"},
  };
  for (const auto& [text, where] : cases) {
    const auto read = read_heads(json::parse(text), at_z({0}), three_layers(), "heads");
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument) << text;
    EXPECT_EQ(read.error().where, where) << text;
  }
  const auto few = read_heads(3, at_z({0, 1}), three_layers(), "heads");
  ASSERT_FALSE(few);
  EXPECT_NE(few.error().message.find("head 3 of layer 1, which has 3 heads"), std::string::npos)
      << few.error().message;
  const std::vector<tap::Point> other = {{0, tap::Site::kAttnOut}};
  const auto none = read_heads(0, other, three_layers(), "heads");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message, "only attn_z has heads, attn_out has none");
}

// The program of the only element of a request, as it changes a row of attn_z of layer 3.
Values steered(const std::string& element, const Values& row, int32_t heads_of_model = 4) {
  Model model = small_model();
  model.geometry.heads.assign(16, {heads_of_model, 2});
  const auto parsed = parse_steering(
      object_of(fmt::format(R"({{"steering": {{"site": "attn_z", "layers": 3, {}}}}})", element)),
      model, OneName());
  if (!parsed) {
    ADD_FAILURE() << parsed.error().to_string();
    return {};
  }
  const auto config = Config::build(std::make_shared<const Model>(model), parsed->ops);
  if (!config) {
    ADD_FAILURE() << config.error().to_string();
    return {};
  }
  testing::ReferenceLatches latches;
  return testing::reference_program(*(*config)->program(1).program, {3, tap::Site::kAttnZ}, row, 0,
                                    latches);
}

// On some heads an op does what it does on the row of these heads side by side, and nothing to
// others. The oracle is the same op at a model that has these heads alone.
TEST(Heads, AnOpWorksOnTheRowOfItsHeads) {
  const Values row = {0.5, -1, 2, 0.25, -0.75, 1.5, 3, -2};
  const std::string second = R"("target": [0.5, 1, -1, 2])";
  const std::string ops[] = {
      R"("op": "patch", "scale": 0.75)",
      R"("op": "ablate")",
      R"("op": "mean_ablate", "mean": [1, 2, 3, 4])",
      R"("op": "orthogonal", "coefficient": 1.75)",
      R"("op": "swap", )" + second,
      R"("op": "rotate", "angle": 40, )" + second,
      R"("op": "rotate", "angle": 40, "mode": "by", )" + second,
      R"("op": "add", "scale": 3)",
      R"("op": "add_norm", "scale": 0.5)",
      R"("op": "add_renorm", "scale": 2)",
      R"("op": "add_renorm", "scale": 2, "only_if_grew": true)",
      R"("op": "clamp", "lo": -0.1, "hi": 0.1)",
      R"("op": "set", "value": 6)",
  };
  for (const auto& [text, heads] : {std::pair<std::string, PartList>("[0, 2]", {0, 2}),
                                    std::pair<std::string, PartList>("[-1, 1]", {3, 1})}) {
    Values part;
    for (const int32_t head : heads) {
      part.insert(part.end(), row.begin() + 2 * head, row.begin() + 2 * head + 2);
    }
    for (const std::string& op : ops) {
      const std::string element = op + R"(, "vector": [1, -0.5, 0.25, 2])";
      const Values changed = steered(element, part, 2);
      Values expected = row;
      ASSERT_EQ(changed.size(), 4u) << op;
      for (size_t i = 0; i < heads.size(); ++i) {
        std::copy_n(changed.begin() + 2 * static_cast<int64_t>(i), 2,
                    expected.begin() + 2 * heads[i]);
      }
      const Values got = steered(fmt::format(R"({}, "heads": {})", element, text), row);
      ASSERT_EQ(got.size(), row.size()) << op;
      for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << op << text;
      EXPECT_NE(got, row) << op;
    }
  }
}

TEST(Heads, AllHeadsAreTheWholeRow) {
  const std::string add = R"("site": "attn_z", "layers": 3, "vector": [1, 2, 3, 4, 5, 6, 7, 8])";
  const auto key = [&](const std::string& op, const std::string& heads) {
    const auto config =
        config_of(fmt::format(R"({{"steering": {{"op": "{}", {}{}}}}})", op, add, heads));
    EXPECT_TRUE(config.has_value()) << config.error().to_string();
    return (*config)->program(1).key;
  };
  for (const std::string op : {"add", "add_norm", "patch"}) {
    EXPECT_EQ(key(op, R"(, "heads": "all")"), key(op, ""));
    EXPECT_EQ(key(op, R"(, "heads": "0-3")"), key(op, ""));
    EXPECT_FALSE(key(op, R"(, "heads": [1, 0, 2, 3])") == key(op, ""));
  }
}

TEST(Heads, WrongRequestsNameTheField) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"("site": "attn_out", "layers": 1, "heads": 0, "vector": [1, 2, 3, 4])", "steering.heads",
       "only attn_z has heads"},
      {R"("site": "attn_z", "layers": 1, "heads": 4, "vector": [1, 2])", "steering.heads",
       "head 4 of layer 1, which has 4 heads"},
      {R"("site": "attn_z", "layers": 1, "heads": 0, "vector": [1, 2, 3, 4, 5, 6, 7, 8])",
       "steering.vector", "a vector of 8 elements; 1 heads of layer 1 have 2"},
      {R"("site": "attn_z", "layers": 1, "vector": [1, 2])", "steering.vector",
       "attn_z of layer 1 has 8"},
  };
  for (const auto& [fields, where, message] : cases) {
    const auto parsed = parse(fmt::format(R"({{"steering": {{"op": "add", {}}}}})", fields));
    ASSERT_FALSE(parsed) << fields;
    EXPECT_EQ(parsed.error().where, where) << parsed.error().message;
    EXPECT_NE(parsed.error().message.find(message), std::string::npos) << parsed.error().message;
  }
}

}  // namespace
}  // namespace rudder::steer
