#include "rudder/model/archs/archs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <string>

#include "rudder/model/tensors.h"
#include "rudder/model/weight_budget.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kCommon =
    R"("hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
       "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
       "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu")";

Result<ModelSpec> read_arch(std::string_view architecture, std::string_view more) {
  const std::string text = fmt::format(R"({{"architectures": ["{}"], {}{}{}}})", architecture,
                                       kCommon, more.empty() ? "" : ", ", more);
  const auto config = HfConfig::parse(text, "config.json");
  EXPECT_TRUE(config) << config.error().to_string();
  return read_config(*config);
}

ModelSpec spec(std::string_view architecture, std::string_view more) {
  auto out = read_arch(architecture, more);
  EXPECT_TRUE(out) << out.error().to_string();
  return out ? *out : ModelSpec{};
}

void expect_spec_refused(std::string_view architecture, std::string_view more,
                         std::string_view where) {
  const auto out = read_arch(architecture, more);
  ASSERT_FALSE(out) << more;
  EXPECT_EQ(out.error().where, where) << out.error().to_string();
}

TEST(Archs, NamesAreUnique) {
  for (const Architecture& a : architectures()) {
    EXPECT_EQ(*find_architecture(a.name), &a);
  }
  EXPECT_FALSE(find_architecture("GPT2LMHeadModel"));
}

TEST(Archs, LlamaDefaults) {
  const ModelSpec s = spec("LlamaForCausalLM", "");
  EXPECT_EQ(s.layers.size(), 4U);
  EXPECT_FALSE(s.tied_head);
  EXPECT_EQ(attention_of(s.layers[0])->head_dim, 16);
  EXPECT_EQ(attention_of(s.layers[0])->scale, 0.25f);
  EXPECT_EQ(attention_of(s.layers[0])->window, 0);
  ASSERT_EQ(s.ropes.size(), 1U);
  EXPECT_EQ(s.ropes[0].theta, 10000);
  EXPECT_EQ(s.ropes[0].rotary_dim, 16);
}

TEST(Archs, BothLayoutsOfRopeKeysMeanTheSame) {
  const ModelSpec four = spec(
      "LlamaForCausalLM", R"("rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2})");
  const ModelSpec five =
      spec("LlamaForCausalLM",
           R"("rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0})");
  for (const ModelSpec* s : {&four, &five}) {
    EXPECT_EQ(s->ropes[0].theta, 5e5);
    EXPECT_EQ(std::get<RopeLinear>(s->ropes[0].scaling).factor, 2);
  }
  // null is absent: what transformers 4 writes for no scaling.
  const ModelSpec none = spec("LlamaForCausalLM", R"("rope_scaling": null)");
  EXPECT_TRUE(std::holds_alternative<RopeDefault>(none.ropes[0].scaling));
}

TEST(Archs, ProportionalRopeTurnsPairsOfTheWholeHead) {
  const ModelSpec s = spec("LlamaForCausalLM", R"("rope_parameters": {"rope_type": "proportional",
                                  "rope_theta": 1e6, "partial_rotary_factor": 0.25})");
  EXPECT_EQ(s.ropes[0].rotary_dim, 16);
  EXPECT_EQ(std::get<RopeProportional>(s.ropes[0].scaling).part, 0.25);
  EXPECT_EQ(std::get<RopeProportional>(s.ropes[0].scaling).factor, 1);
}

TEST(Archs, WindowsByLayer) {
  EXPECT_EQ(attention_of(spec("MistralForCausalLM", R"("sliding_window": 24)").layers[3])->window,
            24);
  EXPECT_EQ(attention_of(spec("MistralForCausalLM", R"("sliding_window": null)").layers[0])->window,
            0);
  const auto windows = [](const ModelSpec& s) {
    std::vector<int32_t> out;
    for (const LayerSpec& layer : s.layers) out.push_back(attention_of(layer)->window);
    return out;
  };
  using Windows = std::vector<int32_t>;
  // A window that is there but not switched on.
  EXPECT_EQ(windows(spec("Qwen2ForCausalLM", R"("sliding_window": 9, "max_window_layers": 2)")),
            (Windows{0, 0, 0, 0}));
  EXPECT_EQ(windows(spec("Qwen2ForCausalLM", R"("sliding_window": 9, "max_window_layers": 2,
                                                "use_sliding_window": true)")),
            (Windows{0, 0, 9, 9}));
  EXPECT_EQ(
      windows(spec("Gemma2ForCausalLM", R"("sliding_window": 9, "query_pre_attn_scalar": 16)")),
      (Windows{9, 0, 9, 0}));
  EXPECT_EQ(windows(spec("Gemma3ForCausalLM", R"("sliding_window": 9, "query_pre_attn_scalar": 16,
                                                 "sliding_window_pattern": 3)")),
            (Windows{9, 9, 0, 9}));
  EXPECT_EQ(windows(spec("Gemma2ForCausalLM",
                         R"("sliding_window": 9, "query_pre_attn_scalar": 16, "layer_types":
                            ["full_attention", "full_attention", "sliding_attention",
                             "full_attention"])")),
            (Windows{0, 0, 9, 0}));
}

TEST(Archs, Gemma3HasTwoRopes) {
  const ModelSpec s = spec("Gemma3ForCausalLM",
                           R"("sliding_window": 9, "query_pre_attn_scalar": 16, "rope_theta": 1e6,
                              "rope_local_base_freq": 1e4, "sliding_window_pattern": 2,
                              "rope_scaling": {"rope_type": "linear", "factor": 8.0})");
  ASSERT_EQ(s.ropes.size(), 2U);
  const RopeSpec& local = s.ropes[static_cast<size_t>(attention_of(s.layers[0])->rope)];
  const RopeSpec& global = s.ropes[static_cast<size_t>(attention_of(s.layers[1])->rope)];
  EXPECT_EQ(local.theta, 1e4);
  EXPECT_TRUE(std::holds_alternative<RopeDefault>(local.scaling));
  EXPECT_EQ(global.theta, 1e6);
  EXPECT_EQ(std::get<RopeLinear>(global.scaling).factor, 8);
  EXPECT_TRUE(s.tied_head);
  EXPECT_EQ(s.embed_scale, 8.0f);
  EXPECT_EQ(gated_mlp_of(s.layers[0])->activation, ops::Activation::kGeluTanh);
}

TEST(Archs, AsyncTHasGatesAndNormsThatClip) {
  constexpr std::string_view kName = "AsyncTForCausalLM";
  const std::string relu = R"("fir_k": 4, "fir_relu_pre": true, "fir_clip": [-0.5, 2])";
  const ModelSpec s = spec(kName, relu);
  const Attention& attention = *attention_of(s.layers[0]);
  const Gate& gate = std::get<Gate>(attention.weighting);
  EXPECT_EQ(gate.length, 4);
  EXPECT_TRUE(gate.relu_pre);
  EXPECT_EQ(gate.low, -0.5f);
  EXPECT_EQ(gate.high, 2.0f);
  EXPECT_EQ(attention.qk_norm, QkNorm::kPerHead);
  EXPECT_TRUE(std::get<UClipNorm>(attention.qk_norm_kind).alpha_per_channel);
  EXPECT_FALSE(std::get<UClipNorm>(attention.qk_norm_kind).weight_per_channel);
  EXPECT_FALSE(std::get<UClipNorm>(s.norm).alpha_per_channel);
  EXPECT_TRUE(std::get<UClipNorm>(s.norm).weight_per_channel);
  EXPECT_TRUE(s.layers[0].norms.pre && s.layers[0].norms.post);
  expect_spec_refused(kName, R"("fir_k": 0)", "config.json: fir_k");
  expect_spec_refused(kName, R"("fir_k": 9)", "config.json: fir_k");
  expect_spec_refused(kName, R"("fir_clip": [1, 0])", "config.json: fir_clip");
  expect_spec_refused(kName, R"("fir_clip": [0, 0.5, 1])", "config.json: fir_clip");
  expect_spec_refused(kName, R"("norm_gamma": "row")", "config.json: norm_gamma");
  expect_spec_refused("Qwen3ForCausalLM", R"("fir_k": 3)", "config.json: fir_k");
}

// As published for the multimodal sizes: what equals the class's defaults is left out.
TEST(Archs, Gemma3MultimodalFillsDefaults) {
  const auto config = HfConfig::parse(
      R"({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {
          "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
          "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})",
      "config.json");
  const auto s = read_config(*config);
  ASSERT_TRUE(s) << s.error().to_string();
  EXPECT_EQ(s->vocab, 262208);
  EXPECT_EQ(attention_of(s->layers[0])->head_dim, 256);
  EXPECT_EQ(attention_of(s->layers[0])->num_kv_heads, 4);
  EXPECT_EQ(attention_of(s->layers[4])->window, 1024);
  EXPECT_EQ(attention_of(s->layers[5])->window, 0);
}

// Those in lines of the table, and no others.
TEST(Archs, EachHasARowInTheTableOfModels) {
  std::ifstream file("docs/models.md");
  ASSERT_TRUE(file.is_open());
  std::set<std::string> told;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("|")) continue;
    for (size_t begin = line.find('`'); begin != std::string::npos; begin = line.find('`', begin)) {
      const size_t end = line.find('`', ++begin);
      ASSERT_NE(end, std::string::npos) << line;
      const std::string word = line.substr(begin, end - begin);
      begin = end + 1;
      if (!word.ends_with("ForCausalLM") && !word.ends_with("ForConditionalGeneration")) continue;
      EXPECT_TRUE(told.insert(word).second) << word << " has two rows";
    }
  }
  std::set<std::string> known;
  for (const Architecture& one : architectures()) known.emplace(one.name);
  EXPECT_EQ(told, known);
}

// The keys of Gemma 4 beside the common ones.
constexpr std::string_view kGemma4Keys =
    R"("head_dim": 16, "sliding_window": 9, "hidden_size_per_layer_input": 0,
       "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                       "sliding_attention"], "attention_k_eq_v": true,
       "final_logit_softcapping": 30.0)";

TEST(Archs, Gemma4HasWiderHeadsWhereThereIsNoWindow) {
  const auto with = [](std::string_view more) {
    return spec("Gemma4ForCausalLM", fmt::format("{}, {}", kGemma4Keys, more));
  };
  const ModelSpec published = with(R"("global_head_dim": 32, "num_global_key_value_heads": 1)");
  const ModelSpec by_layer = with(R"("per_layer_config": {
      "1": {"head_dim": 32, "num_key_value_heads": 1},
      "3": {"head_dim": 32, "num_key_value_heads": 1}})");
  for (const ModelSpec* s : {&published, &by_layer}) {
    for (const size_t layer : {0U, 1U, 2U, 3U}) {  // the last is forced to have no window
      const bool is_global = layer % 2 == 1;
      const Attention& attention = *attention_of(s->layers[layer]);
      EXPECT_EQ(attention.window, is_global ? 0 : 9) << layer;
      EXPECT_EQ(attention.head_dim, is_global ? 32 : 16);
      EXPECT_EQ(attention.num_kv_heads, is_global ? 1 : 2);
      EXPECT_EQ(attention.v_is_k, is_global);
      EXPECT_TRUE(attention.v_norm);
      EXPECT_EQ(attention.scale, 1.0f);
      EXPECT_TRUE(s->layers[layer].has_scale);
      const RopeSpec& rope = s->ropes[static_cast<size_t>(attention.rope)];
      EXPECT_EQ(rope.theta, is_global ? 1e6 : 1e4);
      EXPECT_EQ(rope.rotary_dim, attention.head_dim);
      EXPECT_EQ(std::holds_alternative<RopeProportional>(rope.scaling), is_global);
    }
    EXPECT_EQ(s->final_softcap, 30);
    EXPECT_TRUE(s->tied_head);
    EXPECT_EQ(s->embed_scale, 8.0f);
  }
  // Where values have a projection of their own, all layers have as many heads of keys.
  const ModelSpec own_values =
      with(R"("attention_k_eq_v": false, "global_head_dim": 32, "num_global_key_value_heads": 1)");
  EXPECT_EQ(attention_of(own_values.layers[1])->num_kv_heads, 2);
  EXPECT_FALSE(attention_of(own_values.layers[1])->v_is_k);
  EXPECT_EQ(attention_of(with(R"("num_global_key_value_heads": null)").layers[1])->head_dim, 512);
}

TEST(Archs, Gemma4SharesKvBetweenItsLastLayers) {
  const ModelSpec s = spec(
      "Gemma4ForCausalLM",
      fmt::format(R"({}, "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                  "full_attention"], "global_head_dim": 32, "num_kv_shared_layers": 2,
                  "use_double_wide_mlp": true, "hidden_size_per_layer_input": 24)",
                  kGemma4Keys));
  for (const size_t layer : {0U, 1U, 2U, 3U}) {
    const bool is_shared = layer >= 2;
    const Attention& attention = *attention_of(s.layers[layer]);
    EXPECT_EQ(attention.own_kv, !is_shared);
    EXPECT_EQ(kv_layer_of(s, layer), is_shared ? layer - 2 : layer);
    EXPECT_EQ(kv_geometry(s.layers[layer]).num_kv_heads, is_shared ? 0 : 2);
    EXPECT_EQ(gated_mlp_of(s.layers[layer])->width, is_shared ? 192 : 96);
  }
  EXPECT_EQ(s.layer_embedding.row_width(), 4 * 24);
  EXPECT_EQ(s.layer_embedding.vocab, 262144);
}

TEST(Archs, Gemma4HasExpertsBesideEachMlp) {
  const ModelSpec s =
      spec("Gemma4ForCausalLM",
           fmt::format(R"({}, "global_head_dim": 32, "enable_moe_block": true, "num_experts": 8,
                       "top_k_experts": 3, "moe_intermediate_size": 40)",
                       kGemma4Keys));
  for (const LayerSpec& layer : s.layers) {
    const Experts& experts = *experts_of(layer);
    EXPECT_EQ(experts.count, 8);
    EXPECT_EQ(experts.chosen, 3);
    EXPECT_EQ(experts.width, 40);
    EXPECT_EQ(experts.shared_width, 96);
    EXPECT_TRUE(experts.own_norms && experts.router.renormalises && experts.router.scales_experts);
    EXPECT_EQ(experts.activation, ops::Activation::kGeluTanh);
  }
}

TEST(Archs, Gemma4RefusesWhatContradictsItself) {
  const auto refused = [](std::string_view key, std::string_view value) {
    expect_spec_refused("Gemma4ForCausalLM",
                        fmt::format(R"({}, "{}": {})", kGemma4Keys, key, value),
                        fmt::format("config.json: {}", key));
  };
  expect_spec_refused("Gemma4ForCausalLM",
                      fmt::format(R"({}, "enable_moe_block": true)", kGemma4Keys),
                      "config.json: num_experts");
  expect_spec_refused("Gemma4ForCausalLM",
                      fmt::format(R"({}, "enable_moe_block": true, "num_experts": 4,
                                  "moe_intermediate_size": 8, "top_k_experts": 5)",
                                  kGemma4Keys),
                      "config.json: top_k_experts");
  expect_spec_refused("Gemma4ForCausalLM",
                      fmt::format(R"({}, "hidden_size_per_layer_input": 8,
                                  "vocab_size_per_layer_input": 99)",
                                  kGemma4Keys),
                      "config.json: vocab_size_per_layer_input");
  refused("num_kv_shared_layers", "3");  // no layer without a window is in front of them
  refused("num_kv_shared_layers", "4");
  refused("num_experts", "8");
  refused("use_bidirectional_attention", R"("all")");
  refused("global_head_dim", "15");
  refused("global_head_dim", "null");
  refused("num_global_key_value_heads", "3");
  expect_spec_refused(
      "Gemma4ForCausalLM",
      fmt::format(R"({}, "rope_parameters": {{"full_attention": {{}}}})", kGemma4Keys),
      "config.json: rope_parameters.sliding_attention");
  const auto refused_at = [](std::string_view layers, std::string_view where) {
    expect_spec_refused("Gemma4ForCausalLM",
                        fmt::format(R"({}, "per_layer_config": {})", kGemma4Keys, layers),
                        fmt::format("config.json: per_layer_config.{}", where));
  };
  refused_at(R"({"4": {"head_dim": 32}})", "4");
  refused_at(R"({"1": {"head_dim": 0}})", "1.head_dim");
  refused_at(R"({"1": {"intermediate_size": 32}})", "1.intermediate_size");
  // A rope is of one width.
  expect_spec_refused(
      "Gemma4ForCausalLM",
      fmt::format(R"({}, "per_layer_config": {{"1": {{"head_dim": 32}}}})", kGemma4Keys),
      "config.json: rope_parameters");
  EXPECT_TRUE(
      read_arch("Gemma4ForCausalLM",
                fmt::format(R"({}, "use_bidirectional_attention": "vision")", kGemma4Keys)));
  expect_spec_refused("LlamaForCausalLM", R"("per_layer_config": {"1": {"head_dim": 32}})",
                      "config.json: per_layer_config");
}

// What is left out is what the class has; each of the two kinds has defaults of its own.
TEST(Archs, Gemma4MultimodalFillsDefaults) {
  const auto read = [](std::string_view architecture, std::string_view more) {
    const std::string text = fmt::format(
        R"({{"architectures": ["{}"], "text_config": {{"hidden_size": 5376,
             "intermediate_size": 21504, "num_hidden_layers": 12, {}}}}})",
        architecture, more);
    const auto s = read_config(*HfConfig::parse(text, "config.json"));
    EXPECT_TRUE(s) << s.error().to_string();
    return s ? *s : ModelSpec{};
  };
  const ModelSpec s = read("Gemma4ForConditionalGeneration", R"("hidden_size_per_layer_input": 0)");
  EXPECT_EQ(s.vocab, 262144);
  EXPECT_EQ(s.embed_scale, std::sqrt(5376.0f));
  EXPECT_EQ(table_scale(s.embed_scale, tensor::DType::kF32), s.embed_scale);
  EXPECT_EQ(table_scale(s.embed_scale, tensor::DType::kBF16), 73.5f);
  EXPECT_EQ(attention_of(s.layers[4])->window, 512);
  EXPECT_EQ(attention_of(s.layers[5])->window, 0);
  EXPECT_EQ(attention_of(s.layers[4])->head_dim, 256);
  EXPECT_EQ(attention_of(s.layers[5])->head_dim, 512);
  EXPECT_EQ(std::get<RopeProportional>(s.ropes[0].scaling).part, 0.25);
  const ModelSpec unified =
      read("Gemma4UnifiedForConditionalGeneration", R"("attention_k_eq_v": true)");
  EXPECT_EQ(attention_of(unified.layers[4])->window, 1024);
  EXPECT_TRUE(attention_of(unified.layers[5])->v_is_k);
}

// null is a value of its own: it switches a mechanism off that the class has.
TEST(Archs, NullIsNotTheDefault) {
  const ModelSpec left_out = spec("Gemma2ForCausalLM", "");
  const ModelSpec off = spec("Gemma2ForCausalLM", R"("final_logit_softcapping": null,
                                                     "attn_logit_softcapping": null)");
  EXPECT_EQ(left_out.final_softcap, 30);
  EXPECT_EQ(softmax_of(left_out.layers[0])->softcap, 50);
  EXPECT_EQ(off.final_softcap, 0);
  EXPECT_EQ(softmax_of(off.layers[0])->softcap, 0);
  EXPECT_EQ(attention_of(left_out.layers[0])->head_dim, 256);
  EXPECT_EQ(attention_of(spec("MistralForCausalLM", "").layers[0])->window, 4096);
  const ModelSpec no_window =
      spec("Qwen2ForCausalLM", R"("use_sliding_window": true, "max_window_layers": 0,
                                  "sliding_window": null)");
  EXPECT_EQ(attention_of(no_window.layers[0])->window, 0);
}

TEST(Archs, LongRopeOfPhi3) {
  const ModelSpec s = spec("Phi3ForCausalLM",
                           R"("original_max_position_embeddings": 128, "rope_scaling": {
                              "type": "su", "short_factor": [1, 1, 1, 1, 1, 1],
                              "long_factor": [2, 2, 2, 2, 2, 2]}, "partial_rotary_factor": 0.75)");
  const auto& rope = std::get<RopeLong>(s.ropes[0].scaling);
  EXPECT_EQ(s.ropes[0].rotary_dim, 12);
  EXPECT_EQ(rope.original_max_positions, 128);
  EXPECT_DOUBLE_EQ(rope.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(128.0)));
}

TEST(Archs, ErrorsNameTheKey) {
  const char* llama = "LlamaForCausalLM";
  expect_spec_refused(llama, R"("hidden_act": "relu2")", "config.json: hidden_act");
  expect_spec_refused(llama, R"("num_key_value_heads": 3)", "config.json: num_key_value_heads");
  expect_spec_refused(llama, R"("head_dim": 15)", "config.json: head_dim");
  expect_spec_refused(llama, R"("hidden_size": -64)", "config.json: hidden_size");
  expect_spec_refused(llama, R"("vocab_size": 1e12)", "config.json: vocab_size");
  expect_spec_refused(llama, R"("rms_norm_eps": 0)", "config.json: rms_norm_eps");
  expect_spec_refused(llama, R"("rms_norm_eps": null)", "config.json: rms_norm_eps");
  expect_spec_refused(llama, R"("num_hidden_layers": "4")", "config.json: num_hidden_layers");
  expect_spec_refused(llama, R"("rope_scaling": [])", "config.json: rope_scaling");
  expect_spec_refused(llama, R"("rope_scaling": {"type": "mrope"})",
                      "config.json: rope_scaling.type");
  expect_spec_refused(llama, R"("rope_scaling": {"type": "linear"})",
                      "config.json: rope_scaling.factor");
  expect_spec_refused(llama, R"("rope_scaling": {"type": "linear", "factor": 0})",
                      "config.json: rope_scaling.factor");
  expect_spec_refused(llama, R"("rope_scaling": {"rope_type": "llama3", "factor": 8})",
                      "config.json: rope_scaling.low_freq_factor");
  expect_spec_refused(llama, R"("rope_theta": -1)", "config.json: rope_theta");
  for (const char* part : {R"("partial_rotary_factor": 1.5)", R"("partial_rotary_factor": 6e12)"}) {
    expect_spec_refused(llama, part, "config.json: partial_rotary_factor");
  }
  expect_spec_refused(
      "Phi3ForCausalLM",
      R"("rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]})",
      "config.json: rope_scaling.short_factor");
  expect_spec_refused("Qwen2ForCausalLM",
                      R"("use_sliding_window": true, "max_window_layers": null)",
                      "config.json: max_window_layers");
  expect_spec_refused("Gemma2ForCausalLM", R"("query_pre_attn_scalar": null)",
                      "config.json: query_pre_attn_scalar");
  expect_spec_refused("Gemma2ForCausalLM", R"("sliding_window": null)",
                      "config.json: sliding_window");
  for (const char* name : {"Qwen3ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"}) {
    expect_spec_refused(name, R"("head_dim": null)", "config.json: head_dim");
  }
  expect_spec_refused("Gemma2ForCausalLM", R"("query_pre_attn_scalar": 16, "sliding_window": 9,
                                         "layer_types": ["full_attention"])",
                      "config.json: layer_types");
  expect_spec_refused("Gemma3ForCausalLM", R"("query_pre_attn_scalar": 16, "sliding_window": 9,
                                         "use_bidirectional_attention": true)",
                      "config.json: use_bidirectional_attention");
  expect_spec_refused("Gemma3ForCausalLM", R"("query_pre_attn_scalar": 16, "sliding_window": 9,
                                         "rope_parameters": {"chunked_attention": {}})",
                      "config.json: rope_parameters.chunked_attention");
  expect_spec_refused("Gemma3ForConditionalGeneration", "", "config.json: text_config");
}

// Names that contradict the architecture, and keys of other architectures' mathematics.
TEST(Archs, ContradictionsAreRefusedByName) {
  const char* llama = "LlamaForCausalLM";
  expect_spec_refused(llama, R"("model_type": "mixtral")", "config.json: model_type");
  expect_spec_refused(llama, R"("torch_dtype": "float99")", "config.json: torch_dtype");
  expect_spec_refused(llama, R"("dtype": "int8")", "config.json: dtype");
  expect_spec_refused(llama, R"("dtype": 16)", "config.json: dtype");
  expect_spec_refused(llama, R"("num_local_experts": 8)", "config.json: num_local_experts");
  expect_spec_refused("Qwen3ForCausalLM", R"("num_experts": 128)", "config.json: num_experts");
  expect_spec_refused(llama, R"("kv_lora_rank": 512)", "config.json: kv_lora_rank");
  expect_spec_refused(llama, R"("residual_multiplier": 0.22)", "config.json: residual_multiplier");
  expect_spec_refused(llama, R"("final_logit_softcapping": 30.0)",
                      "config.json: final_logit_softcapping");
  expect_spec_refused(llama, R"("no_rope_layers": [1, 1, 1, 0])", "config.json: no_rope_layers");
  expect_spec_refused(llama, R"("use_bidirectional_attention": true)",
                      "config.json: use_bidirectional_attention");
  const char* mixed = R"("layer_types": ["linear_attention", "linear_attention",
                                         "linear_attention", "full_attention"])";
  expect_spec_refused(llama, mixed, "config.json: layer_types");
  // Windows that nobody switched on.
  expect_spec_refused("Qwen2ForCausalLM", R"("layer_types": ["full_attention", "full_attention",
                                             "full_attention", "sliding_attention"])",
                      "config.json: layer_types");
  expect_spec_refused(llama, R"("hybrid_override_pattern": "M-M*")",
                      "config.json: hybrid_override_pattern");
  const std::string text = fmt::format(
      R"({{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
          "text_config": {{{}, "query_pre_attn_scalar": 16, "sliding_window": 9, {}}}}})",
      kCommon, R"("num_experts": 8)");
  const auto in_text = read_config(*HfConfig::parse(text, "config.json"));
  ASSERT_FALSE(in_text);
  EXPECT_EQ(in_text.error().where, "config.json: text_config.num_experts");
}

TEST(Archs, KeysThatAskForNothingAreTaken) {
  const ModelSpec plain = spec("LlamaForCausalLM", "");
  const ModelSpec more =
      spec("LlamaForCausalLM",
           R"("model_type": "llama", "torch_dtype": "float16", "num_local_experts": 0,
              "num_experts": null, "residual_multiplier": 1.0, "attention_chunk_size": null,
              "is_encoder_decoder": false, "final_logit_softcapping": null,
              "use_qk_norm": false, "layer_types": ["full_attention", "full_attention"], "made_up_by_a_tool": {"a": 1}, "transformers_version": "5.0")");
  EXPECT_EQ(more.layers.size(), plain.layers.size());
  EXPECT_EQ(more.final_softcap, 0);
  // The architecture reads these itself.
  EXPECT_EQ(spec("Gemma2ForCausalLM", R"("sliding_window": 9, "query_pre_attn_scalar": 16,
                                         "final_logit_softcapping": 30.0,
                                         "attn_logit_softcapping": 50.0)")
                .final_softcap,
            30);
}

}  // namespace
}  // namespace rudder::model
