// What of a GGUF's metadata becomes a config and a tokenizer, and what is refused by its key.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>
#include <string>
#include <vector>

#include "rudder/model/gguf/gguf_config.h"
#include "rudder/model/gguf/gguf_names.h"
#include "rudder/model/gguf/gguf_tokenizer.h"
#include "rudder/weights/gguf_test_file.h"

namespace rudder::model {
namespace {

namespace json = boost::json;
using weights::GgufBytes;
using weights::GgufFile;

// Values by key, of which a test changes some.
class Metadata {
 public:
  using Write = std::function<void(GgufBytes&)>;

  Metadata& set(const std::string& key, Write write) {
    std::erase_if(values_, [&](const auto& one) { return one.first == key; });
    values_.emplace_back(key, std::move(write));
    return *this;
  }
  Metadata& set(const std::string& key, uint32_t value) {
    return set(key, [=](GgufBytes& out) { out.value(key, value); });
  }
  Metadata& set(const std::string& key, float value) {
    return set(key, [=](GgufBytes& out) { out.value(key, value); });
  }
  Metadata& set(const std::string& key, const char* value) {
    return set(key, [=, text = std::string(value)](GgufBytes& out) { out.value(key, text); });
  }
  Metadata& set(const std::string& key, bool value) {
    return set(key, [=](GgufBytes& out) { out.key(key, 7).put(uint8_t{value}); });
  }
  Metadata& set(const std::string& key, const std::vector<std::string>& texts) {
    return set(key, [=](GgufBytes& out) {
      out.key(key, 9).put(uint32_t{8}).put(uint64_t{texts.size()});
      for (const std::string& text : texts) out.text(text);
    });
  }
  template <typename T>
  Metadata& list(const std::string& key, uint32_t type, const std::vector<T>& items) {
    return set(key, [=](GgufBytes& out) {
      out.key(key, 9).put(type).put(uint64_t{items.size()});
      for (const T item : items) out.put(item);
    });
  }
  Metadata& erase(const std::string& key) {
    std::erase_if(values_, [&](const auto& one) { return one.first == key; });
    return *this;
  }

  const std::string& bytes(bool has_head) {
    GgufBytes out;
    out.header(3, has_head ? 2 : 1, values_.size());
    for (const auto& [key, write] : values_) write(out);
    out.tensor("token_embd.weight", {64, 6}, 0, 0);
    if (has_head) out.tensor("output.weight", {64, 6}, 0, 64 * 6 * 4);
    bytes_ = out.pad().data(2 * 64 * 6 * 4).str();
    return bytes_;
  }

 private:
  std::vector<std::pair<std::string, Write>> values_;
  std::string bytes_;
};

Metadata llama_metadata() {
  return std::move(Metadata()
                       .set("general.architecture", "llama")
                       .set("llama.context_length", 300U)
                       .set("llama.embedding_length", 64U)
                       .set("llama.block_count", 3U)
                       .set("llama.feed_forward_length", 96U)
                       .set("llama.attention.head_count", 4U)
                       .set("llama.attention.head_count_kv", 2U)
                       .set("llama.attention.layer_norm_rms_epsilon", 1e-5F)
                       .set("llama.rope.freq_base", 10007.3F));
}

Metadata byte_metadata() {
  return std::move(Metadata()
                       .set("tokenizer.ggml.model", "gpt2")
                       .set("tokenizer.ggml.pre", "qwen2")
                       .set("tokenizer.ggml.tokens", {"a", "b", "ab", "<|x|>", "<t>", "\xC4\xA0"})
                       .list<int32_t>("tokenizer.ggml.token_type", 5, {1, 1, 1, 3, 4, 1})
                       .set("tokenizer.ggml.merges", std::vector<std::string>{"a b"})
                       .set("tokenizer.ggml.bos_token_id", 3U)
                       .set("tokenizer.ggml.eos_token_id", 4U));
}

Metadata piece_metadata() {
  return std::move(Metadata()
                       .set("tokenizer.ggml.model", "llama")
                       .set("tokenizer.ggml.tokens",
                            {"<unk>", "<0x61>", "a", "b", "c", "ab", "bc", "abc", "<s>"})
                       .list<int32_t>("tokenizer.ggml.token_type", 5, {2, 6, 1, 1, 1, 1, 1, 1, 3})
                       .list<float>("tokenizer.ggml.scores", 6, {0, 0, -5, -6, -7, -2, -1, -3, 0})
                       .set("tokenizer.ggml.unknown_token_id", 0U)
                       .set("tokenizer.ggml.bos_token_id", 8U));
}

Result<json::object> gguf_config_of(Metadata metadata, bool has_head = false) {
  const auto bytes = std::as_bytes(std::span(metadata.bytes(has_head)));
  RUDDER_TRY(const GgufFile file, GgufFile::parse(bytes, "f.gguf"));
  std::vector<const weights::GgufTensor*> tensors;
  for (const auto& tensor : file.tensors()) tensors.push_back(&tensor);
  RUDDER_TRY(const std::string_view name, file.text("general.architecture"));
  RUDDER_TRY(const GgufArchitecture* const architecture, find_gguf_architecture(name));
  RUDDER_TRY(const std::string text, gguf_config({file, tensors}, *architecture));
  return json::parse(text).as_object();
}

Result<GgufTokenizerFiles> tokenizer_of(Metadata metadata) {
  const auto bytes = std::as_bytes(std::span(metadata.bytes(false)));
  RUDDER_TRY(const GgufFile file, GgufFile::parse(bytes, "f.gguf"));
  return gguf_tokenizer(file);
}

template <typename T>
void expect_refused_at(const Result<T>& result, std::string_view key, std::string_view message) {
  ASSERT_FALSE(result) << key << " " << message;
  EXPECT_EQ(result.error().where, fmt::format("f.gguf: key '{}'", key));
  EXPECT_NE(result.error().message.find(message), std::string::npos) << result.error().to_string();
}

TEST(GgufConfig, IsThatOfTheSameModelInAFolder) {
  const auto config = gguf_config_of(llama_metadata());
  ASSERT_TRUE(config) << config.error().to_string();
  EXPECT_EQ(config->at("rms_norm_eps").as_double(), 1e-5) << "not the f32 nearest to it";
  EXPECT_EQ(config->at("rope_theta").as_double(), 10007.3);
  EXPECT_EQ(config->at("head_dim").as_int64(), 16);
  EXPECT_EQ(config->at("vocab_size").as_int64(), 6);
  EXPECT_TRUE(config->at("tie_word_embeddings").as_bool());
  EXPECT_FALSE(gguf_config_of(llama_metadata(), true)->at("tie_word_embeddings").as_bool());
  const auto same =
      gguf_config_of(llama_metadata().list<uint32_t>("llama.feed_forward_length", 4, {96, 96, 96}));
  EXPECT_EQ(same->at("intermediate_size").as_int64(), 96);
}

TEST(GgufConfig, WhatIsNotServedIsRefusedByItsKey) {
  const auto with = [](const std::string& key, auto value) {
    return gguf_config_of(llama_metadata().set(key, value));
  };
  EXPECT_NE(with("general.architecture", "mamba").error().message.find("'mamba'"),
            std::string::npos);
  expect_refused_at(gguf_config_of(llama_metadata().erase("llama.block_count")),
                    "llama.block_count", "missing");
  expect_refused_at(with("llama.block_count", 0U), "llama.block_count", "from 1");
  expect_refused_at(with("llama.attention.head_count", 5U), "llama.attention.head_count",
                    "do not share");
  expect_refused_at(with("llama.attention.value_length", 24U), "llama.attention.value_length",
                    "16");
  expect_refused_at(with("llama.rope.dimension_count", 8U), "llama.rope.dimension_count", "16");
  expect_refused_at(with("llama.rope.scaling.type", "spiral"), "llama.rope.scaling.type", "spiral");
  expect_refused_at(with("llama.attention.sliding_window", 30U), "llama.attention.sliding_window",
                    "windows");
  expect_refused_at(with("llama.expert_count", 8U), "llama.expert_count", "experts of this");
  expect_refused_at(with("llama.attention.scale", 0.3F), "llama.attention.scale", "nothing here");
  expect_refused_at(with("llama.residual_scale", 0.3F), "llama.residual_scale", "nothing here");
  expect_refused_at(
      gguf_config_of(llama_metadata().list<uint32_t>("llama.feed_forward_length", 4, {96, 64, 96})),
      "llama.feed_forward_length", "different sizes");
  EXPECT_TRUE(with("llama.expert_count", 0U));
  EXPECT_TRUE(with("llama.vocab_size", 7U));
  EXPECT_TRUE(with("llama.made_by", "somebody"));
}

TEST(GgufTokenizer, BytesAreCutByThePatternOfPre) {
  const auto files = tokenizer_of(byte_metadata());
  ASSERT_TRUE(files) << files.error().to_string();
  const json::object file = json::parse(files->tokenizer).as_object();
  EXPECT_EQ(file.at("normalizer").at("type"), "NFC");
  EXPECT_EQ(file.at("model").at("merges"), (json::array{json::array{"a", "b"}}));
  EXPECT_EQ(file.at("model").at("vocab").at("ab"), 2);
  ASSERT_EQ(file.at("added_tokens").as_array().size(), 2U);
  EXPECT_TRUE(file.at("added_tokens").at(0).at("special").as_bool());
  EXPECT_FALSE(file.at("added_tokens").at(1).at("special").as_bool());
  EXPECT_EQ(file.at("post_processor").at("single").as_array().size(), 1U) << "qwen2 adds none";
  EXPECT_EQ(files->generation_config, R"({"eos_token_id":[4]})");

  const auto llama3 = tokenizer_of(byte_metadata().set("tokenizer.ggml.pre", "llama-bpe"));
  const json::object other = json::parse(llama3->tokenizer).as_object();
  EXPECT_EQ(other.at("post_processor").at("single").as_array().size(), 2U);
  EXPECT_TRUE(other.at("model").at("ignore_merges").as_bool());
  const auto told = tokenizer_of(byte_metadata()
                                     .set("tokenizer.ggml.pre", "llama-bpe")
                                     .set("tokenizer.ggml.add_bos_token", false));
  EXPECT_EQ(json::parse(told->tokenizer).at("post_processor").at("single").as_array().size(), 1U);
}

TEST(GgufTokenizer, PiecesAreMergedByTheirScores) {
  const auto files = tokenizer_of(piece_metadata());
  ASSERT_TRUE(files) << files.error().to_string();
  const json::object file = json::parse(files->tokenizer).as_object();
  EXPECT_EQ(file.at("model").at("merges"),
            (json::array{json::array{"b", "c"}, json::array{"a", "b"}, json::array{"ab", "c"},
                         json::array{"a", "bc"}}));
  EXPECT_EQ(file.at("normalizer").at("normalizers").as_array().size(), 2U);
  const auto bare = tokenizer_of(piece_metadata().set("tokenizer.ggml.add_space_prefix", false));
  EXPECT_EQ(json::parse(bare->tokenizer).at("normalizer").at("normalizers").as_array().size(), 1U);
  EXPECT_EQ(file.at("model").at("unk_token"), "<unk>");
}

TEST(GgufTokenizer, BrokenListsAreRefusedByTheirKey) {
  const auto bytes = [](const std::string& key, auto value) {
    return tokenizer_of(byte_metadata().set("tokenizer.ggml." + key, value));
  };
  const auto refused = [](const Result<GgufTokenizerFiles>& result, const std::string& key,
                          std::string_view message) {
    expect_refused_at(result, "tokenizer.ggml." + key, message);
  };
  using Texts = std::vector<std::string>;
  refused(tokenizer_of(byte_metadata().erase("tokenizer.ggml.model")), "model", "missing");
  refused(bytes("model", "bert"), "model", "'bert'");
  refused(tokenizer_of(byte_metadata().erase("tokenizer.ggml.pre")), "pre", "missing");
  refused(bytes("pre", "default"), "pre", "'default'");
  refused(bytes("tokens", Texts()), "tokens", "no tokens");
  refused(bytes("tokens", Texts{"a"}), "token_type", "6 types for 1");
  refused(bytes("tokens", Texts{"a", "b", "ab", "a", "d", "e"}), "tokens", "twice");
  refused(bytes("tokens", Texts{"a", "b", "ab", "\xFF", "d", "e"}), "tokens", "UTF-8");
  refused(bytes("tokens", Texts{"a", "b", std::string(4097, 'c'), "<|x|>", "d", "e"}), "tokens",
          "token 2 has 4097 bytes");
  refused(bytes("merges", Texts{"ab"}), "merges", "no pair");
  refused(bytes("merges", Texts{"a "}), "merges", "no pair");
  refused(bytes("bos_token_id", 6U), "bos_token_id", "from 0 to 5");
  refused(bytes("add_bos_token", 1U), "add_bos_token", "bool");
  for (const int32_t type : {0, 7, -1}) {
    refused(tokenizer_of(byte_metadata().list<int32_t>("tokenizer.ggml.token_type", 5,
                                                       {1, 1, 1, 3, type, 1})),
            "token_type", "token 4 has the type");
  }
  refused(tokenizer_of(piece_metadata().list<float>("tokenizer.ggml.scores", 6, {0, 1})), "scores",
          "2 scores for 9");
  refused(tokenizer_of(piece_metadata().erase("tokenizer.ggml.scores")), "scores", "missing");
}

}  // namespace
}  // namespace rudder::model
