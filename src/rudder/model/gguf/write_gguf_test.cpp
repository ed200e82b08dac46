// Checkpoints written as GGUF files and opened again: numbers in the model's order, the same
// tokenizer and template.
#include "rudder/model/gguf/write_gguf.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/model/gguf/gguf_checkpoint.h"
#include "rudder/model/loader.h"

namespace rudder::model {
namespace {

using weights::Checkpoint;
using weights::TensorInfo;

std::vector<float> numbers_of(const TensorInfo& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.view.shape.numel()));
  if (tensor.packed) {
    tensor.packed->unpack(out.data());
    return out;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = tensor.view.dtype == tensor::DType::kF32 ? tensor.view.as<float>()[i]
             : tensor.view.dtype == tensor::DType::kF16
                 ? tensor::to_float(tensor.view.as<tensor::F16>()[i])
                 : tensor::to_float(tensor.view.as<tensor::BF16>()[i]);
  }
  return out;
}

struct WrittenFile {
  explicit WrittenFile(std::string_view scheme)
      : path(fmt::format("{}/written_{}_{}.gguf", ::testing::TempDir(), scheme, getpid())) {
    std::filesystem::remove(path);
  }
  ~WrittenFile() { std::filesystem::remove(path); }
  WrittenFile(const WrittenFile&) = delete;
  WrittenFile& operator=(const WrittenFile&) = delete;
  std::string path;
};

double error_of(const std::vector<float>& got, const std::vector<float>& want) {
  double miss = 0;
  double size = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    miss += std::pow(double{got[i]} - want[i], 2);
    size += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(miss / size);
}

Result<std::shared_ptr<const Checkpoint>> written_as(const Checkpoint& from,
                                                     std::string_view scheme,
                                                     const std::string& path) {
  RUDDER_TRY_VOID(write_gguf(from, *find_gguf_scheme(scheme), path, [](int64_t, int64_t) {}));
  return open_gguf(path);
}

TEST(WriteGguf, NumbersAreThoseOfTheCheckpointInItsOrder) {
  for (const std::string folder :
       {"models/demo", "tests/golden/llama2", "tests/golden/llama3", "tests/golden/llama-linear",
        "tests/golden/qwen2", "tests/golden/qwen3", "tests/golden/llama-bias"}) {
    SCOPED_TRACE(folder);
    auto from = Checkpoint::open_folder(folder).value();
    if (!from->has_file("tokenizer.json")) {  // goldens have no tokenizer: any will do
      from = Checkpoint::with_text(
          from, "tokenizer.json",
          R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"added_tokens":[],)"
          R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}})");
    }
    const WrittenFile file("f32");
    const auto written = written_as(*from, "gguf-f32", file.path);
    ASSERT_TRUE(written) << written.error().to_string();
    size_t count = 0;
    for (const TensorInfo& tensor : from->tensors()) {
      if (tensor.name.ends_with("inv_freq")) continue;
      const TensorInfo* const found = (*written)->find(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(numbers_of(*found), numbers_of(tensor)) << tensor.name;
      ++count;
    }
    EXPECT_EQ((*written)->tensors().size(), count);
    const ModelSpec spec = read_spec(*from).value();
    const ModelSpec its_spec = read_spec(**written).value();
    ASSERT_EQ(its_spec.ropes.size(), spec.ropes.size());
    EXPECT_EQ(its_spec.vocab, spec.vocab);
    EXPECT_EQ(its_spec.tied_head, spec.tied_head);
  }
}

TEST(WriteGguf, TokenizerAndTemplateAreTheCheckpoints) {
  namespace json = boost::json;
  const auto from = Checkpoint::open_folder("models/demo").value();
  const WrittenFile file("bf16");
  const auto written = written_as(*from, "gguf-bf16", file.path);
  ASSERT_TRUE(written) << written.error().to_string();
  const auto read = [](const Checkpoint& checkpoint, std::string_view name) {
    return json::parse(checkpoint.read_text(name).value()).as_object();
  };
  const json::object ours = read(*from, "tokenizer.json");
  const json::object its = read(**written, "tokenizer.json");
  EXPECT_EQ(its.at("pre_tokenizer"), ours.at("pre_tokenizer"));
  EXPECT_EQ(its.at("normalizer"), ours.at("normalizer"));
  EXPECT_EQ(its.at("model").at("vocab"), ours.at("model").at("vocab"));
  EXPECT_EQ(its.at("model").at("merges").as_array().size(),
            ours.at("model").at("merges").as_array().size());
  EXPECT_EQ(read(**written, "tokenizer_config.json").at("chat_template"),
            read(*from, "tokenizer_config.json").at("chat_template"));
  EXPECT_EQ(read(**written, "generation_config.json").at("eos_token_id").as_array().size(), 2u);
}

// Fewer bits, more error; each within what the type allows (RoundBlocks).
TEST(WriteGguf, SchemesCostWhatTheirBitsDo) {
  const auto from = Checkpoint::open_folder("models/demo").value();
  constexpr std::string_view kTensor = "model.layers.3.self_attn.q_proj.weight";
  const std::vector<float> numbers = numbers_of(*from->find(kTensor));
  for (const auto& [scheme, most] : {std::pair<std::string_view, double>{"gguf-bf16", 3e-3},
                                     {"gguf-q8_0", 8e-3},
                                     {"gguf-q6_k", 2.5e-2},
                                     {"gguf-q4_k", 9e-2},
                                     {"gguf-q4_0", 1.2e-1}}) {
    const WrittenFile file(scheme);
    const auto written = written_as(*from, scheme, file.path);
    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_LE(error_of(numbers_of(*(*written)->find(kTensor)), numbers), most) << scheme;
  }
}

TEST(WriteGguf, WhatAFileHasNoWordsForIsRefusedByField) {
  const auto refused = [](const std::string& folder, std::string_view where) {
    const auto from = Checkpoint::open_folder(folder).value();
    const WrittenFile file("refused");
    const auto done =
        write_gguf(*from, *find_gguf_scheme("gguf-f32"), file.path, [](int64_t, int64_t) {});
    ASSERT_FALSE(done) << folder;
    EXPECT_NE(done.error().where.find(where), std::string::npos) << done.error().to_string();
    EXPECT_FALSE(std::filesystem::exists(file.path));
  };
  refused("tests/golden/gemma3", "config.json: architectures");
  refused("tests/golden/qwen3-moe", "config.json: architectures");
  refused("tests/golden/llama-yarn", "config.json: rope_scaling");
}

}  // namespace
}  // namespace rudder::model
