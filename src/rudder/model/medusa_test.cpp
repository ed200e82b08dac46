#include "rudder/model/medusa.h"

#include <gtest/gtest.h>

#include "rudder/model/tiny_checkpoint.h"

namespace rudder::model {
namespace {

using tensor::DType;

// Three heads of two layers, laid out as published ones are.
struct PublishedHeads : TinyModel {
  PublishedHeads() {
    config = R"({"medusa_num_heads": 3, "medusa_num_layers": 2,
                 "base_model_name_or_path": "somewhere"})";
    decls.clear();
    for (const char* head : {"0", "1", "2"}) {
      const std::string prefix = head;
      for (const char* layer : {".0.linear", ".1.linear"}) {
        add(prefix + layer + ".weight", {8, 8});
        add(prefix + layer + ".bias", {8});
      }
      add(prefix + ".2.weight", {5, 8});
    }
  }
};

// Two heads of one layer with one product for the logits of both, as vLLM reads them.
struct VllmHeads : TinyModel {
  VllmHeads() {
    config = R"({"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 2,
                 "num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 5,
                 "truncated_vocab_size": 5, "original_lm_head": true, "medusa_fc_bias": false})";
    decls.clear();
    add("blocks.0.layers.0.weight", {8, 8});
    add("blocks.1.layers.0.weight", {8, 8});
    add("lm_heads.0.weight", {5, 8});
  }
};

Result<MedusaSpec> read_heads(TinyModel& tiny) {
  RUDDER_TRY(const auto checkpoint, tiny.open());
  return read_medusa(*checkpoint);
}

Result<MedusaWeights> load_heads(TinyModel& tiny, KeepingOps& ops) {
  RUDDER_TRY(const auto checkpoint, tiny.open());
  RUDDER_TRY(const MedusaSpec spec, read_medusa(*checkpoint));
  return load_medusa(*checkpoint, spec, ops);
}

void expect_heads_refused(TinyModel tiny, ErrorCode code, std::string_view part) {
  KeepingOps ops;
  const auto loaded = load_heads(tiny, ops);
  ASSERT_FALSE(loaded) << part;
  EXPECT_EQ(ops.num_parts, 0) << "refused only after weights were read_heads";
  EXPECT_EQ(loaded.error().code, code) << loaded.error().to_string();
  EXPECT_NE(loaded.error().to_string().find(part), std::string::npos) << loaded.error().to_string();
}

TEST(MedusaLoader, BindsThePublishedLayout) {
  PublishedHeads tiny;
  const auto spec = read_heads(tiny);
  ASSERT_TRUE(spec) << spec.error().to_string();
  EXPECT_EQ(spec->num_heads, 3);
  EXPECT_EQ(spec->num_layers, 2);
  EXPECT_EQ(spec->hidden, 8);
  EXPECT_EQ(spec->vocab, 5);
  EXPECT_TRUE(spec->has_bias);
  EXPECT_FALSE(spec->shares_lm_head);
  KeepingOps ops;
  const auto weights = load_heads(tiny, ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  ASSERT_EQ(weights->layers.size(), 6u);
  ASSERT_EQ(weights->lm_heads.size(), 3u);
  EXPECT_EQ(ops.num_biases, 6);
  EXPECT_EQ(weights->lm_heads[2].out, 5);
  EXPECT_EQ(medusa_bytes(*spec, all_as({ops::Codes::kF32})).value(),
            4 * (6 * (8 * 8 + 8) + 3 * 5 * 8));
}

TEST(MedusaLoader, BindsTheLayoutOfVllm) {
  VllmHeads tiny;
  const auto spec = read_heads(tiny);
  ASSERT_TRUE(spec) << spec.error().to_string();
  EXPECT_EQ(spec->num_heads, 2);
  EXPECT_FALSE(spec->has_bias);
  EXPECT_TRUE(spec->shares_lm_head);
  KeepingOps ops;
  const auto weights = load_heads(tiny, ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  EXPECT_EQ(weights->layers.size(), 2u);
  EXPECT_EQ(weights->lm_heads.size(), 1u);
  EXPECT_EQ(weights->bytes, medusa_bytes(*spec, all_as({ops::Codes::kF32})).value());

  VllmHeads apart;
  apart.replace_in_config("\"original_lm_head\": true", "\"original_lm_head\": false");
  expect_heads_refused(apart, ErrorCode::kCorruptFile, "'lm_heads.1.weight' is missing");
  apart.add("lm_heads.1.weight", {5, 8});
  KeepingOps other;
  ASSERT_TRUE(load_heads(apart, other));
}

TEST(MedusaLoader, ARankLoadsItsPart) {
  PublishedHeads tiny;
  for (const char* name : {"0.2.weight", "1.2.weight", "2.2.weight"}) tiny.add(name, {40, 8});
  const auto spec = read_heads(tiny);
  ASSERT_TRUE(spec) << spec.error().to_string();
  for (int32_t index = 0; index < 2; ++index) {
    KeepingRankOps ops({index, 2});
    const auto weights = load_heads(tiny, ops);
    ASSERT_TRUE(weights) << weights.error().to_string();
    EXPECT_EQ(weights->layers[5].in, 4);
    EXPECT_EQ(weights->layers[5].out, 8);
    const int64_t tokens = index == 0 ? 32 : 8;
    EXPECT_EQ(weights->lm_heads[2].out, tokens);
    const int biases = index == 0 ? 6 : 0;  // the sum over ranks has each once
    EXPECT_EQ(ops.num_biases, biases);
    EXPECT_EQ(medusa_bytes(*spec, all_as({ops::Codes::kF32}), {index, 2}).value(),
              4 * (6 * 8 * 4 + biases * 8 + 3 * tokens * 8));
  }
  EXPECT_TRUE(check_medusa_shares(*spec, {1, 4}));
  const auto uneven = check_medusa_shares(*spec, {1, 3});
  ASSERT_FALSE(uneven);
  EXPECT_EQ(uneven.error().where, "tensor-parallel-size");
  EXPECT_EQ(uneven.error().message, "the 8 inputs of Medusa heads cannot be divided among 3 ranks");
}

TEST(MedusaLoader, WhatIsMissingOrTooMuchIsNamed) {
  const PublishedHeads whole;
  for (const auto& [name, decl] : whole.decls) {
    PublishedHeads tiny;
    tiny.decls.erase(name);
    // Without its first bias a file is one of layers without.
    const bool is_first_bias = name == "0.0.linear.bias";
    expect_heads_refused(tiny, is_first_bias ? ErrorCode::kUnsupported : ErrorCode::kCorruptFile,
                         is_first_bias ? "'0.1.linear.bias'" : "'" + name + "' is missing");
    PublishedHeads misshapen;
    misshapen.add(name, {7, 7});
    expect_heads_refused(misshapen, ErrorCode::kCorruptFile, "tensor '");
  }
  PublishedHeads vector;
  vector.add("0.2.weight", {5});
  expect_heads_refused(vector, ErrorCode::kCorruptFile, "tensor '0.2.weight'");
  PublishedHeads more;
  more.add("3.0.linear.weight", {8, 8});
  expect_heads_refused(more, ErrorCode::kUnsupported, "'3.0.linear.weight'");
}

TEST(MedusaLoader, OtherConfigsAreRefused) {
  const auto expect = [](std::string_view from, std::string_view to, ErrorCode code,
                         std::string_view part) {
    VllmHeads tiny;
    tiny.replace_in_config(from, to);
    expect_heads_refused(tiny, code, part);
  };
  using enum ErrorCode;
  expect("MedusaModel", "LlamaForCausalLM", kUnsupported, "architectures");
  expect("\"num_heads\": 2", "\"num_heads\": 0", kCorruptFile, "num_heads");
  expect("\"num_heads\": 2,", "", kCorruptFile, "num_heads");
  expect("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 17", kCorruptFile,
         "num_hidden_layers");
  expect("\"hidden_size\": 8", "\"hidden_size\": 9", kCorruptFile, "hidden_size");
  expect("\"vocab_size\": 5,", "\"vocab_size\": 6,", kUnsupported, "truncated_vocab_size");
  expect("\"vocab_size\": 5,", "\"vocab_size\": 4, \"x\": 1,", kUnsupported,
         "truncated_vocab_size");
  expect("\"truncated_vocab_size\": 5", "\"truncated_vocab_size\": 3", kUnsupported,
         "truncated_vocab_size");
  expect("\"medusa_fc_bias\": false", "\"medusa_fc_bias\": true", kCorruptFile,
         "'blocks.0.layers.0.bias' is missing");
}

}  // namespace
}  // namespace rudder::model
