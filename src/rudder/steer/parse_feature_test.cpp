// The op "feature", the gate on a feature and the article's clamps: what they become, and what is
// refused with which path.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "rudder/steer/parse_test_support.h"
#include "rudder/steer/segments.h"
#include "rudder/testing/reference_taps.h"

namespace rudder::steer {
namespace {

using Row4 = std::array<double, 4>;

// A dictionary named "d" of the small model; its features have 4 elements.
OneName names_of(const DictionaryAsk& ask, uint64_t seed = 3) {
  OneName names;
  names.set_dictionary(named_set("d", random_dictionary(ask, seed)));
  return names;
}

tap::ContentKey key_with(std::string_view body, const OneName& names) {
  const auto config = config_of(body, names);
  EXPECT_TRUE(config.has_value()) << body << config.error().to_string();
  return config ? (*config)->program(1).key : tap::ContentKey{};
}

std::string numbers_of(const Row& row) {
  return fmt::format("[{:.9g}]", fmt::join(row.values(), ", "));
}

TEST(ParseFeature, AnUnconditionalAddIsThePlainVector) {
  const OneName names = names_of({});
  const features::Dictionary& dictionary = *names.find_dictionary("d")->layers[0];
  const std::string add = fmt::format(
      R"({{"steering": {{"op": "add", "site": "resid_post", "layers": 1, "scale": 2.5, "vector": {}}}}})",
      numbers_of(dictionary.decoder_row(4)));
  constexpr std::string_view kFeature =
      R"({"steering": {"op": "feature", "dictionary": "d", "feature": 4, "kind": "add", "value": 2.5}})";
  EXPECT_EQ(key_with(kFeature, names), key_with(add, names));
  EXPECT_EQ(key_with(R"({"steering": {"op": "feature", "dictionary": "d", "layer": 1, "feature": 4,
                         "kind": "add", "value": 2.5, "mode": "delta", "only_if_active": false}})",
                     names),
            key_with(kFeature, names));
  constexpr std::string_view kArticle =
      R"({"sae_clamp_specs": [{"module_name": "d", "clamps": {"resid_post": {"1": [
          {"feature_idx": 4, "kind": "additive", "value": 2.5}]}}}]})";
  EXPECT_EQ(key_with(kArticle, names), key_with(kFeature, names));
  // Another feature, value or dictionary is other content; nothing added is none.
  for (const char* other : {R"("feature": 3, "kind": "add", "value": 2.5)",
                            R"("feature": 4, "kind": "add", "value": 2.25)"}) {
    EXPECT_NE(key_with(fmt::format(R"({{"steering": {{"op": "feature", "dictionary": "d", {}}}}})",
                                   other),
                       names),
              key_with(kFeature, names));
  }
  EXPECT_NE(key_with(kFeature, names_of({}, 4)), key_with(kFeature, names));
  EXPECT_TRUE(
      key_with(R"({"steering": {"op": "feature", "dictionary": "d", "feature": 4, "kind": "add",
                   "value": 0}})",
               names)
          .none());
}

TEST(ParseFeature, ACrossLayerTranscoderAddsAtEveryLayerFromItsOwnOn) {
  const OneName names = names_of({.read = {13, tap::Site::kMlpIn},
                                  .write = {13, tap::Site::kMlpOut},
                                  .num_writes = 3,
                                  .activation = features::Activation::kTopK});
  const auto parsed = parse(
      R"({"steering": {"op": "feature", "dictionary": "d", "feature": 1, "kind": "add", "value": 2}})",
      names);
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  ASSERT_EQ(parsed->ops.size(), 3u);
  const features::Dictionary& dictionary = *names.find_dictionary("d")->layers[0];
  for (int32_t i = 0; i < 3; ++i) {
    const OpSpec& op = parsed->ops[static_cast<size_t>(i)];
    EXPECT_EQ(op.point, (tap::Point{13 + i, tap::Site::kMlpOut}));
    EXPECT_EQ(op.vector.values().data(), dictionary.decoder_row(1, i).values().data());
  }
}

TEST(ParseFeature, AGateOnAFeatureOpensWhereTheFeatureIsAboveItsBound) {
  std::mt19937_64 engine(5);
  std::normal_distribution<float> normal;
  for (const auto activation : {features::Activation::kRelu, features::Activation::kJumpRelu,
                                features::Activation::kGated}) {
    const OneName names = names_of({.activation = activation, .subtracts_bias = true});
    const features::Dictionary& dictionary = *names.find_dictionary("d")->layers[0];
    int open = 0;
    for (int round = 0; round < 200; ++round) {
      const int32_t feature = round % dictionary.num_features;
      const double above = round % 3 == 0 ? 0 : 0.4;
      const auto parsed =
          parse(fmt::format(R"({{"steering": {{"op": "add", "site": "resid_post", "layers": 1,
                          "vector": {}, "gate": {{"feature": {{"dictionary": "d", "feature": {},
                          "above": {}}}}}}}}})",
                            kV, feature, above),
                names);
      ASSERT_TRUE(parsed) << parsed.error().to_string();
      const Gate& gate = parsed->ops[0].gate;
      ASSERT_EQ(gate.kind, Gate::Kind::kProbe);
      EXPECT_FALSE(gate.sharpness);
      std::vector<float> h(4);
      for (float& value : h) value = normal(engine);
      std::vector<float> features(6);
      encode(dictionary, h, features);
      double score = 0;
      for (size_t i = 0; i < h.size(); ++i) score += double{h[i]} * gate.vector.values()[i];
      const double value = features[static_cast<size_t>(feature)];
      if (std::abs(value - above) < 1e-5 && value > 0) continue;
      EXPECT_EQ(score > gate.threshold, value > above) << value << " for " << above;
      open += value > above ? 1 : 0;
    }
    EXPECT_GT(open, 20);
    EXPECT_LT(open, 180);
  }
}

// Several clamps at once, from the text of a request to the fp64 form of the device's ops, against
// the features that encoding the row gives.
TEST(ParseFeature, ClampsAreWhatEncodingEditingAndDecodingGive) {
  using tap::FeatureEdit;
  using tap::FeatureNorm;
  Random random(17);
  int checked = 0;
  for (int round = 0; round < 1500; ++round) {
    const auto activation = static_cast<features::Activation>(std::array{0, 1, 3}[round % 3]);
    const auto norm = static_cast<FeatureNorm>(round / 3 % 3);
    const OneName names =
        names_of({.activation = activation, .norm = norm, .subtracts_bias = random.one_in(2)},
                 40 + round % 7);
    const features::Dictionary& dictionary = *names.find_dictionary("d")->layers[0];
    const std::vector<float> h = random.vector(4);
    std::vector<float> features(6);
    encode(dictionary, h, features);
    const features::NormedRow normed = features::normed_row(norm, h);
    Row4 expected = {h[0], h[1], h[2], h[3]};
    std::string elements;
    bool is_near = false;
    for (int32_t j = random.below(3); j < 6; j += 1 + random.below(3)) {
      const auto edit = static_cast<FeatureEdit>(random.below(5));
      const double value = 0.25 * (random.below(17) - 4);
      const bool only_if_active = random.one_in(3);
      elements += fmt::format(
          R"({}{{"op": "feature", "dictionary": "d", "feature": {}, "kind": "{}", "value": {},
              "only_if_active": {}}})",
          elements.empty() ? "" : ", ", j, feature_edit_name(edit), value, only_if_active);
      const double f = features[static_cast<size_t>(j)];
      double y = 0;
      for (size_t i = 0; i < 4; ++i) y += normed.values[i] * dictionary.encoder_row(j).values()[i];
      const features::FeatureForm form = dictionary.form(j);
      is_near =
          is_near || std::abs(y - form.gate) < 1e-4 || std::abs(form.scale * y + form.bias) < 1e-4;
      double changed = f;
      if (edit == FeatureEdit::kSet) changed = value;
      if (edit == FeatureEdit::kAdd) changed = f + value;
      if (edit == FeatureEdit::kMultiply) changed = f * value;
      if (edit == FeatureEdit::kMin && f < value) changed = value;
      if (edit == FeatureEdit::kMax && f > value) changed = value;
      if (only_if_active && f == 0) continue;
      for (size_t i = 0; i < 4; ++i) {
        expected[i] += normed.scale * (changed - f) * dictionary.decoder_row(j).values()[i];
      }
    }
    if (is_near) continue;
    const auto config = config_of(fmt::format(R"({{"steering": [{}]}})", elements), names);
    ASSERT_TRUE(config) << elements << config.error().to_string();
    const auto program = (*config)->program(1).program;
    if (program == nullptr) continue;
    testing::ReferenceLatches latches;
    const auto got = testing::reference_program(*program, {1, tap::Site::kResidPost},
                                                {h.begin(), h.end()}, 0, latches);
    for (size_t i = 0; i < 4; ++i) ASSERT_NEAR(got[i], expected[i], 2e-5) << round << elements;
    ++checked;
  }
  EXPECT_GT(checked, 1200);
}

TEST(ParseFeature, ClampsNeedADictionaryThatHasThem) {
  constexpr std::string_view kSet =
      R"({"steering": {"op": "feature", "dictionary": "d", "feature": 1, "kind": "set", "value": 2}})";
  EXPECT_TRUE(parse(kSet, names_of({})));
  const auto refused = parse(kSet, names_of({.activation = features::Activation::kTopK}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().where, "steering.kind");
}

TEST(ParseFeature, AddsRunBehindTheClampsOfTheirPoint) {
  const auto config = config_of(
      R"({"steering": [
          {"op": "feature", "dictionary": "d", "feature": 1, "kind": "add", "value": 2},
          {"op": "feature", "dictionary": "d", "feature": 2, "kind": "set", "value": 2},
          {"op": "feature", "dictionary": "d", "feature": 3, "kind": "add", "value": 2},
          {"op": "feature", "dictionary": "d", "feature": 4, "kind": "max", "value": 2},
          {"op": "add", "site": "resid_post", "layers": 1, "vector": [1, 2, 3, 4]}]})",
      names_of({}));
  ASSERT_TRUE(config) << config.error().to_string();
  const auto& ops = (*config)->program(1).program->ops;
  ASSERT_EQ(ops.size(), 4u);  // the two adds of features are one
  EXPECT_EQ(ops[0].op.kind, tap::OpKind::kAdd);
  EXPECT_EQ(ops[1].op.kind, tap::OpKind::kFeature);
  EXPECT_EQ(ops[1].op.run, 2);
  EXPECT_EQ(ops[2].op.kind, tap::OpKind::kFeature);
  EXPECT_EQ(ops[2].op.run, 0);
  EXPECT_EQ(ops[3].op.kind, tap::OpKind::kAdd);
}

struct WrongFeature {
  std::string_view fields;  // of the element
  std::string_view where;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

TEST(ParseFeature, ErrorsHaveThePathOfTheField) {
  const OneName names = names_of({});
  constexpr ErrorCode kNotFound = ErrorCode::kNotFound;
  constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;
  const WrongFeature cases[] = {
      {R"("dictionary": "x", "feature": 1, "kind": "add", "value": 1)", "dictionary", kNotFound},
      {R"("feature": 1, "kind": "add", "value": 1)", "dictionary"},
      {R"("dictionary": "d", "layer": 2, "feature": 1, "kind": "add", "value": 1)", "layer"},
      {R"("dictionary": "d", "feature": 6, "kind": "add", "value": 1)", "feature"},
      {R"("dictionary": "d", "feature": -1, "kind": "add", "value": 1)", "feature"},
      {R"("dictionary": "d", "feature": 1.5, "kind": "add", "value": 1)", "feature"},
      {R"("dictionary": "d", "kind": "add", "value": 1)", "feature"},
      {R"("dictionary": "d", "feature": 1, "value": 1)", "kind"},
      {R"("dictionary": "d", "feature": 1, "kind": "absolute", "value": 1)", "kind"},
      {R"("dictionary": "d", "feature": 1, "kind": "add")", "value"},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": 1e7)", "value"},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": "1")", "value"},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": 1, "only_if_active": 1)",
       "only_if_active"},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": 1, "mode": "half")", "mode"},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": 1, "mode": "full")", "mode",
       kUnsupported},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": 1, "scale": 1)", "scale"},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": 1, "site": "resid_post")",
       "site"},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": 1, "gate": {"feature": {}})",
       "gate.feature.dictionary"},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": 1,
          "gate": {"feature": {"dictionary": "d", "feature": 9}})",
       "gate.feature.feature"},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": 1,
          "gate": {"feature": {"dictionary": "d", "feature": 1, "above": -1}})",
       "gate.feature.above"},
      {R"("dictionary": "d", "feature": 1, "kind": "add", "value": 1,
          "gate": {"feature": {"dictionary": "d", "feature": 1}, "probe": {}})",
       "gate"},
  };
  for (const WrongFeature& wrong : cases) {
    const auto parsed =
        parse(fmt::format(R"({{"steering": [{{"op": "feature", {}}}]}})", wrong.fields), names);
    ASSERT_FALSE(parsed) << wrong.fields;
    EXPECT_EQ(parsed.error().where, fmt::format("steering[0].{}", wrong.where)) << wrong.fields;
    EXPECT_EQ(parsed.error().code, wrong.code) << wrong.fields;
  }
}

TEST(ParseFeature, AGateReadsTheRowThatItsOpChanges) {
  constexpr std::string_view kGated =
      R"({{"steering": {{"op": "add", "site": "{}", "layers": {}, "vector": {},
          "gate": {{"feature": {{"dictionary": "d", "feature": 1}}}}}}}})";
  const auto where_of = [&](std::string_view site, int layer, const DictionaryAsk& ask) {
    const auto parsed = parse(fmt::format(kGated, site, layer, kV), names_of(ask));
    return parsed ? "" : parsed.error().where;
  };
  EXPECT_EQ(where_of("resid_post", 1, {}), "");
  EXPECT_EQ(where_of("resid_post", 2, {}), "steering.gate.feature.dictionary");
  EXPECT_EQ(where_of("resid_pre", 1, {}), "steering.gate.feature.dictionary");
  EXPECT_EQ(where_of("resid_post", 1, {.activation = features::Activation::kTopK}),
            "steering.gate.feature.dictionary");
  EXPECT_EQ(where_of("resid_post", 1, {.norm = tap::FeatureNorm::kLayerNorm}),
            "steering.gate.feature.dictionary");
}

TEST(ParseFeature, TheArticlesClampsHaveThePathOfTheEntry) {
  const OneName names = names_of({});
  constexpr std::string_view kEntry = R"({"feature_idx": 1, "kind": "additive", "value": 2})";
  const auto where_of = [&](std::string_view specs) {
    const auto parsed = parse(fmt::format(R"({{"sae_clamp_specs": {}}})", specs), names);
    return parsed ? "" : parsed.error().where;
  };
  const auto clamps = [&](std::string_view site, std::string_view layer, std::string_view entries) {
    return fmt::format(R"([{{"module_name": "d", "clamps": {{"{}": {{"{}": {}}}}}}}])", site, layer,
                       entries);
  };
  EXPECT_EQ(where_of(clamps("post_mlp", "1", fmt::format("[{}]", kEntry))), "");
  EXPECT_EQ(where_of("{}"), "sae_clamp_specs");
  EXPECT_EQ(where_of(R"([{"module_name": "x", "clamps": {}}])"), "sae_clamp_specs[0].module_name");
  EXPECT_EQ(where_of(R"([{"module_name": "d", "clamps": {}}])"), "sae_clamp_specs[0].clamps");
  EXPECT_EQ(where_of(R"([{"module_name": "d", "clamps": {}, "phase": "all"}])"),
            "sae_clamp_specs[0].phase");
  EXPECT_EQ(where_of(clamps("resid_mid", "1", fmt::format("[{}]", kEntry))),
            "sae_clamp_specs[0].clamps.resid_mid.1");
  EXPECT_EQ(where_of(clamps("resid_post", "2", fmt::format("[{}]", kEntry))),
            "sae_clamp_specs[0].clamps.resid_post.2");
  EXPECT_EQ(where_of(clamps("resid_post", "1", "[]")), "sae_clamp_specs[0].clamps.resid_post.1");
  EXPECT_EQ(where_of(clamps("resid_post", "1", fmt::format("[{}, {}]", kEntry, kEntry))),
            "sae_clamp_specs[0].clamps.resid_post.1[1].feature_idx");
  EXPECT_EQ(where_of(clamps("resid_post", "1",
                            R"([{"feature_idx": 1, "kind": "additive", "value": null}])")),
            "sae_clamp_specs[0].clamps.resid_post.1[0].value");
}

}  // namespace
}  // namespace rudder::steer
