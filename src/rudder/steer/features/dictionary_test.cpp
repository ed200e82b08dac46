// Encoding and decoding: dictionaries in every published layout against what a program in Python
// computed in float64 (tools/golden/dictionary_files.py), and the forms of single features.
#include "rudder/features/dictionary.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "rudder/steer/features/fold_gain.h"
#include "rudder/steer/features/load_dictionary.h"
#include "rudder/steer/features/tensor_reader.h"

namespace rudder::steer {
namespace {

const std::string kDictionaries = std::string(RUDDER_SOURCE_DIR) + "/tests/dictionaries/";
constexpr uint64_t kRows = 12;

struct PublishedCase {
  std::string_view folder;
  std::string_view oracle;  // empty: the folder's name
  std::string_view points;
  std::string_view format;
  std::string_view model;
};
constexpr PublishedCase kPublished[] = {
    {"saelens_standard", "", "", "saelens", "tiny"},
    {"saelens_before_6", "", "", "saelens", "tiny"},
    {"saelens_jumprelu", "", "resid_post.1", "saelens", "tiny"},
    {"saelens_topk", "", "", "saelens", "tiny"},
    {"saelens_topk_before_6", "", "", "saelens", ""},
    {"saelens_gated", "", "", "saelens", "tiny"},
    {"saelens_matryoshka", "", "", "saelens", "tiny"},
    {"saelens_saved_batchtopk", "", "", "saelens", "tiny"},
    {"saelens_saved_standard", "", "", "saelens", "tiny"},
    {"saelens_saved_topk", "", "", "saelens", "tiny"},
    {"saelens_saved_jumprelu", "", "", "saelens", "tiny"},
    {"saelens_saved_gated", "", "", "saelens", "tiny"},
    {"saelens_saved_jumprelu_skip_transcoder", "", "", "saelens", "tiny"},
    {"saelens_constant_norm", "", "", "saelens", "tiny"},
    {"saelens_layer_norm", "", "", "saelens", "tiny"},
    {"saelens_transcoder", "", "", "saelens", "tiny"},
    {"saelens_skip_transcoder", "", "mlp_in.1,mlp_out.1", "saelens", "tiny"},
    {"gemma_scope", "", "resid_post.2", "gemma-scope", ""},
    {"gemma_scope_2", "", "", "gemma-scope-2", "tiny"},
    {"gemma_scope_2_transcoder", "", "", "gemma-scope-2", "tiny"},
    {"gemma_scope_2_clt", "", "", "gemma-scope-2-clt", "tiny"},
    {"llama_scope", "", "", "llama-scope", ""},
    {"llama_scope_later", "", "", "llama-scope", ""},
    {"sparsify/layers.1", "sparsify_layers.1", "", "sparsify", ""},
    {"sparsify/layers.1.mlp", "sparsify_layers.1.mlp", "", "sparsify", ""},
    {"circuit_tracer", "", "", "circuit-tracer", "tiny"},
    {"circuit_tracer_clt", "", "", "circuit-tracer-clt", "tiny"},
    {"manifest_batchtopk", "", "", "manifest", "tiny"},
    {"manifest_gated", "", "", "manifest", "tiny"},
    {"manifest_relu", "", "", "manifest", "tiny"},
    {"gemma_scope_transcoder", "", "blocks.2.ln2.hook_normalized,mlp_out.2", "gemma-scope", ""},
    {"circuit_tracer_without_gain", "", "", "circuit-tracer", "tiny"},
    {"manifest_topk_without_gain", "", "", "manifest", ""},
    {"manifest_gated_without_gain", "", "blocks.1.ln2.hook_normalized,mlp_out.1", "manifest", ""},
};

std::span<const float> row_of(const Floats& values, uint64_t row, uint64_t width) {
  return {values.get() + row * width, width};
}

void expect_close(std::span<const float> got, std::span<const float> expected,
                  const std::string& what) {
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 2e-6 * (1 + std::abs(expected[i]))) << what << ", at " << i;
  }
}

// As a model with the oracle's gain has it.
std::shared_ptr<const features::Dictionary> bound(
    const std::shared_ptr<const features::Dictionary>& loaded, TensorReader& oracle) {
  if (loaded->input_gain == features::InputGain::kKept) return loaded;
  const std::string name = fmt::format("gain.{}", loaded->read.layer);
  auto gain = oracle.take_list(name, static_cast<uint64_t>(loaded->d_in));
  EXPECT_TRUE(gain) << gain.error().to_string();
  auto folded = fold_gain(*loaded, {name, *std::move(gain)}, "file");
  EXPECT_TRUE(folded) << folded.error().to_string();
  EXPECT_EQ((*folded)->input_gain, features::InputGain::kFolded);
  return *folded;
}

class PublishedDictionary : public ::testing::TestWithParam<PublishedCase> {};

TEST_P(PublishedDictionary, EncodesAndDecodesAsItsOwnFormulas) {
  const PublishedCase& published = GetParam();
  const auto set = load_dictionary(kDictionaries + std::string(published.folder), published.points);
  ASSERT_TRUE(set) << set.error().to_string();
  EXPECT_EQ(set->format, published.format);
  EXPECT_EQ(set->model, published.model);
  const std::string_view name = published.oracle.empty() ? published.folder : published.oracle;
  auto oracle = TensorReader::open(fmt::format("{}oracle/{}.safetensors", kDictionaries, name));
  ASSERT_TRUE(oracle) << oracle.error().to_string();

  std::map<int32_t, std::vector<std::vector<float>>> outputs;  // by layer, of each row
  for (const auto& loaded : set->layers) {
    const auto dictionary = bound(loaded, *oracle);
    const auto d_in = static_cast<uint64_t>(dictionary->d_in);
    const auto d_out = static_cast<size_t>(dictionary->d_out);
    const auto num_features = static_cast<uint64_t>(dictionary->num_features);
    const int32_t layer = dictionary->read.layer;
    const auto x = oracle->take(fmt::format("x.{}", layer), {kRows, d_in});
    ASSERT_TRUE(x) << x.error().to_string();
    const auto expected = oracle->take(fmt::format("features.{}", layer), {kRows, num_features});
    ASSERT_TRUE(expected) << expected.error().to_string();
    size_t active = 0;
    for (uint64_t i = 0; i < kRows; ++i) {
      const auto row = row_of(*x, i, d_in);
      std::vector<float> features(num_features);
      encode(*dictionary, row, features);
      const auto wanted = row_of(*expected, i, num_features);
      expect_close(features, wanted, fmt::format("features of row {}, layer {}", i, layer));
      for (size_t j = 0; j < num_features; ++j) {
        EXPECT_EQ(features[j] > 0, wanted[j] > 0) << i << ", " << j;
        active += features[j] > 0 ? 1 : 0;
      }
      for (int32_t w = 0; w < dictionary->num_writes; ++w) {
        std::vector<float> out(d_out);
        decode(*dictionary, features, row, w, out);
        auto& sums = outputs[dictionary->write_point(w).layer];
        sums.resize(kRows, std::vector<float>(d_out));
        for (size_t k = 0; k < d_out; ++k) sums[i][k] += out[k];
      }
    }
    EXPECT_GT(active, kRows);
    EXPECT_LT(active, kRows * num_features);
  }
  for (const auto& [layer, rows] : outputs) {
    const uint64_t width = rows[0].size();
    const auto expected = oracle->take(fmt::format("output.{}", layer), {kRows, width});
    ASSERT_TRUE(expected) << expected.error().to_string();
    for (uint64_t i = 0; i < kRows; ++i) {
      expect_close(rows[i], row_of(*expected, i, width),
                   fmt::format("output of row {}, layer {}", i, layer));
    }
  }
  EXPECT_TRUE(oracle->finish());
}

// The activation of one feature from its column alone, as clamps compute it.
TEST_P(PublishedDictionary, AFeatureNeedsItsColumnAlone) {
  const PublishedCase& published = GetParam();
  const auto set = load_dictionary(kDictionaries + std::string(published.folder), published.points);
  ASSERT_TRUE(set) << set.error().to_string();
  std::mt19937_64 engine(7);
  std::normal_distribution<float> normal;
  for (const auto& dictionary : set->layers) {
    if (dictionary->activation == features::Activation::kTopK) continue;  // needs all of them
    for (int round = 0; round < 20; ++round) {
      std::vector<float> x(static_cast<size_t>(dictionary->d_in));
      for (float& value : x) value = normal(engine);
      std::vector<float> features(static_cast<size_t>(dictionary->num_features));
      encode(*dictionary, x, features);
      const std::vector<double> normed = features::normed_row(dictionary->norm, x).values;
      for (int32_t j = 0; j < dictionary->num_features; ++j) {
        double y = 0;
        for (size_t i = 0; i < x.size(); ++i)
          y += normed[i] * dictionary->encoder_row(j).values()[i];
        const double value = dictionary->form(j).value(y);
        const float expected = features[static_cast<size_t>(j)];
        EXPECT_NEAR(value, expected, 1e-6 * (1 + std::abs(expected))) << j;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Features, PublishedDictionary, ::testing::ValuesIn(kPublished),
                         [](const auto& info) {
                           std::string name(info.param.folder);
                           for (char& c : name) c = c == '/' || c == '.' ? '_' : c;
                           return name;
                         });

features::Dictionary small_dictionary() {
  features::Dictionary dictionary;
  dictionary.d_in = 2;
  dictionary.d_out = 2;
  dictionary.num_features = 3;
  dictionary.read = dictionary.write = {1, tap::Site::kResidPost};
  const auto list = [](std::initializer_list<float> values) {
    auto buffer = std::make_shared<float[]>(values.size());
    std::ranges::copy(values, buffer.get());
    return buffer;
  };
  dictionary.encoder = list({1, 0, 0, 1, 1, 1});
  dictionary.decoder = list({1, 0, 0, 1, 0.5, 0.5});
  dictionary.encoder_bias = {0, 0, -1};
  dictionary.output_bias = {0, 0};
  return dictionary;
}

TEST(Dictionary, JumpReluIsStrictAboveItsThreshold) {
  features::Dictionary dictionary = small_dictionary();
  dictionary.activation = features::Activation::kJumpRelu;
  dictionary.threshold = {0.5f, -1, 1};
  std::vector<float> features(3);
  encode(dictionary, std::vector<float>{0.5f, -0.25f}, features);
  EXPECT_EQ(features, (std::vector<float>{0, 0, 0}));  // 0.5 > 0.5 fails; relu beside the threshold
  encode(dictionary, std::vector<float>{0.75f, 1.5f}, features);
  EXPECT_EQ(features, (std::vector<float>{0.75f, 1.5f, 1.25f}));
}

TEST(Dictionary, TopKKeepsTheFirstOfEqualFeatures) {
  features::Dictionary dictionary = small_dictionary();
  dictionary.activation = features::Activation::kTopK;
  dictionary.k = 1;
  std::vector<float> features(3);
  encode(dictionary, std::vector<float>{2, 2}, features);
  EXPECT_EQ(features, (std::vector<float>{0, 0, 3}));
  encode(dictionary, std::vector<float>{1, 1}, features);
  EXPECT_EQ(features, (std::vector<float>{1, 0, 0}));
  dictionary.k = 8;
  encode(dictionary, std::vector<float>{1, 1}, features);
  EXPECT_EQ(features, (std::vector<float>{1, 1, 1}));
}

TEST(Dictionary, ARowOfZerosHasNoLengthToNormaliseBy) {
  features::Dictionary dictionary = small_dictionary();
  for (const auto norm : {tap::FeatureNorm::kConstantNorm, tap::FeatureNorm::kLayerNorm}) {
    dictionary.norm = norm;
    const std::vector<float> x = {0, 0};
    std::vector<float> features(3);
    encode(dictionary, x, features);
    EXPECT_EQ(features, (std::vector<float>{0, 0, 0}));
    std::vector<float> out(2);
    decode(dictionary, std::vector<float>{1, 2, 3}, x, 0, out);
    EXPECT_EQ(out, x);
  }
}

TEST(Dictionary, AModelMustHaveItsPoints) {
  features::Dictionary dictionary = small_dictionary();
  tap::Geometry geometry = {
      .num_layers = 2,
      .hidden = 2,
      .mlp_width = {4, 4},
      .heads = {{1, 3}, {1, 3}},
      .sites = {tap::dense_sites_but(tap::Site::kFinalNorm), tap::kDenseSites}};
  EXPECT_TRUE(check_fits(dictionary, geometry, "d"));
  dictionary.num_writes = 2;
  EXPECT_EQ(check_fits(dictionary, geometry, "d").error().message,
            "the dictionary writes: layer 2 of a model with 2 layers");
  dictionary.num_writes = 1;
  dictionary.read.site = tap::Site::kMlpAct;
  EXPECT_EQ(check_fits(dictionary, geometry, "d").error().message,
            "the dictionary reads rows of 2 elements; mlp_act of layer 1 has 4: 2 elements fit "
            "resid_pre, attn_in, attn_out, resid_mid, mlp_in, mlp_out, resid_post, final_norm");
  EXPECT_EQ(check_fits(dictionary, geometry, "d").error().where, "d");
}

}  // namespace
}  // namespace rudder::steer
