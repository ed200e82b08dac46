// What the dense families and the wrappers of text models read of their configs, and what they
// refuse by its key. That their mathematics are those of transformers, the goldens show.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "rudder/model/archs/archs.h"
#include "rudder/model/rope.h"
#include "rudder/model/tensors.h"
#include "rudder/model/tiny_checkpoint.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kKeys =
    R"("hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "head_dim": 16,
       "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
       "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu")";

Result<ModelSpec> read_dense_config(std::string_view architecture, std::string_view more) {
  const std::string text = fmt::format(R"({{"architectures": ["{}"], {}{}{}}})", architecture,
                                       kKeys, more.empty() ? "" : ", ", more);
  const auto config = HfConfig::parse(text, "config.json");
  EXPECT_TRUE(config) << config.error().to_string();
  return read_config(*config);
}

ModelSpec dense(std::string_view architecture, std::string_view more = "") {
  auto out = read_dense_config(architecture, more);
  EXPECT_TRUE(out) << out.error().to_string();
  return out ? *out : ModelSpec{};
}

Result<ModelSpec> read_inside(std::string_view architecture, std::string_view text,
                              std::string_view more = "") {
  const std::string whole =
      fmt::format(R"({{"architectures": ["{}"], {}"text_config": {{{}, {}}}}})", architecture, more,
                  kKeys, text);
  return read_config(HfConfig::parse(whole, "config.json").value());
}

void expect_config_refused_at(const Result<ModelSpec>& out, std::string_view where) {
  ASSERT_FALSE(out) << where;
  EXPECT_EQ(out.error().where, where) << out.error().to_string();
}

std::vector<int32_t> ropes_of(const ModelSpec& spec) {
  std::vector<int32_t> out;
  for (const LayerSpec& layer : spec.layers) out.push_back(attention_of(layer)->rope);
  return out;
}

std::vector<int32_t> windows_of(const ModelSpec& spec) {
  std::vector<int32_t> out;
  for (const LayerSpec& layer : spec.layers) out.push_back(attention_of(layer)->window);
  return out;
}

using Numbers = std::vector<int32_t>;

TEST(DenseArchs, SomeLayersRotateNothing) {
  EXPECT_EQ(ropes_of(dense("SmolLM3ForCausalLM")), (Numbers{0, 0, 0, kNoRope}));
  EXPECT_EQ(ropes_of(dense("SmolLM3ForCausalLM", R"("no_rope_layer_interval": 2)")),
            (Numbers{0, kNoRope, 0, kNoRope}));
  EXPECT_EQ(ropes_of(dense("SmolLM3ForCausalLM", R"("no_rope_layers": [0, 1, 1, 0])")),
            (Numbers{kNoRope, 0, 0, kNoRope}));
  const ModelSpec windows =
      dense("SmolLM3ForCausalLM", R"("use_sliding_window": true, "sliding_window": 9)");
  EXPECT_EQ(windows_of(windows), (Numbers{0, 0, 0, 9}));
  expect_config_refused_at(read_dense_config("SmolLM3ForCausalLM", R"("no_rope_layers": [0, 1])"),
                           "config.json: no_rope_layers");

  const ModelSpec hybrid = dense("Exaone4ForCausalLM", R"("sliding_window": 9)");
  EXPECT_EQ(ropes_of(hybrid), (Numbers{0, 0, 0, kNoRope}));
  EXPECT_EQ(windows_of(hybrid), (Numbers{9, 9, 9, 0}));
  const ModelSpec full = dense("Exaone4ForCausalLM", R"("sliding_window": null)");
  EXPECT_EQ(ropes_of(full), (Numbers{0, 0, 0, 0}));
  EXPECT_EQ(windows_of(full), (Numbers{0, 0, 0, 0}));
  expect_config_refused_at(
      read_dense_config("Exaone4ForCausalLM", R"("sliding_window_pattern": "LLLG")"),
      "config.json: sliding_window_pattern");
}

TEST(DenseArchs, EachLayerMayHaveABaseOfItsOwn) {
  const ModelSpec spec =
      dense("GraniteSWAForCausalLM", R"("layer_rope_theta": [0, 7001.3, 20011.7, 7001.3])");
  EXPECT_EQ(ropes_of(spec), (Numbers{kNoRope, 0, 1, 0}));
  ASSERT_EQ(spec.ropes.size(), 2U);
  EXPECT_EQ(spec.ropes[1].theta, 20011.7);
  EXPECT_EQ(windows_of(spec), (Numbers{0, 128, 128, 128}));
  EXPECT_TRUE(softmax_of(spec.layers[0])->sinks);
  for (const char* list : {"[0, 7001.3]", "[0, 1, 2, 3]", "[0, -5, 2, 3]"}) {
    expect_config_refused_at(
        read_dense_config("GraniteSWAForCausalLM", fmt::format(R"("layer_rope_theta": {})", list)),
        "config.json: layer_rope_theta");
  }
}

TEST(DenseArchs, MultipliersAreThoseOfTheConfig) {
  const ModelSpec spec =
      dense("GraniteForCausalLM", R"("embedding_multiplier": 12, "residual_multiplier": 0.22,
                                     "attention_multiplier": 0.0078125, "logits_scaling": 8)");
  EXPECT_EQ(spec.embed_scale, 12);
  EXPECT_EQ(spec.branch_scale, 0.22f);
  EXPECT_EQ(spec.logit_scale, 0.125f);
  EXPECT_EQ(attention_of(spec.layers[0])->scale, 0.0078125f);
  EXPECT_EQ(attention_of(dense("GraniteForCausalLM").layers[0])->scale, 1);  // not 1 / sqrt(16)
  for (const char* key :
       {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}) {
    expect_config_refused_at(
        read_dense_config("GraniteForCausalLM", fmt::format(R"("{}": 0)", key)),
        fmt::format("config.json: {}", key));
  }
}

TEST(DenseArchs, NeighboursTurnInAPartOfAHead) {
  const ModelSpec glm = dense("Glm4ForCausalLM");
  EXPECT_EQ(attention_of(glm.layers[0])->neighbours, 8);
  EXPECT_EQ(glm.ropes[0].rotary_dim, 8);
  EXPECT_TRUE(glm.layers[0].norms.pre && glm.layers[0].norms.post);
  EXPECT_TRUE(attention_of(glm.layers[0])->qkv_bias);
  EXPECT_FALSE(attention_of(glm.layers[0])->out_bias);
  EXPECT_EQ(attention_of(dense("Ernie4_5ForCausalLM").layers[0])->neighbours, 16);
  EXPECT_EQ(attention_of(dense("LlamaForCausalLM").layers[0])->neighbours, 0);
  // Of a head of eight of which six turn: those in front of each pair, those behind, the rest.
  const RowOrder order{8, 6};
  std::vector<int64_t> rows;
  for (int64_t row = 8; row < 16; ++row) rows.push_back(order.stored(row));
  EXPECT_EQ(rows, (std::vector<int64_t>{8, 10, 12, 9, 11, 13, 14, 15}));
}

TEST(DenseArchs, QueriesGrowWithTheirPosition) {
  const ModelSpec spec =
      dense("Ministral3ForCausalLM",
            R"("rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1000000.0,
         "original_max_position_embeddings": 100, "llama_4_scaling_beta": 0.25})");
  const std::vector<float> scales = query_scales(spec.query_growth, 256);
  EXPECT_EQ(scales[99], 1);
  EXPECT_FLOAT_EQ(scales[100], static_cast<float>(1 + 0.25 * std::log(2.0)));
  EXPECT_FLOAT_EQ(scales[255], static_cast<float>(1 + 0.25 * std::log(3.0)));
  EXPECT_TRUE(dense("Ministral3ForCausalLM").query_growth.grows());  // as its class says
  EXPECT_FALSE(dense("MistralForCausalLM").query_growth.grows());
}

TEST(DenseArchs, ANumberWidensTheBase) {
  const ModelSpec spec = dense(
      "HunYuanDenseV1ForCausalLM",
      R"("rope_theta": 10000, "rope_scaling": {"type": "dynamic", "alpha": 50, "factor": 1})");
  EXPECT_NEAR(spec.ropes[0].theta, 10000 * std::pow(50, 16.0 / 14), 1e-6);
  EXPECT_TRUE(std::holds_alternative<RopeDefault>(spec.ropes[0].scaling));
  EXPECT_TRUE(attention_of(spec.layers[0])->norms_rotated);
  expect_config_refused_at(
      read_dense_config("HunYuanDenseV1ForCausalLM", R"("use_qk_norm": false)"),
      "config.json: use_qk_norm");
  expect_config_refused_at(read_dense_config("HunYuanDenseV1ForCausalLM", R"("use_cla": true)"),
                           "config.json: use_cla");
}

TEST(DenseArchs, UnknownKindsOfLayersAreRefused) {
  for (const char* name : {"SmolLM3ForCausalLM", "Olmo3ForCausalLM", "Exaone4ForCausalLM",
                           "GraniteSWAForCausalLM", "CwmForCausalLM", "MinistralForCausalLM"}) {
    expect_config_refused_at(
        read_dense_config(name, R"("use_sliding_window": true, "sliding_window": 9, "layer_types":
                            ["sliding_attention", "full_attention", "mamba", "full_attention"])"),
        "config.json: layer_types");
  }
  for (const char* name : {"GraniteForCausalLM", "Glm4ForCausalLM", "SeedOssForCausalLM"}) {
    expect_config_refused_at(read_dense_config(name, R"("layer_types": ["linear_attention"])"),
                             "config.json: layer_types");
  }
}

TEST(DenseArchs, ATextModelInsideAnotherIsReadByItsOwnArchitecture) {
  const char* mistral3 = "Mistral3ForConditionalGeneration";
  const auto small = read_inside(mistral3, R"("model_type": "mistral", "sliding_window": null)");
  ASSERT_TRUE(small) << small.error().to_string();
  EXPECT_EQ(small->architecture, mistral3);
  EXPECT_FALSE(small->query_growth.grows());
  EXPECT_TRUE(small->tied_head);  // as the class says where neither config does
  EXPECT_FALSE(read_inside(mistral3, R"("tie_word_embeddings": false)")->tied_head);
  EXPECT_TRUE(
      read_inside(mistral3, R"("tie_word_embeddings": false)", R"("tie_word_embeddings": true, )")
          ->tied_head);
  EXPECT_TRUE(read_inside(mistral3, R"("model_type": "ministral3")")->query_growth.grows());
  expect_config_refused_at(read_inside(mistral3, R"("model_type": "qwen3")"),
                           "config.json: text_config.model_type");
  expect_config_refused_at(read_inside(mistral3, R"("num_experts": 8)"),
                           "config.json: text_config.num_experts");
  expect_config_refused_at(read_dense_config(mistral3, ""), "config.json: text_config");
}

TEST(DenseArchs, PublishedFilesOfQwenVlHaveTheTextsKeysBesideTheOthers) {
  constexpr std::string_view kRope =
      R"("rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "rope_theta": 7001.3)";
  const ModelSpec flat = dense("Qwen2_5_VLForConditionalGeneration", kRope);
  EXPECT_TRUE(std::holds_alternative<RopeDefault>(flat.ropes[0].scaling));
  EXPECT_EQ(flat.ropes[0].theta, 7001.3);
  EXPECT_TRUE(attention_of(flat.layers[0])->qkv_bias);
  const auto inside = read_inside("Qwen2_5_VLForConditionalGeneration", kRope);
  ASSERT_TRUE(inside) << inside.error().to_string();
  EXPECT_EQ(inside->ropes[0].theta, 7001.3);
  // A length beside the rope is none of the text's.
  const ModelSpec stretched = dense("Qwen2VLForConditionalGeneration",
                                    R"("original_max_position_embeddings": 64, "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128})");
  EXPECT_EQ(std::get<RopeYarn>(stretched.ropes[0].scaling).original_max_positions, 128);
  expect_config_refused_at(read_dense_config("Qwen3VLForConditionalGeneration", ""),
                           "config.json: text_config");
  expect_config_refused_at(
      read_dense_config("Qwen2_5_VLForConditionalGeneration", R"("num_experts": 8)"),
      "config.json: num_experts");
  expect_config_refused_at(read_dense_config("Qwen2ForCausalLM", kRope),
                           "config.json: rope_scaling.type");
}

TEST(DenseArchs, TheHeadOfQwenVlIsTiedWhereEitherConfigSaysSo) {
  for (const bool of_whole : {false, true}) {
    for (const bool of_text : {false, true}) {
      const std::string whole = fmt::format(R"("tie_word_embeddings": {}, )", of_whole);
      const std::string text = fmt::format(R"("tie_word_embeddings": {})", of_text);
      EXPECT_EQ(read_inside("Qwen2VLForConditionalGeneration", text, whole)->tied_head,
                of_whole || of_text);
      EXPECT_EQ(read_inside("Qwen3VLForConditionalGeneration", text, whole)->tied_head, of_whole);
    }
  }
  EXPECT_TRUE(dense("Qwen2VLForConditionalGeneration", R"("tie_word_embeddings": true)").tied_head);
}

// A model of one layer as ERNIE has it, whose rows of q and k come in another order.
struct Neighbours : TinyModel {
  Neighbours() {
    replace_in_config("LlamaForCausalLM", "Ernie4_5ForCausalLM");
    replace_in_config("\"vocab_size\"", "\"head_dim\": 4, \"vocab_size\"");
    config.insert(config.rfind('}'), R"(, "quantization_config": {"quant_method":
        "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": {"g": {"targets": ["Linear"], "input_activations": {"num_bits": 8,
          "type": "float", "symmetric": true, "strategy": "token", "dynamic": true},
        "weights": {"num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel"}}}})");
    for (auto& [name, decl] : decls) {
      if (name.find("_proj.weight") == std::string::npos) continue;
      decl.dtype = tensor::DType::kF8E4M3;
    }
    for (const auto& [module, rows] :
         {std::pair("self_attn.q_proj", 8), std::pair("self_attn.k_proj", 4),
          std::pair("self_attn.v_proj", 4), std::pair("self_attn.o_proj", 8),
          std::pair("mlp.gate_proj", 6), std::pair("mlp.up_proj", 6),
          std::pair("mlp.down_proj", 8)}) {
      const std::string name = fmt::format("model.layers.0.{}.weight_scale", module);
      add(name, {static_cast<uint64_t>(rows), 1});
      for (int row = 0; row < rows; ++row) columns[name].push_back(static_cast<float>(row + 1));
    }
  }
};

TEST(DenseArchs, ScalesOfRowsFollowTheirRows) {
  Neighbours tiny;
  KeepingOps ops;
  const auto weights = tiny.load(ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  EXPECT_EQ(ops.scales[1], (std::vector<float>{1, 3, 2, 4, 5, 7, 6, 8}));  // q, two heads of four
  EXPECT_EQ(ops.scales[2], (std::vector<float>{1, 3, 2, 4}));
  EXPECT_EQ(ops.scales[3], (std::vector<float>{1, 2, 3, 4}));  // v stays
}

}  // namespace
}  // namespace rudder::model
