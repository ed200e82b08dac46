#include "rudder/model/loader.h"

#include <gtest/gtest.h>

#include "rudder/model/norm_gains.h"
#include "rudder/model/tensors.h"
#include "rudder/model/tiny_checkpoint.h"

namespace rudder::model {
namespace {

using tensor::DType;

TEST(Loader, BindsEveryTensor) {
  TinyModel tiny;
  KeepingOps ops;
  int64_t done = 0;
  int64_t total = 0;
  const auto weights = tiny.load(ops, [&](int64_t d, int64_t t) {
    EXPECT_GE(d, done);
    done = d;
    total = t;
  });
  ASSERT_TRUE(weights) << weights.error().to_string();
  EXPECT_EQ(done, total);
  ASSERT_EQ(weights->layers.size(), 1U);
  EXPECT_EQ(std::get<Attention::Weights>(weights->layers[0].mixer).qkv.out, 16);
  const auto& mlp = std::get<GatedMlp::Weights>(weights->layers[0].mlp);
  EXPECT_EQ(mlp.gate_up.out, 12);
  EXPECT_EQ(mlp.down.in, 6);
  EXPECT_TRUE(weights->layers[0].mixer_post_norm.empty());
  EXPECT_EQ(weights->final_norm.weight.as<float>()[0], 0.25f);
  EXPECT_EQ(weights->final_norm.eps, 1e-5f);
  EXPECT_EQ(ops.num_parts, 3 + 1 + 2 + 1 + 1);
  EXPECT_EQ(ops.num_biases, 0);
}

TEST(Loader, BindsBiases) {
  TinyModel tiny;
  tiny.replace_in_config("LlamaForCausalLM", "Qwen2ForCausalLM");
  tiny.expect_refused(ErrorCode::kCorruptFile, "'model.layers.0.self_attn.q_proj.bias' is missing");
  tiny.add("model.layers.0.self_attn.q_proj.bias", {8});
  tiny.add("model.layers.0.self_attn.k_proj.bias", {4});
  tiny.add("model.layers.0.self_attn.v_proj.bias", {4});
  KeepingOps ops;
  ASSERT_TRUE(tiny.load(ops));
  EXPECT_EQ(ops.num_biases, 3);
}

// A gate has a sigma and a gamma a head, and no checkpoint may leave them out.
TEST(Loader, AGateWithoutSigmaIsRefusedByName) {
  TinyModel tiny;
  tiny.replace_in_config("LlamaForCausalLM", "AsyncTForCausalLM");
  tiny.replace_in_config("\"silu\"", "\"relu\"");
  const std::string layer = "model.layers.0.";
  for (const std::string& norm :
       {std::string("model.norm"), layer + "input_layernorm", layer + "post_attention_layernorm",
        layer + "pre_feedforward_layernorm", layer + "post_feedforward_layernorm"}) {
    tiny.decls.erase(norm + ".weight");
    tiny.add(norm + ".alpha", {1});
    tiny.add(norm + ".gamma", {8});
  }
  for (const std::string& norm : {layer + "self_attn.q_norm", layer + "self_attn.k_norm"}) {
    tiny.add(norm + ".alpha", {4});
    tiny.add(norm + ".gamma", {1});
  }
  const std::string sigma = layer + "self_attn.fir_sigma";
  const std::string gamma = layer + "self_attn.fir_gamma";
  for (const std::string& name : {sigma, gamma}) tiny.add(name, {2});
  KeepingOps ops;
  const auto whole = tiny.load(ops);
  ASSERT_TRUE(whole) << whole.error().to_string();
  for (const std::string& name : {sigma, gamma}) {
    TinyModel without = tiny;
    without.decls.erase(name);
    without.expect_refused(ErrorCode::kCorruptFile, "'" + name + "' is missing");
  }
}

// Parts that no architecture asks for yet: the spec says that they are there.
TEST(Loader, ReadsSinksAndLayerScales) {
  TinyModel tiny;
  ModelSpec spec = *read_spec(**tiny.open());
  softmax_of(spec.layers[0])->sinks = true;
  attention_of(spec.layers[0])->v_norm = true;
  spec.layers[0].has_scale = true;
  KeepingOps ops;
  const auto missing = load_weights(**tiny.open(), spec, ops, {});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().to_string().find("'model.layers.0.self_attn.sinks' is missing"),
            std::string::npos)
      << missing.error().to_string();
  tiny.add("model.layers.0.self_attn.sinks", {2});
  tiny.values["model.layers.0.self_attn.sinks"] = -1.5f;
  tiny.add("model.layers.0.layer_scalar", {1});
  tiny.values["model.layers.0.layer_scalar"] = 0.75f;
  const auto checkpoint = tiny.open();
  const auto weights = load_weights(**checkpoint, spec, ops, {});
  ASSERT_TRUE(weights) << weights.error().to_string();
  const auto& attention = std::get<Attention::Weights>(weights->layers[0].mixer);
  ASSERT_EQ(attention.sinks.num_rows(), 2);
  EXPECT_EQ(attention.sinks.as<float>()[1], -1.5f);
  EXPECT_EQ(attention.v_norm.weight.num_rows(), 4);
  EXPECT_EQ(attention.v_norm.weight.as<float>()[3], 1);
  EXPECT_EQ(weights->layers[0].scale, 0.75f);
  EXPECT_EQ(weights->bytes, weight_budget(spec, {}, all_as({ops::Codes::kF32}))->bytes);
  tiny.add("model.layers.0.self_attn.sinks", {3});
  EXPECT_FALSE(load_weights(**tiny.open(), spec, ops, {}));
}

TEST(Loader, AddsOneToNormsStoredWithoutIt) {
  TinyModel tiny;
  tiny.replace_in_config("LlamaForCausalLM", "Gemma2ForCausalLM");
  tiny.replace_in_config(
      "\"vocab_size\"",
      "\"query_pre_attn_scalar\": 4, \"head_dim\": 4, \"sliding_window\": 8, \"vocab_size\"");
  tiny.add("model.layers.0.pre_feedforward_layernorm.weight", {8});
  tiny.add("model.layers.0.post_feedforward_layernorm.weight", {8});
  KeepingOps ops;
  const auto weights = tiny.load(ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  EXPECT_EQ(weights->final_norm.weight.as<float>()[0], 1.25f);
  EXPECT_EQ(weights->layers[0].mlp_post_norm.weight.as<float>()[3], 1.25f);
}

TEST(Loader, GainsAreWhatTheNormInFrontOfTheMlpMultipliesBy) {
  TinyModel tiny;
  tiny.values["model.layers.0.post_attention_layernorm.weight"] = -0.5f;
  const auto gains_of = [&] {
    const auto checkpoint = tiny.open();
    const auto spec = read_spec(**checkpoint);
    EXPECT_TRUE(spec) << spec.error().to_string();
    return read_mlp_gains(**checkpoint, *spec);
  };
  auto gains = gains_of();
  ASSERT_TRUE(gains) << gains.error().to_string();
  ASSERT_EQ(gains->size(), 1U);
  EXPECT_EQ(gains->front().tensor, "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(gains->front().values, std::vector<float>(8, -0.5f));
  tiny.replace_in_config("LlamaForCausalLM", "Gemma2ForCausalLM");
  tiny.replace_in_config("\"vocab_size\"",
                         "\"query_pre_attn_scalar\": 4, \"sliding_window\": 8, \"vocab_size\"");
  tiny.add("model.layers.0.pre_feedforward_layernorm.weight", {8});
  gains = gains_of();
  ASSERT_TRUE(gains) << gains.error().to_string();
  EXPECT_EQ(gains->front().tensor, "model.layers.0.pre_feedforward_layernorm.weight");
  EXPECT_EQ(gains->front().values, std::vector<float>(8, 1.25f));
  tiny.add("model.layers.0.pre_feedforward_layernorm.weight", {7});
  EXPECT_EQ(gains_of().error().where.substr(0, 5), "model");
}

TEST(Loader, RefusesWhatDoesNotFit) {
  TinyModel extra;
  extra.add("model.layers.0.self_attn.q_proj.bias", {8});
  extra.expect_refused(ErrorCode::kUnsupported, "'model.layers.0.self_attn.q_proj.bias'");
  TinyModel further_layer;
  further_layer.add("model.layers.1.input_layernorm.weight", {8});
  further_layer.expect_refused(ErrorCode::kUnsupported, "'model.layers.1.input_layernorm.weight'");
  TinyModel missing;
  missing.decls.erase("model.norm.weight");
  missing.expect_refused(ErrorCode::kCorruptFile, "'model.norm.weight' is missing");
  TinyModel no_head;
  no_head.decls.erase("lm_head.weight");
  no_head.expect_refused(ErrorCode::kCorruptFile, "'lm_head.weight' is missing");
  TinyModel shape;
  shape.add("model.layers.0.mlp.up_proj.weight", {8, 6});
  shape.expect_refused(ErrorCode::kCorruptFile, "its shape is [8, 6], the config asks for [6, 8]");
  TinyModel type;
  type.add("model.layers.0.mlp.up_proj.weight", {6, 8}, DType::kI8);
  type.expect_refused(ErrorCode::kUnsupported, "type I8");
}

// As loading looks at them, without a backend.
TEST(Loader, TensorsAreCheckedBeforeAStart) {
  TinyModel whole;
  const auto checkpoint = *whole.open();
  EXPECT_TRUE(check_tensors(*checkpoint, *read_spec(*checkpoint)));
  TinyModel missing;
  missing.decls.erase("model.layers.0.mlp.up_proj.weight");
  const auto without = *missing.open();
  const auto refused = check_tensors(*without, *read_spec(*without));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("'model.layers.0.mlp.up_proj.weight' is missing"),
            std::string::npos)
      << refused.error().to_string();
}

TEST(Loader, TakesTheNamesOfEveryExporter) {
  for (const char* prefix :
       {"", "model.language_model.", "language_model.model.", "language_model."}) {
    for (const char* head : {"lm_head.weight", "language_model.lm_head.weight"}) {
      TinyModel tiny;
      const auto renamed = [&](const std::string& name) {
        if (name == "lm_head.weight") return std::string(head);
        return prefix + name.substr(std::string_view("model.").size());
      };
      for (const auto& [name, decl] : std::map(tiny.decls)) {
        tiny.decls.erase(name);
        tiny.decls[renamed(name)] = {renamed(name), decl.dtype, decl.shape};
      }
      tiny.values[renamed("model.norm.weight")] = 0.75f;
      KeepingOps ops;
      const auto weights = tiny.load(ops);
      ASSERT_TRUE(weights) << prefix << ": " << weights.error().to_string();
      EXPECT_EQ(weights->final_norm.weight.as<float>()[0], 0.75f);
      const auto checkpoint = tiny.open();
      const auto gains = read_mlp_gains(**checkpoint, read_spec(**checkpoint).value());
      ASSERT_TRUE(gains) << gains.error().to_string();
      EXPECT_TRUE(gains->front().tensor.starts_with(std::string(prefix) + "layers.0."));
    }
  }
}

TEST(Loader, FindsTheNamesOfEveryArchitectureBehindEveryPrefix) {
  for (const Architecture& architecture : architectures()) {
    const WeightNames& own = architecture.names;
    for (const std::string prefix : {"", "model.", "model.language_model."}) {
      TinyModel tiny;
      tiny.decls.clear();
      const std::string table = prefix + own.embedding.substr(own.prefix.size());
      const std::string norm = prefix + own.final_norm.substr(own.prefix.size());
      tiny.add(table, {5, 8});
      tiny.add(norm + ".weight", {8});
      const WeightNames names = names_in(own, **tiny.open());
      EXPECT_EQ(names.prefix, prefix) << architecture.name;
      EXPECT_EQ(names.embedding, table) << architecture.name;
      EXPECT_EQ(names.final_norm, norm) << architecture.name;
    }
  }
}

TEST(Loader, AModelOfRowsAloneHasNoHead) {
  TinyModel tiny;
  tiny.decls.erase("lm_head.weight");
  tiny.replace_in_config("LlamaForCausalLM", "LlamaModel");
  const auto checkpoint = tiny.open();
  const auto spec = read_spec(**checkpoint);
  ASSERT_TRUE(spec) << spec.error().to_string();
  EXPECT_FALSE(spec->has_head);
  EXPECT_EQ(spec->architecture, "LlamaForCausalLM");
  KeepingOps ops;
  EXPECT_TRUE(tiny.load(ops));
  tiny.replace_in_config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  EXPECT_TRUE(read_spec(**tiny.open())->has_head) << "the table is the head";
}

TEST(Loader, IgnoresRotaryBuffers) {
  TinyModel tiny;
  tiny.add("model.layers.0.self_attn.rotary_emb.inv_freq", {2});
  KeepingOps ops;
  EXPECT_TRUE(tiny.load(ops));
}

TEST(Loader, TiesTheHead) {
  TinyModel tiny;
  tiny.replace_in_config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  KeepingOps ops;
  const auto with_copy = tiny.load(ops);
  ASSERT_TRUE(with_copy) << with_copy.error().to_string();
  EXPECT_TRUE(with_copy->embedding.empty());
  tiny.decls.erase("lm_head.weight");
  EXPECT_TRUE(tiny.load(ops));
  tiny.add("lm_head.weight", {5, 8});
  tiny.values["lm_head.weight"] = 0.5f;
  const auto apart = tiny.load(ops);  // as in transformers, the file goes before the config
  ASSERT_TRUE(apart) << apart.error().to_string();
  EXPECT_FALSE(apart->embedding.empty());
}

// As writers that look at memory leave a tied pair: under the name that comes first.
TEST(Loader, TheHeadAloneIsTheEmbeddingOfATiedPair) {
  TinyModel tiny;
  tiny.decls.erase("model.embed_tokens.weight");
  tiny.expect_refused(ErrorCode::kCorruptFile, "'model.embed_tokens.weight' is missing");
  tiny.replace_in_config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  KeepingOps ops;
  const auto weights = tiny.load(ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  EXPECT_TRUE(weights->embedding.empty());
}

TEST(Loader, RefusesUnknownArchitectures) {
  TinyModel tiny;
  tiny.replace_in_config("LlamaForCausalLM", "T5ForConditionalGeneration");
  tiny.expect_refused(ErrorCode::kUnsupported, "'T5ForConditionalGeneration' is not one of");
  tiny.replace_in_config("[\"T5ForConditionalGeneration\"]", "[]");
  tiny.expect_refused(ErrorCode::kCorruptFile, "architectures");
}

TEST(Loader, PlansMemoryExactlyForF32) {
  TinyModel tiny;
  KeepingOps ops;
  const auto weights = tiny.load(ops);
  ASSERT_TRUE(weights);
  const auto checkpoint = weights::Checkpoint::open_memory(
      {{"config.json", std::as_bytes(std::span(tiny.config))},
       {"model.safetensors", std::as_bytes(std::span(tiny.file))}});
  ASSERT_TRUE(checkpoint);
  const ModelSpec spec = *read_spec(**checkpoint);
  EXPECT_EQ(weights->bytes, weight_budget(spec, {}, all_as({ops::Codes::kF32}))->bytes);
}

}  // namespace
}  // namespace rudder::model
