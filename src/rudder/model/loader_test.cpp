#include "rudder/model/loader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <map>

#include "rudder/weights/safetensors_writer.h"

namespace rudder::model {
namespace {

using tensor::DType;
using weights::TensorDecl;
using weights::TensorShape;

// Keeps what the loader hands over; computes nothing.
class KeepingOps final : public ops::Ops {
 public:
  std::string name() const override { return "keeping"; }
  DType act_dtype() const override { return DType::kF32; }
  DType kv_dtype() const override { return DType::kF32; }
  DType linear_dtype() const override { return DType::kF32; }
  int64_t available_memory() const override { return 0; }
  Result<ops::View> allocate(DType dtype, tensor::Shape shape) override {
    memory_.emplace_back(static_cast<size_t>(shape.numel()) * tensor::dtype_bytes(dtype));
    return ops::View{memory_.back().data(), dtype, shape};
  }
  Result<ops::View> upload(const ops::View& host, DType dtype) override {
    EXPECT_EQ(host.dtype, dtype);
    RUDDER_TRY(const ops::View copy, allocate(dtype, host.shape));
    std::memcpy(copy.data, host.data, host.bytes());
    return copy;
  }
  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    ops::LinearWeight out;
    for (const ops::LinearPart& part : parts) {
      out.in = part.weight.shape[1];
      out.out += part.weight.shape[0];
      out.bytes += 4 * part.weight.shape.numel();
      num_biases += part.bias.empty() ? 0 : 1;
    }
    num_parts += static_cast<int>(parts.size());
    return out;
  }
  Result<ops::View> allocate_staging(int64_t bytes) override {
    return allocate(DType::kU8, {bytes});
  }
  void copy_in(const ops::View&, const ops::View&) override {}
  void copy_out(const ops::View&, const ops::View&) override {}
  std::unique_ptr<ops::Event> make_event() override { return nullptr; }
  void record(ops::Event&) override {}
  Result<void> status() override { return {}; }
  bool has_graphs() const override { return false; }
  void begin_capture() override {}
  Result<std::unique_ptr<ops::Graph>> end_capture() override { return nullptr; }
  void replay(ops::Graph&) override {}
  void begin_step(const ops::BeginStepArgs&) override {}
  void embed(const ops::EmbedArgs&) override {}
  void residual_norm(const ops::ResidualNormArgs&) override {}
  void linear(const ops::LinearArgs&) override {}
  void qkv_prep(const ops::QkvPrepArgs&) override {}
  void plan_attention(const ops::AttentionBatch&) override {}
  void attention(const ops::AttentionArgs&) override {}
  void gated_act(const ops::GatedActArgs&) override {}
  void quantise(const ops::QuantiseArgs&) override {}
  void gather_rows(const ops::GatherRowsArgs&) override {}
  void logits(const ops::LogitsArgs&) override {}
  void sample(const ops::SampleArgs&) override {}

  int num_parts = 0;
  int num_biases = 0;

 private:
  std::list<std::vector<std::byte>> memory_;
};

// A one-layer model in memory, to be damaged. Every tensor is f32 and holds 0.25.
struct TinyModel {
  std::string config =
      R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 6,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "vocab_size": 5, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
          "hidden_act": "silu", "tie_word_embeddings": false})";
  std::map<std::string, TensorDecl> decls;
  std::map<std::string, float> values;  // other than 0.25
  std::string file;

  TinyModel() {
    add("model.embed_tokens.weight", {5, 8});
    add("lm_head.weight", {5, 8});
    add("model.norm.weight", {8});
    add("model.layers.0.input_layernorm.weight", {8});
    add("model.layers.0.post_attention_layernorm.weight", {8});
    add("model.layers.0.self_attn.q_proj.weight", {8, 8});
    add("model.layers.0.self_attn.k_proj.weight", {4, 8});
    add("model.layers.0.self_attn.v_proj.weight", {4, 8});
    add("model.layers.0.self_attn.o_proj.weight", {8, 8});
    add("model.layers.0.mlp.gate_proj.weight", {6, 8});
    add("model.layers.0.mlp.up_proj.weight", {6, 8});
    add("model.layers.0.mlp.down_proj.weight", {8, 6});
  }

  void add(const std::string& name, std::initializer_list<uint64_t> shape,
           DType dtype = DType::kF32) {
    decls[name] = {name, dtype, TensorShape::of(shape)};
  }

  void replace_in_config(std::string_view from, std::string_view to) {
    const size_t at = config.find(from);
    ASSERT_NE(at, std::string::npos);
    config.replace(at, from.size(), to);
  }

  Result<Weights> load(KeepingOps& ops, const ProgressFn& progress = {}) {
    std::vector<TensorDecl> list;
    for (const auto& [name, decl] : decls) list.push_back(decl);
    const auto header = weights::make_safetensors_header(list, {});
    file.assign(reinterpret_cast<const char*>(header->data()), header->size());
    for (const TensorDecl& decl : list) {
      uint64_t count = 0;
      weights::checked_tensor_bytes(decl.shape, 1, count);
      const float value = values.contains(decl.name) ? values[decl.name] : 0.25f;
      const std::vector<float> data(count, value);
      file.append(reinterpret_cast<const char*>(data.data()),
                  count * tensor::dtype_bytes(decl.dtype));
    }
    RUDDER_TRY(const auto checkpoint, weights::Checkpoint::open_memory(
                                          {{"config.json", std::as_bytes(std::span(config))},
                                           {"model.safetensors", std::as_bytes(std::span(file))}}));
    RUDDER_TRY(const ModelSpec spec, read_spec(*checkpoint));
    return load_weights(*checkpoint, spec, ops, progress);
  }

  void expect_refused(ErrorCode code, std::string_view part) {
    KeepingOps ops;
    const auto loaded = load(ops);
    ASSERT_FALSE(loaded) << part;
    EXPECT_EQ(ops.num_parts, 0) << "refused only after weights were read";
    EXPECT_EQ(loaded.error().code, code) << loaded.error().to_string();
    EXPECT_NE(loaded.error().to_string().find(part), std::string::npos)
        << loaded.error().to_string();
  }
};

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
  EXPECT_EQ(weights->layers[0].qkv.out, 16);
  EXPECT_EQ(weights->layers[0].gate_up.out, 12);
  EXPECT_EQ(weights->layers[0].down.in, 6);
  EXPECT_TRUE(weights->layers[0].attn_post_norm.empty());
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

TEST(Loader, AddsOneToNormsStoredWithoutIt) {
  TinyModel tiny;
  tiny.replace_in_config("LlamaForCausalLM", "Gemma2ForCausalLM");
  tiny.replace_in_config("\"vocab_size\"",
                         "\"query_pre_attn_scalar\": 4, \"sliding_window\": 8, \"vocab_size\"");
  tiny.add("model.layers.0.pre_feedforward_layernorm.weight", {8});
  tiny.add("model.layers.0.post_feedforward_layernorm.weight", {8});
  KeepingOps ops;
  const auto weights = tiny.load(ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  EXPECT_EQ(weights->final_norm.weight.as<float>()[0], 1.25f);
  EXPECT_EQ(weights->layers[0].mlp_post_norm.weight.as<float>()[3], 1.25f);
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
  tiny.expect_refused(ErrorCode::kCorruptFile, "ties the head");
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
  EXPECT_EQ(weights->bytes, weight_bytes(*read_spec(**checkpoint), DType::kF32));
}

}  // namespace
}  // namespace rudder::model
