// A model of one layer in memory, and a backend that records what a loader passes to it. Tests of
// the loader damage the first and inspect the second.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "rudder/model/loader.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::model {

// Keeps what the loader hands over; computes nothing.
class KeepingOps : public ops::Ops {
 public:
  std::string name() const override { return "keeping"; }
  tensor::DType act_dtype() const override { return tensor::DType::kF32; }
  ops::KvFormat kv_format() const override { return {}; }
  Result<ops::WeightFormat> stored_format(const ops::WeightFormat& file) const override {
    if (keeps_all || (keeps && file == ops::kFp8Rows)) return file;
    return ops::WeightFormat{.codes = ops::Codes::kF32};
  }
  int64_t available_memory() const override { return 0; }
  Result<ops::View> allocate(tensor::DType dtype, tensor::Shape shape) override {
    memory_.emplace_back(static_cast<size_t>(shape.numel()) * tensor::dtype_bytes(dtype));
    return ops::View{memory_.back().data(), dtype, shape};
  }
  Result<ops::View> upload(const ops::View& host, tensor::DType dtype) override {
    EXPECT_EQ(host.dtype, dtype);
    RUDDER_TRY(const ops::View copy, allocate(dtype, host.shape));
    std::memcpy(copy.data, host.data, host.bytes());
    return copy;
  }
  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    ops::LinearWeight out;
    for (const ops::LinearPart& part : parts) {
      out.in = part.in();
      out.out += part.out();
      const ops::WeightFormat stored = stored_format(part.format).value();
      out.bytes += ops::stored_parts(stored, part.out(), part.in()).bytes();
      formats.push_back(part.format);
      num_biases += part.bias.empty() ? 0 : 1;
    }
    num_parts += static_cast<int>(parts.size());
    for (const ops::LinearPart& part : parts) {
      std::vector<float>& kept = scales.emplace_back();
      for (int64_t i = 0; part.format == ops::kFp8Rows && i < part.out(); ++i) {
        kept.push_back(part.scales.as<float>()[i]);
      }
    }
    return out;
  }
  Result<ops::View> allocate_staging(int64_t bytes) override {
    return allocate(tensor::DType::kU8, {bytes});
  }
  void copy_in(const ops::View&, const ops::View&) override {}
  void copy_out(const ops::View&, const ops::View&) override {}
  std::unique_ptr<ops::Event> make_event() override { return nullptr; }
  void record(ops::Event&) override {}
  Result<void> status() override { return {}; }
  void begin_step(const ops::BeginStepArgs&) override {}
  void advance_step(const ops::AdvanceStepArgs&) override {}
  void embed(const ops::EmbedArgs&) override {}
  void residual_norm(const ops::ResidualNormArgs&) override {}
  void linear(const ops::LinearArgs&) override {}
  void qkv_prep(const ops::QkvPrepArgs&) override {}
  void begin_attention(const ops::AttentionBatch&) override {}
  void attention(const ops::AttentionArgs&) override {}
  void gated_act(const ops::GatedActArgs&) override {}
  void quantise(const ops::QuantiseArgs&) override {}
  void gather_rows(const ops::GatherRowsArgs&) override {}
  void logits(const ops::LogitsArgs&) override {}
  void sample(const ops::SampleArgs&) override {}
  void score(const ops::ScoreArgs&) override {}

  bool keeps = false;  // fp8 with a scale a row
  bool keeps_all = false;
  std::vector<ops::WeightFormat> formats;  // of each part in turn
  int num_parts = 0;
  int num_biases = 0;
  std::vector<std::vector<float>> scales;  // of each part in turn; empty of a wide one

 private:
  std::list<std::vector<std::byte>> memory_;
};

// A rank of a group that is never asked to compute.
class KeepingRankOps final : public KeepingOps, public ops::RankOps {
 public:
  explicit KeepingRankOps(ops::Rank rank) : comm_(rank) {}
  ops::RankOps* rank_ops() override { return this; }
  ops::Comm* comm() override { return &comm_; }
  void gather_logits(const ops::GatherLogitsArgs&) override {}
  void tap_shares(const ops::TapSharesArgs&) override {}
  void sum_ranks(const ops::View&) override {}

 private:
  class Alone final : public ops::Comm {
   public:
    explicit Alone(ops::Rank rank) : rank_(rank) {}
    ops::Rank rank() const override { return rank_; }
    Result<tensor::View> shared_memory(tensor::DType /*dtype*/, tensor::Shape /*shape*/) override {
      return tensor::View{};
    }
    void meet(uint64_t /*step*/) override {}
    Result<void> status() const override { return {}; }
    void fail(const Error& /*error*/) override {}

   private:
    const ops::Rank rank_;
  };
  Alone comm_;
};

// Every tensor is f32 and holds 0.25, unless a test says otherwise.
struct TinyModel {
  std::string config =
      R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 6,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "vocab_size": 5, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
          "hidden_act": "silu", "tie_word_embeddings": false})";
  std::map<std::string, weights::TensorDecl> decls;
  std::map<std::string, float> values;                   // other than 0.25
  std::map<std::string, std::vector<float>> columns;     // the whole data of tensors of F32
  std::map<std::string, std::vector<int64_t>> integers;  // of I64
  std::string file;
  std::string quant_file;  // hf_quant_config.json; empty: there is none

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
           tensor::DType dtype = tensor::DType::kF32) {
    decls[name] = {name, dtype, weights::TensorShape::of(shape)};
  }

  void replace_in_config(std::string_view from, std::string_view to) {
    const size_t at = config.find(from);
    ASSERT_NE(at, std::string::npos);
    config.replace(at, from.size(), to);
  }

  Result<std::shared_ptr<const weights::Checkpoint>> open() {
    std::vector<weights::TensorDecl> list;
    for (const auto& [name, decl] : decls) list.push_back(decl);
    const auto header = weights::make_safetensors_header(list, {});
    file.assign(reinterpret_cast<const char*>(header->data()), header->size());
    for (const weights::TensorDecl& decl : list) {
      if (const auto found = integers.find(decl.name); found != integers.end()) {
        file.append(reinterpret_cast<const char*>(found->second.data()),
                    found->second.size() * sizeof(int64_t));
        continue;
      }
      if (const auto found = columns.find(decl.name); found != columns.end()) {
        file.append(reinterpret_cast<const char*>(found->second.data()),
                    found->second.size() * sizeof(float));
        continue;
      }
      uint64_t count = 0;
      weights::checked_tensor_bytes(decl.shape, 1, count);
      const float value = values.contains(decl.name) ? values[decl.name] : 0.25f;
      const std::vector<float> data(count, value);
      file.append(reinterpret_cast<const char*>(data.data()),
                  count * tensor::dtype_bytes(decl.dtype));
    }
    std::vector<weights::MemoryFile> files = {
        {"config.json", std::as_bytes(std::span(config))},
        {"model.safetensors", std::as_bytes(std::span(file))}};
    if (!quant_file.empty()) {
      files.push_back({"hf_quant_config.json", std::as_bytes(std::span(quant_file))});
    }
    return weights::Checkpoint::open_memory(std::move(files));
  }

  Result<Weights> load(KeepingOps& ops, const ProgressFn& progress = {}) {
    RUDDER_TRY(const auto checkpoint, open());
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

}  // namespace rudder::model
