#include "rudder/model/assistant.h"

#include <gtest/gtest.h>

#include "rudder/model/tiny_checkpoint.h"

namespace rudder::model {
namespace {

// Two layers over rows of 6, of a model whose heads are 4 wide with a window and 8 without.
struct PublishedAssistant : TinyModel {
  PublishedAssistant() {
    config = R"({"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant",
        "backbone_hidden_size": 6, "use_ordered_embeddings": false, "num_centroids": 2048,
        "text_config": {"model_type": "gemma4_text", "hidden_size": 8, "intermediate_size": 6,
          "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
          "head_dim": 4, "global_head_dim": 8, "num_global_key_value_heads": 1,
          "attention_k_eq_v": true, "num_kv_shared_layers": 2, "sliding_window": 9,
          "layer_types": ["sliding_attention", "full_attention"], "vocab_size": 5,
          "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0}})";
    decls.clear();
    add("model.embed_tokens.weight", {5, 8});
    add("model.norm.weight", {8});
    add("pre_projection.weight", {8, 12});
    add("post_projection.weight", {6, 8});
    for (const uint64_t layer : {0, 1}) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      const uint64_t dim = layer == 0 ? 4 : 8;
      for (const char* norm : {"input_layernorm", "post_attention_layernorm",
                               "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
        add(prefix + norm + ".weight", {8});
      }
      add(prefix + "layer_scalar", {1});
      add(prefix + "self_attn.q_norm.weight", {dim});
      add(prefix + "self_attn.q_proj.weight", {2 * dim, 8});
      add(prefix + "self_attn.o_proj.weight", {8, 2 * dim});
      add(prefix + "mlp.gate_proj.weight", {6, 8});
      add(prefix + "mlp.up_proj.weight", {6, 8});
      add(prefix + "mlp.down_proj.weight", {8, 6});
    }
  }
};

Result<AssistantWeights> load_published(TinyModel& tiny, KeepingOps& ops) {
  RUDDER_TRY(const auto checkpoint, tiny.open());
  RUDDER_TRY(const AssistantSpec spec, read_assistant(*checkpoint));
  return load_assistant(*checkpoint, spec, ops);
}

void expect_assistant_refused(TinyModel tiny, ErrorCode code, std::string_view part) {
  KeepingOps ops;
  const auto loaded = load_published(tiny, ops);
  ASSERT_FALSE(loaded) << part;
  EXPECT_EQ(ops.num_parts, 0) << "refused only after weights were read";
  EXPECT_EQ(loaded.error().code, code) << loaded.error().to_string();
  EXPECT_NE(loaded.error().to_string().find(part), std::string::npos) << loaded.error().to_string();
}

TEST(AssistantLoader, LayersHaveQueriesAlone) {
  PublishedAssistant tiny;
  const auto checkpoint = tiny.open().value();
  const auto spec = read_assistant(*checkpoint);
  ASSERT_TRUE(spec) << spec.error().to_string();
  EXPECT_EQ(spec->target_hidden, 6);
  ASSERT_EQ(spec->layers.layers.size(), 2U);
  EXPECT_EQ(spec->layers.final_softcap, 0);  // its logits are as they are
  for (const LayerSpec& layer : spec->layers.layers) {
    EXPECT_FALSE(attention_of(layer)->own_kv);
    EXPECT_FALSE(attention_of(layer)->v_norm);
    EXPECT_EQ(kv_geometry(layer).num_kv_heads, 0);
    EXPECT_EQ(attention_of(layer)->qkv_width(), attention_of(layer)->q_width());
  }
  EXPECT_EQ(attention_of(spec->layers.layers[0])->window, 9);
  EXPECT_EQ(attention_of(spec->layers.layers[1])->num_kv_heads, 1);
  KeepingOps ops;
  const auto weights = load_assistant(*checkpoint, *spec, ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  EXPECT_EQ(weights->pre.in, 12);
  EXPECT_EQ(weights->post.out, 6);
  EXPECT_EQ(weights->layers.layers[0].scale, 0.25f);
  EXPECT_TRUE(weights->layers.embedding.empty());  // the head's rows alone are there
  EXPECT_EQ(weights->bytes, assistant_bytes(*spec, all_as({ops::Codes::kF32})).value());
}

TEST(AssistantLoader, WhatItDoesNotHaveIsRefusedByName) {
  const auto with = [](std::string_view from, std::string_view to) {
    PublishedAssistant tiny;
    tiny.replace_in_config(from, to);
    return tiny;
  };
  expect_assistant_refused(
      with("\"use_ordered_embeddings\": false", "\"use_ordered_embeddings\": true"),
      ErrorCode::kUnsupported, "use_ordered_embeddings");
  expect_assistant_refused(with("\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 1"),
                           ErrorCode::kUnsupported, "text_config.num_kv_shared_layers");
  expect_assistant_refused(
      with("\"hidden_size_per_layer_input\": 0", "\"hidden_size_per_layer_input\": 2"),
      ErrorCode::kUnsupported, "text_config.hidden_size_per_layer_input");
  expect_assistant_refused(with("Gemma4AssistantForCausalLM", "Gemma4ForCausalLM"),
                           ErrorCode::kUnsupported, "is not one of Gemma4AssistantForCausalLM");
  expect_assistant_refused(with("\"backbone_hidden_size\": 6", "\"backbone_hidden_size\": 7"),
                           ErrorCode::kCorruptFile, "pre_projection.weight");
  PublishedAssistant keys;
  keys.add("model.layers.0.self_attn.k_proj.weight", {8, 8});
  expect_assistant_refused(keys, ErrorCode::kUnsupported, "self_attn.k_proj.weight");
  PublishedAssistant missing;
  missing.decls.erase("post_projection.weight");
  expect_assistant_refused(missing, ErrorCode::kCorruptFile, "post_projection.weight");
}

// It is no model by itself.
TEST(AssistantLoader, ItIsNotServedAlone) {
  PublishedAssistant tiny;
  tiny.expect_refused(ErrorCode::kUnsupported, "Gemma4AssistantForCausalLM");
}

}  // namespace
}  // namespace rudder::model
