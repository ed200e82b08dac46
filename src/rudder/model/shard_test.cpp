// What each rank of a group has of a model: together everything, and nothing that cannot be
// divided.
#include "rudder/model/shard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "rudder/model/tensors.h"
#include "rudder/model/tiny_checkpoint.h"

namespace rudder::model {
namespace {

using ops::Rank;
using tensor::DType;

TEST(Shard, HeadsFollowTheirKvHeads) {
  for (const int32_t heads : {4, 8, 64}) {
    for (const int32_t kv_heads : {1, 2, 4, 8}) {
      if (heads % kv_heads != 0) continue;
      Attention attention;
      attention.num_heads = heads;
      attention.num_kv_heads = kv_heads;
      for (const int32_t count : {1, 2, 4, 8}) {
        if (heads % count != 0) continue;
        int64_t next = 0;
        for (int32_t index = 0; index < count; ++index) {
          const HeadShares shares = head_shares(attention, {index, count});
          EXPECT_EQ(shares.q.begin, next);
          next += shares.q.count;
          const int64_t group = heads / kv_heads;
          // Its first and last query head read its first and last KV head.
          EXPECT_EQ(shares.kv.begin, shares.q.begin / group);
          EXPECT_EQ(shares.kv.begin + shares.kv.count - 1, (next - 1) / group);
        }
        EXPECT_EQ(next, heads);
      }
    }
  }
}

TEST(Shard, VocabularyIsCoveredOnce) {
  for (const int64_t vocab : {160, 250, 32'000, 128'256, 151'669}) {
    for (const int32_t count : {1, 2, 3, 4, 8}) {
      int64_t next = 0;
      for (int32_t index = 0; index < count; ++index) {
        const ops::Share share = ops::vocab_share(vocab, {index, count});
        EXPECT_EQ(share.begin, next);
        EXPECT_GT(share.count, 0) << vocab << " in " << count;
        next += share.count;
      }
      EXPECT_EQ(next, vocab);
    }
  }
}

ModelSpec spec_of(int32_t heads, int32_t kv_heads, int32_t width, int32_t vocab = 160) {
  Attention attention;
  attention.num_heads = heads;
  attention.num_kv_heads = kv_heads;
  attention.head_dim = 16;
  GatedMlp mlp;
  mlp.width = width;
  ModelSpec spec;
  spec.hidden = 64;
  spec.vocab = vocab;
  spec.tied_head = true;
  spec.layers.push_back({attention, mlp, {}});
  return spec;
}

TEST(Shard, SpecOfARank) {
  const ModelSpec part = shard_spec(spec_of(8, 2, 96), {3, 4}).value();
  EXPECT_EQ(attention_of(part.layers[0])->num_heads, 2);
  EXPECT_EQ(attention_of(part.layers[0])->num_kv_heads, 1);
  EXPECT_EQ(gated_mlp_of(part.layers[0])->width, 24);
  EXPECT_EQ(part.vocab, 160);
  EXPECT_FALSE(part.tied_head);
  EXPECT_TRUE(shard_spec(spec_of(8, 2, 96), {}).value().tied_head);
}

TEST(Shard, WhatCannotBeDividedIsNamed) {
  const auto message = [](const ModelSpec& spec, int32_t count) {
    const auto part = shard_spec(spec, {0, count});
    EXPECT_FALSE(part);
    EXPECT_EQ(part.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(part.error().where, "tensor-parallel-size");
    return part.error().message;
  };
  EXPECT_EQ(message(spec_of(4, 2, 96), 3),
            "the 4 heads of layer 0 cannot be divided among 3 ranks");
  EXPECT_EQ(message(spec_of(12, 4, 96), 6),
            "the 4 KV heads of layer 0 cannot be divided among 6 ranks");
  EXPECT_EQ(message(spec_of(8, 8, 100), 8),
            "the 100 neurons of layer 0 cannot be divided among 8 ranks");
  EXPECT_EQ(message(spec_of(8, 8, 96, 40), 8),
            "the vocabulary of 40 tokens cannot be divided among 8 ranks");
}

// Each value of a stored part says where it lay: row * 100 + column.
TEST(Shard, CutPartsHoldTheirRowsAndColumns) {
  std::vector<float> stored(size_t{12} * 8);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<float>(i / 8 * 100 + i % 8);
  std::vector<float> bias(12);
  std::iota(bias.begin(), bias.end(), 0.0f);
  const ops::LinearPart part =
      ops::wide_part({stored.data(), DType::kF32, {12, 8}}, {bias.data(), DType::kF32, {12}});
  std::vector<std::vector<std::byte>> memory;
  std::vector<ops::LinearPart> cut;

  LinearModule
      stacked;  // 8 rows and 4 rows in one tensor, of which the second of two ranks has half
  stacked.parts = {{"qkv", {Extent{8, {4, 4}}, Extent{4, {2, 2}}}}};
  stacked.in = 8;
  stacked.bias = true;
  ASSERT_TRUE(cut_part(part, stacked, 0, memory, cut));
  ASSERT_EQ(cut.size(), 2u);
  EXPECT_EQ(cut[0].codes.shape, (tensor::Shape{4, 8}));
  EXPECT_EQ(*cut[0].codes.as<float>(), 400);
  EXPECT_EQ(*cut[0].bias.as<float>(), 4);
  EXPECT_EQ(cut[1].codes.shape, (tensor::Shape{2, 8}));
  EXPECT_EQ(*cut[1].codes.as<float>(), 1000);
  EXPECT_EQ(*cut[1].bias.as<float>(), 10);

  for (const bool is_first : {true, false}) {
    LinearModule columns;
    columns.parts = {{"out", {12}}};
    columns.in = Extent{8, {is_first ? 0 : 4, 4}};
    columns.bias = true;
    columns.is_first_rank = is_first;
    cut.clear();
    cut_part(part, columns, 0, memory, cut);
    ASSERT_EQ(cut.size(), 1u);
    EXPECT_EQ(cut[0].codes.shape, (tensor::Shape{12, 4}));
    for (int64_t row = 0; row < 12; ++row) {
      for (int64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(cut[0].codes.as<float>()[row * 4 + i],
                  static_cast<float>(row * 100 + i + (is_first ? 0 : 4)));
      }
    }
    EXPECT_EQ(cut[0].bias.empty(), !is_first) << "the sum over ranks has the bias once";
  }
}

TEST(Shard, LoadedBytesAreThoseOfTheBudget) {
  for (int32_t index = 0; index < 2; ++index) {
    TinyModel tiny;
    tiny.replace_in_config(R"("vocab_size": 5)", R"("vocab_size": 40)");
    tiny.replace_in_config(R"("tie_word_embeddings": false)", R"("tie_word_embeddings": true)");
    tiny.add("model.embed_tokens.weight", {40, 8});
    tiny.decls.erase("lm_head.weight");
    KeepingRankOps ops({index, 2});
    const auto weights = tiny.load(ops);
    ASSERT_TRUE(weights) << weights.error().to_string();
    EXPECT_FALSE(weights->embedding.empty())
        << "a rank's rows of a tied head embed not every token";
    const ModelSpec spec = read_spec(**tiny.open()).value();
    EXPECT_EQ(weights->bytes,
              weight_budget(spec, {}, all_as({ops::Codes::kF32}), {index, 2})->bytes);
    EXPECT_EQ(weights->head.out, index == 0 ? 32 : 8);
  }
}

}  // namespace
}  // namespace rudder::model
