#include "rudder/model/draft_head.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "rudder/model/tiny_checkpoint.h"

namespace rudder::model {
namespace {

using tensor::DType;

// A head of 3 of 5 tokens, laid out as published ones are.
struct TinyHead : TinyModel {
  explicit TinyHead(const std::string& prefix = "midlayer.") {
    config =
        R"({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 8,
            "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 5, "draft_vocab_size": 3,
            "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "hidden_act": "silu"})";
    decls.clear();
    add("fc.weight", {8, 24});
    add(prefix + "input_layernorm.weight", {8});
    add(prefix + "hidden_norm.weight", {8});
    add(prefix + "post_attention_layernorm.weight", {8});
    add(prefix + "self_attn.q_proj.weight", {8, 16});
    add(prefix + "self_attn.k_proj.weight", {4, 16});
    add(prefix + "self_attn.v_proj.weight", {4, 16});
    add(prefix + "self_attn.o_proj.weight", {8, 8});
    add(prefix + "mlp.gate_proj.weight", {6, 8});
    add(prefix + "mlp.up_proj.weight", {6, 8});
    add(prefix + "mlp.down_proj.weight", {8, 6});
    add("norm.weight", {8});
    add("lm_head.weight", {3, 8});
    add("d2t", {3}, DType::kI64);
    integers["d2t"] = {1, 1, 2};  // tokens 1, 2 and 4
    add("t2d", {5}, DType::kBool);
  }

  HeadInput input = HeadInput::kSideBySide;  // what is asked for

  Result<DraftHeadSpec> read() {
    RUDDER_TRY(const auto checkpoint, open());
    return read_draft_head(*checkpoint, input);
  }
  Result<DraftHeadWeights> load_head(KeepingOps& ops) {
    RUDDER_TRY(const auto checkpoint, open());
    RUDDER_TRY(const DraftHeadSpec spec, read_draft_head(*checkpoint, input));
    return load_draft_head(*checkpoint, spec, ops);
  }
  void expect_head_refused(ErrorCode code, std::string_view part) {
    KeepingOps ops;
    const auto loaded = load_head(ops);
    ASSERT_FALSE(loaded) << part;
    EXPECT_EQ(ops.num_parts, 0) << "refused only after weights were read";
    EXPECT_EQ(loaded.error().code, code) << loaded.error().to_string();
    EXPECT_NE(loaded.error().to_string().find(part), std::string::npos)
        << loaded.error().to_string();
  }
};

// One that multiplies embedding and row, laid out as published ones are.
struct TinyProductHead : TinyHead {
  explicit TinyProductHead(std::string_view architecture = "EagleLlamaForCausalLM")
      : TinyHead("layers.0.") {
    replace_in_config("LlamaForCausalLMEagle3", architecture);
    replace_in_config("\"draft_vocab_size\": 3,", "");
    for (const char* name : {"layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight",
                             "norm.weight", "lm_head.weight", "d2t", "t2d"}) {
      decls.erase(name);
    }
    integers.clear();
    add("fc.weight", {8, 16});
    add("fc.bias", {8});
    add("layers.0.self_attn.q_proj.weight", {8, 8});
    add("layers.0.self_attn.k_proj.weight", {4, 8});
    add("layers.0.self_attn.v_proj.weight", {4, 8});
    add("embed_tokens.weight", {5, 8});  // a copy of the model's, which is read in its place
    input = HeadInput::kProduct;
  }
};

TEST(DraftHead, BindsEveryTensor) {
  for (const char* prefix : {"midlayer.", "layers.0."}) {
    TinyHead tiny(prefix);
    KeepingOps ops;
    const auto weights = tiny.load_head(ops);
    ASSERT_TRUE(weights) << weights.error().to_string();
    EXPECT_EQ(weights->fc.in, 24);
    EXPECT_EQ(weights->attention.qkv.in, 16);
    EXPECT_EQ(weights->attention.qkv.out, 16);
    EXPECT_EQ(weights->attention.out.in, 8);
    EXPECT_EQ(weights->mlp.gate_up.out, 12);
    EXPECT_EQ(weights->head.out, 3);
    EXPECT_EQ(weights->final_norm.eps, 1e-5f);
    EXPECT_TRUE(weights->embedding.empty());
    EXPECT_TRUE(weights->fc_norm.empty());
    ASSERT_EQ(weights->target_ids.num_rows(), 3);
    const auto* const ids = weights->target_ids.as<int32_t>();
    EXPECT_EQ(std::vector<int32_t>(ids, ids + 3), (std::vector<int32_t>{1, 2, 4}));
    EXPECT_EQ(weights->bytes, draft_head_bytes(*tiny.read(), all_as({ops::Codes::kF32})).value());
  }
}

// A head of 33 of 40 tokens.
TinyHead tiny_for_ranks() {
  TinyHead tiny;
  tiny.replace_in_config("\"vocab_size\": 5", "\"vocab_size\": 40");
  tiny.replace_in_config("\"draft_vocab_size\": 3", "\"draft_vocab_size\": 33");
  tiny.add("lm_head.weight", {33, 8});
  tiny.add("d2t", {33}, DType::kI64);
  tiny.integers["d2t"] = std::vector<int64_t>(33, 7);
  tiny.add("t2d", {40}, DType::kBool);
  return tiny;
}

TEST(DraftHead, ARankLoadsItsPart) {
  for (int32_t index = 0; index < 2; ++index) {
    const ops::Rank rank{index, 2};
    TinyHead tiny = tiny_for_ranks();
    KeepingRankOps ops(rank);
    const auto weights = tiny.load_head(ops);
    ASSERT_TRUE(weights) << weights.error().to_string();
    EXPECT_EQ(weights->fc.in, 12);
    EXPECT_EQ(weights->fc.out, 8);
    EXPECT_EQ(weights->attention.qkv.in, 16);
    EXPECT_EQ(weights->attention.qkv.out, 12) << "its query head, and the KV head of both";
    EXPECT_EQ(weights->attention.out.in, 4);
    EXPECT_EQ(weights->mlp.gate_up.out, 6);
    EXPECT_EQ(weights->mlp.down.in, 3);
    EXPECT_EQ(weights->head.out, index == 0 ? 32 : 1);
    EXPECT_EQ(weights->target_ids.num_rows(), 33);
    EXPECT_EQ(weights->bytes,
              draft_head_bytes(*tiny.read(), all_as({ops::Codes::kF32}), rank).value());
    TinyProductHead product;
    KeepingRankOps others(rank);
    ASSERT_TRUE(product.load_head(others));
    EXPECT_EQ(others.num_biases, index == 0 ? 1 : 0) << "the sum over ranks has it once";
  }
}

TEST(DraftHead, WhatRanksCannotDivideIsNamed) {
  const auto message = [](const DraftHeadSpec& spec, int32_t count) {
    const auto part = shard_draft_head(spec, {0, count});
    EXPECT_FALSE(part);
    EXPECT_EQ(part.error().where, "tensor-parallel-size");
    return part.error().message;
  };
  DraftHeadSpec spec = *tiny_for_ranks().read();
  const auto part = shard_draft_head(spec, {1, 2});
  ASSERT_TRUE(part);
  EXPECT_EQ(attention_of(part->layer.layers[0])->num_heads, 1);
  EXPECT_EQ(part->draft_vocab, 33);
  EXPECT_EQ(message(spec, 3), "the 2 heads of layer 0 cannot be divided among 3 ranks");
  spec.draft_vocab = 16;
  EXPECT_EQ(message(spec, 2), "the 16 tokens of its lm_head cannot be divided among 2 ranks");
  spec.target_hidden = 9;
  EXPECT_EQ(message(spec, 2), "the 27 inputs of fc cannot be divided among 2 ranks");
}

TEST(DraftHead, ReadsWhatItsConfigAsksFor) {
  TinyHead tiny;
  const DraftHeadSpec plain = *tiny.read();
  EXPECT_EQ(plain.target_hidden, 8);
  EXPECT_EQ(plain.draft_vocab, 3);
  EXPECT_TRUE(plain.aux_layers.empty());
  EXPECT_EQ(plain.num_aux, 3);
  EXPECT_FALSE(plain.norm_before_residual || plain.norm_before_fc || plain.norm_output ||
               plain.has_embedding);
  EXPECT_EQ(default_aux_layers(8), (std::vector<int32_t>{2, 4, 5}));
  EXPECT_EQ(default_aux_layers(32), (std::vector<int32_t>{2, 16, 29}));

  tiny.replace_in_config("\"model_type\"", R"("norm_before_residual": true, "norm_output": true,
      "norm_before_fc": true, "target_hidden_size": 10,
      "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 1]}, "model_type")");
  tiny.add("embed_tokens.weight", {5, 8});
  const DraftHeadSpec full = *tiny.read();
  EXPECT_TRUE(full.norm_before_residual && full.norm_before_fc && full.norm_output &&
              full.has_embedding);
  EXPECT_EQ(full.aux_layers, (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(full.aux_width(), 20);
  tiny.expect_head_refused(ErrorCode::kCorruptFile, "'input_norm.weight' is missing");
  tiny.add("input_norm.weight", {20});
  tiny.expect_head_refused(ErrorCode::kCorruptFile, "tensor 'fc.weight'");
  tiny.add("fc.weight", {8, 20});
  KeepingOps ops;
  const auto weights = tiny.load_head(ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  EXPECT_EQ(weights->embedding.num_rows(), 5);
  EXPECT_EQ(weights->fc_norm.weight.num_rows(), 20);
  EXPECT_EQ(weights->bytes, draft_head_bytes(full, all_as({ops::Codes::kF32})).value());
}

TEST(DraftHead, WhatIsMissingOrTooMuchIsNamed) {
  const TinyHead whole;
  for (const auto& [name, decl] : whole.decls) {
    if (name == "t2d") continue;
    TinyHead tiny;
    tiny.decls.erase(name);
    tiny.expect_head_refused(ErrorCode::kCorruptFile, "'" + name + "' is missing");
  }
  for (const auto& [name, decl] : whole.decls) {
    if (decl.dtype != DType::kF32) continue;
    TinyHead tiny;
    tiny.add(name, {7, 7});
    tiny.expect_head_refused(ErrorCode::kCorruptFile, "tensor '" + name + "'");
  }
  TinyHead tiny;
  tiny.add("midlayer.self_attn.q_norm.weight", {4});
  tiny.expect_head_refused(ErrorCode::kUnsupported, "'midlayer.self_attn.q_norm.weight'");
}

TEST(DraftHead, TokensThatTheModelDoesNotHaveAreRefused) {
  using Ids = std::vector<int64_t>;
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
  for (const Ids& ids :
       {Ids{1, 1, 3}, Ids{-1, 1, 2}, Ids{1, 0, 2}, Ids{1, 1, kFar}, Ids{-kFar - 1, 1, 2}}) {
    TinyHead tiny;
    tiny.integers["d2t"] = ids;
    tiny.expect_head_refused(ErrorCode::kCorruptFile, "tensor 'd2t'");
  }
  TinyHead tiny;
  tiny.add("d2t", {4}, DType::kI64);
  tiny.integers["d2t"] = {0, 0, 0, 0};
  tiny.expect_head_refused(ErrorCode::kCorruptFile, "tensor 'd2t'");
}

TEST(DraftHead, OtherHeadsAreRefused) {
  const auto expect = [](std::string_view from, std::string_view to, ErrorCode code,
                         std::string_view part) {
    TinyHead tiny;
    tiny.replace_in_config(from, to);
    tiny.expect_head_refused(code, part);
  };
  using enum ErrorCode;
  expect("LlamaForCausalLMEagle3", "LlamaForCausalLM", kUnsupported, "architectures");
  expect("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", kUnsupported, "num_hidden_layers");
  expect("\"draft_vocab_size\": 3", "\"draft_vocab_size\": 6", kCorruptFile, "draft_vocab_size");
  expect("\"model_type\"", "\"fc_norm\": true, \"model_type\"", kUnsupported, "fc_norm");
  expect("\"model_type\"", "\"eagle_config\": {\"use_aux_hidden_state\": false}, \"model_type\"",
         kUnsupported, "use_aux_hidden_state");
  expect("\"model_type\"",
         "\"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [1, -2, 3]}, \"model_type\"",
         kCorruptFile, "eagle_aux_hidden_state_layer_ids");
  expect("\"model_type\"", "\"num_aux_hidden_states\": 9, \"model_type\"", kCorruptFile,
         "num_aux_hidden_states");
}

TEST(DraftHead, AProductOfEmbeddingAndRowBindsEveryTensor) {
  for (const char* name : {"EagleLlamaForCausalLM", "LlamaForCausalLMEagle", "LlamaForCausalLM"}) {
    TinyProductHead tiny(name);
    const auto spec = tiny.read();
    ASSERT_TRUE(spec) << spec.error().to_string();
    EXPECT_TRUE(spec->is_product() && spec->fc_bias && spec->aux_layers.empty());
    EXPECT_FALSE(spec->has_embedding);
    EXPECT_EQ(spec->aux_width(), 8);
    EXPECT_EQ(spec->draft_vocab, 5);
    KeepingOps ops;
    const auto weights = tiny.load_head(ops);
    ASSERT_TRUE(weights) << weights.error().to_string();
    EXPECT_EQ(weights->fc.in, 16);
    EXPECT_EQ(weights->attention.qkv.in, 8);
    EXPECT_EQ(weights->mlp.down.out, 8);
    EXPECT_EQ(ops.num_biases, 1);
    EXPECT_TRUE(weights->embedding.empty() && weights->input_norm.empty() &&
                weights->hidden_norm.empty() && weights->final_norm.empty());
    EXPECT_TRUE(weights->target_ids.empty());
    EXPECT_EQ(weights->head.out, 0);
    // As the bias of a product is kept by its backend, this one counts none.
    EXPECT_EQ(weights->bytes + 4 * 8, draft_head_bytes(*spec, all_as({ops::Codes::kF32})).value());
  }
  TinyProductHead plain;
  plain.decls.erase("fc.bias");
  plain.decls.erase("embed_tokens.weight");
  KeepingOps ops;
  EXPECT_TRUE(plain.load_head(ops));
  EXPECT_EQ(ops.num_biases, 0);
  plain.replace_in_config("\"model_type\"", "\"qkv_bias\": true, \"model_type\"");
  plain.expect_head_refused(ErrorCode::kCorruptFile, "'layers.0.self_attn.q_proj.bias' is missing");
}

TEST(DraftHead, WhatAProductLacksOrHasTooMuchIsNamed) {
  const TinyProductHead whole;
  for (const auto& [name, decl] : whole.decls) {
    const bool is_optional = name == "fc.bias" || name == "embed_tokens.weight";
    if (is_optional) continue;
    TinyProductHead tiny;
    tiny.decls.erase(name);
    tiny.expect_head_refused(ErrorCode::kCorruptFile, "'" + name + "' is missing");
  }
  for (const auto& [name, decl] : whole.decls) {
    TinyProductHead tiny;
    tiny.add(name, {7, 7});
    tiny.expect_head_refused(ErrorCode::kCorruptFile, "tensor '" + name + "'");
  }
  for (const char* name : {"layers.0.input_layernorm.weight", "norm.weight", "lm_head.weight",
                           "layers.1.mlp.up_proj.weight", "d2t"}) {
    TinyProductHead tiny;
    tiny.add(name, {8});
    tiny.expect_head_refused(ErrorCode::kUnsupported, fmt::format("'{}'", name));
  }
}

TEST(DraftHead, OneKindIsNotTheOther) {
  TinyProductHead product;
  product.input = HeadInput::kSideBySide;
  product.expect_head_refused(ErrorCode::kUnsupported, "is no EAGLE-3 head");
  TinyHead side_by_side;
  side_by_side.input = HeadInput::kProduct;
  side_by_side.expect_head_refused(ErrorCode::kUnsupported, "is no EAGLE head");
  TinyProductHead two;
  two.replace_in_config("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2");
  two.expect_head_refused(ErrorCode::kUnsupported, "num_hidden_layers");
}

}  // namespace
}  // namespace rudder::model
