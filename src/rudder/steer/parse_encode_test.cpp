// Clamps that need all features of a row: topk dictionaries and full reconstructions. What they
// become, their keys, and what is refused with which path; what they do:
// tests/metamorphic/encode_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "rudder/steer/parse_test_support.h"

namespace rudder::steer {
namespace {

using tap::OpKind;

OneName dictionary_named_d(const DictionaryAsk& ask, uint64_t seed = 3) {
  OneName names;
  names.set_dictionary(named_set("d", random_dictionary(ask, seed)));
  return names;
}

std::string feature_with(std::string_view fields) {
  return fmt::format(R"({{"op": "feature", "dictionary": "d", {}}})", fields);
}
std::string body_of(std::string_view elements) {
  return fmt::format(R"({{"steering": [{}]}})", elements);
}

KeyedProgram encoding_program(std::string_view body, const OneName& names) {
  const auto config = config_of(body, names, encoding_model());
  EXPECT_TRUE(config) << body << config.error().to_string();
  return config ? (*config)->program(1) : KeyedProgram{};
}

const std::string kSetFull =
    feature_with(R"("feature": 1, "kind": "set", "value": 2, "mode": "full")");

TEST(ParseEncode, OneEncodeTakesAllClampsOfItsDictionary) {
  const OneName names = dictionary_named_d({});
  const auto made = encoding_program(
      body_of(feature_with(R"("feature": 4, "kind": "max", "value": 3)") + "," + kSetFull + "," +
              feature_with(R"("feature": 2, "kind": "add", "value": 1)") +
              R"(, {"op": "add", "site": "resid_post", "layers": 1, "vector": [1, 2, 3, 4]})"),
      names);
  ASSERT_NE(made.program, nullptr);
  const auto& ops = made.program->ops;
  ASSERT_EQ(ops.size(), 5u);
  EXPECT_EQ(ops[0].op.kind, OpKind::kAdd);
  EXPECT_EQ(ops[1].op.kind, OpKind::kEncode);
  EXPECT_EQ(ops[1].op.run, 3);
  EXPECT_EQ(ops[1].op.lo, 1);
  for (const auto& [at, feature] : {std::pair{2, 4}, std::pair{3, 1}}) {
    EXPECT_EQ(ops[static_cast<size_t>(at)].op.kind, OpKind::kEncoded);
    EXPECT_EQ(ops[static_cast<size_t>(at)].op.feature, feature);
  }
  EXPECT_EQ(ops[4].op.kind, OpKind::kAdd);  // of the feature that is added to
  ASSERT_EQ(made.program->dictionaries.size(), 1u);
}

// A device that rounds the dictionary computes something else.
TEST(ParseEncode, TheKeyCoversTheDtypeOfTheDictionary) {
  const OneName names = dictionary_named_d({});
  Model model = encoding_model();
  const auto f32 = config_of(body_of(kSetFull), names, model);
  model.dictionary_dtype = tensor::DType::kBF16;
  const auto bf16 = config_of(body_of(kSetFull), names, model);
  ASSERT_TRUE(f32 && bf16);
  EXPECT_NE((*f32)->program(1).key, (*bf16)->program(1).key);
  EXPECT_LT((*bf16)->program(1).program->dictionaries[0]->num_floats(),
            (*f32)->program(1).program->dictionaries[0]->num_floats());
}

TEST(ParseEncode, ATopkDictionaryIsEncodedForAClampAlone) {
  const OneName names = dictionary_named_d({.activation = features::Activation::kTopK});
  const auto set =
      encoding_program(body_of(feature_with(R"("feature": 1, "kind": "set", "value": 2)")), names);
  ASSERT_EQ(set.program->ops.size(), 2u);
  EXPECT_EQ(set.program->ops[0].op.kind, OpKind::kEncode);
  EXPECT_EQ(set.program->ops[0].op.lo, 0);
  const auto add =
      encoding_program(body_of(feature_with(R"("feature": 1, "kind": "add", "value": 2)")), names);
  EXPECT_EQ(add.program->ops[0].op.kind, OpKind::kAdd);
  EXPECT_TRUE(add.program->dictionaries.empty());
}

// The row is there before the changes are added to it, and the user's own adds before both.
TEST(ParseEncode, ATranscodersRowIsCarriedToWhereItWrites) {
  const OneName names =
      dictionary_named_d({.read = {1, tap::Site::kMlpIn}, .write = {1, tap::Site::kMlpOut}});
  const auto made = encoding_program(
      body_of(kSetFull + "," +
              feature_with(R"("feature": 0, "kind": "set", "value": 2, "mode": "full")") +
              R"(, {"op": "add", "site": "mlp_out", "layers": 1, "vector": [1, 2, 3, 4]})"),
      names);
  const auto& ops = made.program->ops;
  ASSERT_EQ(ops.size(), 7u);
  EXPECT_EQ(ops[0].op.kind, OpKind::kEncode);
  EXPECT_EQ(ops[0].op.lo, 1);
  EXPECT_EQ(ops[0].op.run, 3);
  EXPECT_EQ(ops[3].op.kind, OpKind::kAdd);
  EXPECT_EQ(ops[4].op.kind, OpKind::kCarried);
  EXPECT_EQ(ops[5].op.kind, OpKind::kFeature);
  EXPECT_EQ(ops[6].op.kind, OpKind::kFeature);
}

TEST(ParseEncode, AKeyCoversTheDictionaryAndTheMode) {
  const OneName names = dictionary_named_d({});
  const tap::ContentKey key = encoding_program(body_of(kSetFull), names).key;
  EXPECT_EQ(encoding_program(body_of(kSetFull), dictionary_named_d({})).key,
            key);  // the same numbers
  EXPECT_NE(encoding_program(body_of(kSetFull), dictionary_named_d({}, 4)).key, key);
  EXPECT_NE(encoding_program(body_of(kSetFull),
                             dictionary_named_d({.norm = tap::FeatureNorm::kLayerNorm}))
                .key,
            key);
  for (const char* other : {R"("feature": 2, "kind": "set", "value": 2, "mode": "full")",
                            R"("feature": 1, "kind": "set", "value": 3, "mode": "full")",
                            R"("feature": 1, "kind": "min", "value": 2, "mode": "full")",
                            R"("feature": 1, "kind": "set", "value": 2)", R"("mode": "full")"}) {
    EXPECT_NE(encoding_program(body_of(feature_with(other)), names).key, key) << other;
  }
}

TEST(ParseEncode, TheArticlesReconstructionsMeanTheSame) {
  const OneName names = dictionary_named_d({});
  constexpr std::string_view kArticle = R"({{"sae_full_reconstruction_specs": [{}]}})";
  EXPECT_EQ(
      encoding_program(fmt::format(kArticle, R"({"module_name": "d", "clamps": {"resid_post": {"1":
                [{"feature_idx": 1, "kind": "absolute", "value": 2}]}}})"),
                       names)
          .key,
      encoding_program(body_of(kSetFull), names).key);
  const tap::ContentKey alone =
      encoding_program(body_of(feature_with(R"("mode": "full")")), names).key;
  for (const char* none :
       {R"({"module_name": "d"})", R"({"module_name": "d", "clamps": {}})",
        R"({"module_name": "d", "phase": "both", "clamps": {"resid_post": {"1": []}}})"}) {
    EXPECT_EQ(encoding_program(fmt::format(kArticle, none), names).key, alone) << none;
  }
}

TEST(ParseEncode, ErrorsHaveThePathOfTheField) {
  const OneName names = dictionary_named_d({});
  const auto where_of = [](std::string_view body, const OneName& names, const Model& model) {
    const auto config = config_of(body, names, model);
    return config ? std::string("none") : config.error().where;
  };
  const Model model = encoding_model();
  const std::string full = body_of(kSetFull);
  EXPECT_EQ(where_of(full, names, model), "none");
  EXPECT_EQ(where_of(full, names, encoding_model(0)), "steering[0].mode");
  EXPECT_EQ(where_of(full, names, encoding_model(5)), "steering[0].mode");
  const std::string set = body_of(feature_with(R"("feature": 1, "kind": "set", "value": 2)"));
  const OneName topk = dictionary_named_d({.activation = features::Activation::kTopK});
  EXPECT_EQ(where_of(set, topk, model), "none");
  EXPECT_EQ(where_of(set, topk, encoding_model(5)), "steering[0].kind");
  const OneName transcoder =
      dictionary_named_d({.read = {1, tap::Site::kMlpIn}, .write = {1, tap::Site::kMlpOut}});
  EXPECT_EQ(where_of(full, transcoder, model), "none");
  EXPECT_EQ(where_of(full, transcoder, encoding_model(0)), "steering[0].mode");
  const OneName across = dictionary_named_d(
      {.read = {1, tap::Site::kMlpIn}, .write = {1, tap::Site::kMlpOut}, .num_writes = 2});
  EXPECT_EQ(where_of(full, across, model), "steering[0].mode");
  for (const char* key : {"kind", "value", "only_if_active", "gate"}) {
    EXPECT_EQ(where_of(body_of(feature_with(fmt::format(R"("mode": "full", "{}": true)", key))),
                       names, model),
              fmt::format("steering[0].{}", key));
  }
  const auto article = [&](std::string_view spec, const OneName& of) {
    return where_of(fmt::format(R"({{"sae_full_reconstruction_specs": [{}]}})", spec), of, model);
  };
  const std::string path = "sae_full_reconstruction_specs[0]";
  EXPECT_EQ(article(R"({"module_name": "x"})", names), path + ".module_name");
  EXPECT_EQ(article(R"({"module_name": "d"})", across), path + ".module_name");
  EXPECT_EQ(article(R"({"module_name": "d", "clamps": []})", names), path + ".clamps");
  EXPECT_EQ(article(R"({"module_name": "d", "clamps": {"mlp_in": {"1": []}}})", across),
            path + ".clamps.mlp_in.1");
  EXPECT_EQ(article(R"({"module_name": "d", "clamps": {"resid_post": {"1": {}}}})", names),
            path + ".clamps.resid_post.1");
}

// Each encode of a point is an op beside its clamps.
TEST(ParseEncode, APointHasNoMoreOpsThanAnEntryCounts) {
  const OneName names = dictionary_named_d({});
  const auto clamps = [](int count) {
    std::string elements = kSetFull;
    for (int i = 1; i < count; ++i) elements += "," + kSetFull;
    return body_of(elements);
  };
  EXPECT_TRUE(config_of(clamps(tap::kMaxOpsPerPoint - 1), names, encoding_model()));
  const auto refused = config_of(clamps(tap::kMaxOpsPerPoint), names, encoding_model());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "steering");
}

}  // namespace
}  // namespace rudder::steer
