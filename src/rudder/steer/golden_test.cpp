// The published formulas, in float64 (tests/steering/cases.json), against programs that this room
// makes from request JSON, run by the reference of the taps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>
#include <map>
#include <set>

#include "rudder/base/json.h"
#include "rudder/steer/parse_test_support.h"
#include "rudder/testing/reference_taps.h"
#include "rudder/weights/mapped_file.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr double kTolerance = 1e-6;  // constants and vectors are f32

json::array cases() {
  const auto text = weights::read_text_file(
      std::string(RUDDER_SOURCE_DIR) + "/tests/steering/cases.json", 1 << 20);
  return parse_json(*text, "cases.json")->at("cases").as_array();
}

std::vector<double> numbers(const json::value& list) {
  return json::value_to<std::vector<double>>(list);
}

// One layer as wide as the case.
Model model_of(int32_t width) {
  Model model = test_model();
  model.geometry.hidden = width;
  return model;
}

json::object element(std::string_view op, const json::value& vector, json::object rest = {}) {
  rest["op"] = json::string_view(op);
  rest["site"] = "resid_post";
  rest["layers"] = 1;
  rest["vector"] = vector;
  return rest;
}

std::vector<double> run(const json::object& op, std::vector<double> h) {
  const Model model = model_of(static_cast<int32_t>(h.size()));
  const json::object body = {{"steering", op}};
  const auto parsed = parse_steering(body, model, OneName());
  EXPECT_TRUE(parsed.has_value()) << parsed.error().to_string();
  const auto config = Config::build(std::make_shared<const Model>(model), parsed->ops);
  EXPECT_TRUE(config.has_value()) << config.error().to_string();
  testing::ReferenceLatches latches;
  return testing::reference_program(*(*config)->program(1).program, {1, tap::Site::kResidPost},
                                    std::move(h), 0, latches);
}

using Element = std::function<json::object(const json::object&)>;

// How each case of an op is asked for.
const std::map<std::string, Element>& elements() {
  using In = const json::object&;
  static const std::map<std::string, Element> kElements = {
      {"add",
       [](In in) {
         return element("add", in.at("v"), {{"scale", in.at("s")}});
       }},
      {"add_norm_match",
       [](In in) {
         return element("add_norm", in.at("v"), {{"scale", in.at("s")}});
       }},
      {"add_renorm",
       [](In in) {
         return element("add_renorm", in.at("v"), {{"scale", in.at("s")}});
       }},
      {"add_renorm_if_grew",
       [](In in) {
         return element("add_renorm", in.at("v"), {{"scale", in.at("s")}, {"only_if_grew", true}});
       }},
      {"ablate", [](In in) { return element("ablate", in.at("v")); }},
      {"ablate_half",
       [](In in) {
         return element("ablate", in.at("v"), {{"scale", in.at("alpha")}});
       }},
      {"mean_ablate",
       [](In in) {
         return element("mean_ablate", in.at("v"), {{"mean", in.at("mu")}});
       }},
      {"orthogonal",
       [](In in) {
         return element("orthogonal", in.at("v"), {{"coefficient", in.at("c")}});
       }},
      {"clamp_value",
       [](In in) {
         return element("set", in.at("v"), {{"value", in.at("lo")}});
       }},
      {"clamp_range_strength",
       [](In in) {
         return element("clamp", in.at("v"),
                        {{"lo", in.at("lo")}, {"hi", in.at("hi")}, {"scale", in.at("strength")}});
       }},
      {"swap",
       [](In in) {
         return element("swap", in.at("s"), {{"target", in.at("t")}});
       }},
      {"rotate_target_200",
       [](In in) {
         return element("rotate", in.at("v1"), {{"target", in.at("v2")}, {"angle", in.at("deg")}});
       }},
      {"rotate_target_adaptive",
       [](In in) {
         return element("rotate", in.at("v1"),
                        {{"target", in.at("v2")}, {"angle", in.at("deg")}, {"adaptive", true}});
       }},
      {"rotate_offset_30", [](In in) {
         return element("rotate", in.at("v1"),
                        {{"target", in.at("v2")}, {"angle", in.at("deg")}, {"mode", "by"}});
       }}};
  return kElements;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], kTolerance) << i;
}

TEST(SteeringGolden, EveryOpIsItsPublishedFormula) {
  std::set<std::string> seen;
  for (const json::value& value : cases()) {
    const std::string name(value.at("name").as_string());
    const auto found = elements().find(name);
    if (found == elements().end()) continue;
    SCOPED_TRACE(name);
    const json::object& in = value.at("in").as_object();
    expect_near(run(found->second(in), numbers(in.at("h"))), numbers(value.at("out")));
    seen.insert(name);
  }
  EXPECT_EQ(seen.size(), elements().size());
}

// The gate's value is read off an add of (1, 0, ..., 0).
TEST(SteeringGolden, TheSoftGateIsASigmoidOfTheProbe) {
  for (const json::value& value : cases()) {
    if (value.at("name").as_string() != "gate_sigmoid") continue;
    const json::object& in = value.at("in").as_object();
    const std::vector<double> h = numbers(in.at("h"));
    std::vector<double> one(h.size());
    one[0] = 1;
    const json::object probe = {
        {"vector", in.at("probe")}, {"threshold", in.at("thr")}, {"sharpness", in.at("sharp")}};
    const auto steered =
        run(element("add", json::value_from(one), {{"gate", {{"probe", probe}}}}), h);
    EXPECT_NEAR(steered[0] - h[0], value.at("out").as_double(), kTolerance);
  }
}

TEST(SteeringGolden, ThePackedFormIsReadAsItsAuthorReadsIt) {
  for (const json::value& value : cases()) {
    if (value.at("name").as_string() != "packed_wire") continue;
    Model model = model_of(2);
    model.geometry.num_layers = 8;
    model.geometry.heads.assign(8, {2, 2});
    model.geometry.sites.assign(8, tap::dense_sites_but(tap::Site::kFinalNorm));
    model.geometry.mlp_width.assign(8, 4);
    const json::object body = {
        {"steering_vectors", {{"pre_attn", value.at("out").at("pre_attn")}}}};
    const auto parsed = parse_steering(body, model, OneName());
    ASSERT_TRUE(parsed.has_value()) << parsed.error().to_string();
    const auto config = Config::build(std::make_shared<const Model>(model), parsed->ops);
    const KeyedProgram program = (*config)->program(1);
    ASSERT_EQ(program.program->ops.size(), 2U);
    for (const tap::ProgramOp& op : program.program->ops) {
      EXPECT_EQ(op.point.site, tap::Site::kResidPre);
      const auto expected =
          numbers(value.at("out").at("decoded").at(std::to_string(op.point.layer)));
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(program.program->vectors[static_cast<size_t>(op.op.v1) + i], expected[i]);
      }
    }
  }
}

// What the file has besides, each for a reason: nothing is passed over unseen.
TEST(SteeringGolden, WhatIsNotRunIsKnown) {
  const std::map<std::string, int> others = {
      {"gate_sigmoid", 1},   // above
      {"packed_wire", 1},    // above
      {"rhizo_hash", 1},     // another project's hash: keys here are of another kind
      {"rotate_toward", 1},  // a turn in the plane of h and a vector: no op
      {"cast_score", 1},     // |cos| of a mean: scores here are means of projections
      {"sae", 30},          {"topk_subset_mismatch", 1}, {"clt", 1}};  // sparse autoencoders
  std::map<std::string, int> seen;
  for (const json::value& value : cases()) {
    const std::string name(value.at("name").as_string());
    if (!elements().contains(name)) ++seen[name];
  }
  EXPECT_EQ(seen, others);
}

// A K-axis ablation leaves nothing in the span of its axes, and what is outside as it was.
TEST(SteeringGolden, AnAblationOfASubspaceRemovesItWhole) {
  Random random(5);
  for (int round = 0; round < 20; ++round) {
    json::array axes;
    std::vector<std::vector<float>> rows;
    for (int i = 0; i < 3; ++i) {
      rows.push_back(random.vector(12));
      axes.push_back(json::value_from(rows.back()));
    }
    axes.push_back(axes[0]);  // in the span already
    const auto drawn = random.vector(12);
    const std::vector<double> h(drawn.begin(), drawn.end());
    const auto ablated = run(element("ablate", axes), h);
    for (const auto& row : rows) {
      double along = 0;
      for (size_t i = 0; i < row.size(); ++i) along += double{row[i]} * ablated[i];
      EXPECT_NEAR(along, 0, 1e-5);
    }
    expect_near(run(element("ablate", axes), ablated), ablated);
  }
}

}  // namespace
}  // namespace rudder::steer
