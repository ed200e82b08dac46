// Golden checkpoints of each family, written as GGUF as llama.cpp's converter does: opened again
// they have the same spec and the same tensors.
#include "rudder/model/gguf/gguf_checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdio>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "rudder/model/binder.h"
#include "rudder/model/loader.h"
#include "rudder/model/rope.h"
#include "rudder/weights/gguf_test_file.h"

namespace rudder::model {
namespace {

namespace json = boost::json;
using weights::Checkpoint;
using weights::GgufBytes;
using weights::TensorInfo;

struct GgufCase {
  const char* folder;
  const char* name;  // "general.architecture"
  bool permutes = false;
  bool adds_one = false;
};

// Modules of every family; which of the two a norm is, the family says.
std::string written_name(std::string name, bool has_two_norms) {
  const std::vector<std::pair<std::string, std::string>> parts = {
      {"model.embed_tokens.", "token_embd."},
      {"lm_head.", "output."},
      {"model.norm.", "output_norm."},
      {"model.layers.", "blk."},
      {"self_attn.qkv_proj.", "attn_qkv."},
      {"self_attn.q_proj.", "attn_q."},
      {"self_attn.k_proj.", "attn_k."},
      {"self_attn.v_proj.", "attn_v."},
      {"self_attn.o_proj.", "attn_output."},
      {"self_attn.q_norm.", "attn_q_norm."},
      {"self_attn.k_norm.", "attn_k_norm."},
      {"self_attn.query_layernorm.", "attn_q_norm."},
      {"self_attn.key_layernorm.", "attn_k_norm."},
      {"mlp.gate_up_proj.", "ffn_up."},
      {"mlp.gate_proj.", "ffn_gate."},
      {"mlp.up_proj.", "ffn_up."},
      {"mlp.down_proj.", "ffn_down."},
      {"input_layernorm.", "attn_norm."},
      {"pre_feedforward_layernorm.", "ffn_norm."},
      {"post_feedforward_layernorm.", "post_ffw_norm."},
      {"post_self_attn_layernorm.", "post_attention_norm."},
      {"post_mlp_layernorm.", "post_ffw_norm."},
      {"post_attention_layernorm.", has_two_norms ? "post_attention_norm." : "ffn_norm."}};
  for (const auto& [from, to] : parts) {
    if (const size_t at = name.find(from); at != std::string::npos)
      name.replace(at, from.size(), to);
  }
  return name;
}

// The converter's reshape(heads, 2, half, in).swapaxes(1, 2).
std::vector<float> permuted(const std::vector<float>& values, int64_t rows, int64_t head_dim) {
  const size_t width = values.size() / static_cast<size_t>(rows);
  std::vector<float> out;
  for (int64_t head = 0; head < rows / head_dim; ++head) {
    for (int64_t j = 0; j < head_dim / 2; ++j) {
      for (int64_t p = 0; p < 2; ++p) {
        const auto row = static_cast<size_t>(head * head_dim + p * (head_dim / 2) + j);
        out.insert(out.end(), values.begin() + static_cast<std::ptrdiff_t>(row * width),
                   values.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
      }
    }
  }
  return out;
}

class GgufWriter {
 public:
  GgufWriter(const GgufCase& one, const Checkpoint& from) : case_(one), from_(from) {
    config_ = json::parse(from.read_text("config.json").value()).as_object();
  }

  std::string write() {
    add_keys();
    add_tokenizer();
    for (const TensorInfo& tensor : from_.tensors()) add(tensor);
    GgufBytes out;
    out.header(3, static_cast<uint64_t>(tensors_), static_cast<uint64_t>(values_));
    out.raw(keys_.str()).raw(table_.str()).pad().raw(data_.str());
    const std::string path =
        fmt::format("{}/{}_{}.gguf", ::testing::TempDir(), case_.folder, getpid());
    std::ofstream(path, std::ios::binary) << out.str();
    return path;
  }

 private:
  bool is(std::string_view name) const { return case_.name == name; }
  std::string key(std::string_view name) {
    ++values_;
    return fmt::format("{}.{}", case_.name, name);
  }
  void integer(std::string_view name, std::string_view from) {
    if (!config_.contains(from) || config_[from].is_null()) return;
    keys_.value(key(name), static_cast<uint32_t>(config_[from].to_number<int64_t>()));
  }
  void number(std::string_view name, const json::object& of, std::string_view from) {
    if (!of.contains(from) || of.at(from).is_null()) return;
    keys_.value(key(name), of.at(from).to_number<float>());
  }

  void add_keys() {
    ++values_;
    keys_.value("general.architecture", case_.name);
    integer("context_length", "max_position_embeddings");
    integer("embedding_length", "hidden_size");
    integer("block_count", "num_hidden_layers");
    integer("feed_forward_length", "intermediate_size");
    integer("attention.head_count", "num_attention_heads");
    integer("attention.head_count_kv", "num_key_value_heads");
    integer("attention.key_length", "head_dim");
    integer("attention.value_length", "head_dim");
    integer("attention.sliding_window", "sliding_window");
    number("attention.layer_norm_rms_epsilon", config_, "rms_norm_eps");
    number("attn_logit_softcapping", config_, "attn_logit_softcapping");
    number("final_logit_softcapping", config_, "final_logit_softcapping");
    number("embedding_scale", config_, "embedding_multiplier");
    number("residual_scale", config_, "residual_multiplier");
    number("logit_scale", config_, "logits_scaling");
    number("attention.scale", config_, "attention_multiplier");
    const bool has_windows =
        config_.contains("sliding_window") && config_["sliding_window"].is_int64();
    if (is("gemma3")) integer("attention.sliding_window_pattern", "sliding_window_pattern");
    if ((is("gemma3") || (is("exaone4") && has_windows)) && config_.contains("layer_types")) {
      const json::array& types = config_["layer_types"].as_array();
      keys_.key(key("attention.sliding_window_pattern"), 9).put(uint32_t{7});
      keys_.put(uint64_t{types.size()});
      for (const json::value& type : types) keys_.put(uint8_t{type == "sliding_attention"});
    }
    add_rope();
  }

  void add_rope() {
    json::object rope = config_;
    for (const char* const name : {"rope_parameters", "rope_scaling"}) {
      if (!config_.contains(name)) continue;
      for (const auto& [field, value] : config_[name].as_object()) rope[field] = value;
    }
    if (rope.contains("full_attention")) {
      rope["rope_local_base_freq"] = rope["sliding_attention"].as_object()["rope_theta"];
      rope["rope_theta"] = rope["full_attention"].as_object()["rope_theta"];
    }
    if (rope.contains("alpha")) {  // HunYuanModel.set_gguf_parameters
      const double dim = config_["hidden_size"].to_number<double>();
      const double head = config_["head_dim"].is_null()
                              ? dim / config_["num_attention_heads"].to_number<double>()
                              : config_["head_dim"].to_number<double>();
      rope["rope_theta"] = rope["rope_theta"].to_number<double>() *
                           std::pow(rope["alpha"].to_number<double>(), head / (head - 2));
    }
    number("attention.temperature_scale", rope, "llama_4_scaling_beta");
    if (is("mistral3")) number("rope.scaling.yarn_log_multiplier", rope, "mscale_all_dim");
    number("rope.freq_base", rope, "rope_theta");
    number("rope.freq_base_swa", rope, "rope_local_base_freq");
    const std::string type =
        rope.contains("rope_type") ? std::string(rope["rope_type"].as_string()) : "default";
    if (rope.contains("partial_rotary_factor")) {
      const double part = rope["partial_rotary_factor"].to_number<double>();
      keys_.value(key("rope.dimension_count"),
                  static_cast<uint32_t>(part * config_["head_dim"].to_number<double>()));
    }
    if (type == "yarn" || type == "linear") {
      keys_.value(key("rope.scaling.type"), type);
      number("rope.scaling.factor", rope, "factor");
      number("rope.scaling.yarn_beta_fast", rope, "beta_fast");
      number("rope.scaling.yarn_beta_slow", rope, "beta_slow");
    }
    if (type == "yarn" || type == "longrope") {
      keys_.value(key("rope.scaling.original_context_length"),
                  rope["original_max_position_embeddings"].to_number<uint32_t>());
    }
    if (type == "llama3") add_vector("rope_freqs.weight", llama3_divisors(rope));
    for (const auto& [from, to] : {std::pair("short_factor", "rope_factors_short.weight"),
                                   std::pair("long_factor", "rope_factors_long.weight")}) {
      if (type != "longrope") continue;
      std::vector<float> values;
      for (const json::value& one : rope[from].as_array()) values.push_back(one.to_number<float>());
      add_vector(to, values);
    }
  }

  // LlamaModel.generate_extra_tensors.
  std::vector<float> llama3_divisors(const json::object& rope) {
    const auto of = [&](const char* name) { return rope.at(name).to_number<double>(); };
    const double dim = config_["head_dim"].to_number<double>();
    std::vector<float> out;
    for (double i = 0; i < dim; i += 2) {
      const double wave = 2 * std::numbers::pi * std::pow(of("rope_theta"), i / dim);
      const double original = of("original_max_position_embeddings");
      const double low = of("low_freq_factor");
      const double high = of("high_freq_factor");
      const double smooth = (original / wave - low) / (high - low);
      const double divisor = wave < original / high  ? 1
                             : wave > original / low ? of("factor")
                                                     : 1 / ((1 - smooth) / of("factor") + smooth);
      out.push_back(static_cast<float>(divisor));
    }
    return out;
  }

  void add_tokenizer() {
    const auto vocab = config_["vocab_size"].to_number<uint64_t>();
    values_ += 7;
    keys_.value("tokenizer.ggml.model", "gpt2").value("tokenizer.ggml.pre", "gpt-2");
    keys_.key("tokenizer.ggml.tokens", 9).put(uint32_t{8}).put(vocab);
    for (uint64_t i = 0; i < vocab; ++i) keys_.text(fmt::format("t{}", i));
    keys_.key("tokenizer.ggml.token_type", 9).put(uint32_t{5}).put(vocab);
    for (uint64_t i = 0; i < vocab; ++i) keys_.put(i < 3 ? 3 : 1);
    keys_.key("tokenizer.ggml.merges", 9).put(uint32_t{8}).put(uint64_t{0});
    keys_.value("tokenizer.ggml.bos_token_id", 1U).value("tokenizer.ggml.eos_token_id", 2U);
  }

  void add(const TensorInfo& tensor) {
    std::vector<float> values = values_of(tensor.view);
    const int64_t rows = tensor.view.shape[0];
    const bool turns = tensor.name.find("q_proj") != std::string::npos ||
                       tensor.name.find("k_proj") != std::string::npos;
    if (case_.permutes && turns) {
      values = permuted(values, rows, config_["head_dim"].to_number<int64_t>());
    }
    if (case_.adds_one && tensor.name.ends_with("norm.weight")) {
      for (float& value : values) value += 1;
    }
    std::vector<uint64_t> extents;
    for (int i = tensor.view.shape.rank() - 1; i >= 0; --i) {
      extents.push_back(static_cast<uint64_t>(tensor.view.shape[i]));
    }
    const bool has_two =
        (case_.adds_one && !is("gemma")) || is("olmo2") || is("exaone4") || is("seed_oss");
    add_floats(written_name(tensor.name, has_two), extents, values);
  }
  void add_vector(std::string_view name, const std::vector<float>& values) {
    add_floats(name, {values.size()}, values);
  }
  void add_floats(std::string_view name, const std::vector<uint64_t>& extents,
                  const std::vector<float>& values) {
    ++tensors_;
    table_.tensor(name, extents, 0, data_.size());
    for (const float value : values) data_.put(value);
    data_.pad();
  }

  const GgufCase& case_;
  const Checkpoint& from_;
  json::object config_;
  GgufBytes keys_, table_, data_;
  int64_t values_ = 0;
  int64_t tensors_ = 0;
};

std::string told(const ModelSpec& spec, bool with_scale) {
  std::string out = fmt::format("{} {} {} {} {} tied {} scale {} cap {}\n", spec.architecture,
                                spec.hidden, spec.vocab, spec.max_positions, spec.norm_eps,
                                spec.tied_head, spec.embed_scale, spec.final_softcap);
  out += fmt::format("{} {} {} {}\n", spec.branch_scale, spec.logit_scale, spec.query_growth.slope,
                     spec.query_growth.period);
  for (const LayerSpec& layer : spec.layers) {
    const Attention& a = *attention_of(layer);
    const GatedMlp& m = *gated_mlp_of(layer);
    out += fmt::format("{} {} {} window {} rope {} scale {} bias {} {} norm {} cap {}; ",
                       a.num_heads, a.num_kv_heads, a.head_dim, a.window, a.rope,
                       with_scale ? a.scale : 0.0F, a.qkv_bias, a.out_bias,
                       static_cast<int>(a.qk_norm), std::get<Softmax>(a.weighting).softcap);
    out += fmt::format("{} {} {} norms {} {} {} {}\n", m.width, static_cast<int>(m.activation),
                       m.bias, layer.norms.pre, layer.norms.post, a.norms_rotated, a.neighbours);
  }
  return out;
}

class GgufFamilies : public ::testing::TestWithParam<GgufCase> {};

TEST_P(GgufFamilies, HaveTheSpecAndTheTensorsThatTheyWereMadeFrom) {
  const std::string golden = fmt::format("tests/golden/{}", GetParam().folder);
  if (!std::filesystem::exists(golden)) GTEST_SKIP() << "its golden is still to be made";
  const auto folder = Checkpoint::open_folder(golden);
  ASSERT_TRUE(folder) << folder.error().to_string();
  const std::string path = GgufWriter(GetParam(), **folder).write();
  const auto file = open_gguf(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(file) << file.error().to_string();

  const auto wanted = read_spec(**folder);
  const auto spec = read_spec(**file);
  ASSERT_TRUE(wanted && spec) << spec.error().to_string()
                              << (*file)->read_text("config.json").value();
  EXPECT_EQ(told(*spec, !GetParam().adds_one), told(*wanted, !GetParam().adds_one));
  ASSERT_EQ(spec->ropes.size(), wanted->ropes.size());
  for (size_t i = 0; i < spec->ropes.size(); ++i) {
    EXPECT_NEAR(rope_attention_factor(spec->ropes[i]), rope_attention_factor(wanted->ropes[i]),
                1e-6);
    for (const int32_t length : {64, 512}) {
      const auto ours = rope_frequencies(spec->ropes[i], length);
      const auto theirs = rope_frequencies(wanted->ropes[i], length);
      ASSERT_EQ(ours.size(), theirs.size());
      for (size_t j = 0; j < ours.size(); ++j) {
        EXPECT_NEAR(ours[j] / theirs[j], 1, 2e-6) << "rope " << i << ", pair " << j;
      }
    }
  }
  const auto checked = check_tensors(**file, *spec);
  EXPECT_TRUE(checked) << checked.error().to_string();
  ASSERT_EQ((*file)->tensors().size(), (*folder)->tensors().size());
  for (const TensorInfo& tensor : (*folder)->tensors()) {
    const TensorInfo* const found = (*file)->find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    ASSERT_EQ(found->view.shape, tensor.view.shape) << tensor.name;
    const std::vector<float> theirs = values_of(tensor.view);
    std::vector<float> ours(theirs.size());
    if (found->packed) {
      found->packed->unpack(ours.data());
    } else {
      ours = values_of(found->view);
    }
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_NEAR(ours[i], theirs[i], GetParam().adds_one ? 1e-7 : 0) << tensor.name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, GgufFamilies,
    ::testing::Values(GgufCase{"llama3", "llama", true}, GgufCase{"llama2", "llama", true},
                      GgufCase{"llama-bias", "llama", true}, GgufCase{"qwen2", "qwen2"},
                      GgufCase{"qwen2-yarn", "qwen2"}, GgufCase{"qwen3", "qwen3"},
                      GgufCase{"gemma2", "gemma2", false, true},
                      GgufCase{"gemma3", "gemma3", false, true},
                      GgufCase{"gemma3-linear", "gemma3", false, true}, GgufCase{"phi3", "phi3"},
                      GgufCase{"phi3-longrope-short", "phi3"}, GgufCase{"olmo2", "olmo2"},
                      GgufCase{"gemma", "gemma", false, true},
                      GgufCase{"ministral3", "mistral3", true},
                      GgufCase{"granite", "granite", true}, GgufCase{"exaone4", "exaone4"},
                      GgufCase{"exaone4-full", "exaone4"}, GgufCase{"seed-oss", "seed_oss"},
                      GgufCase{"ernie4-5", "ernie4_5"}, GgufCase{"glm4", "glm4"},
                      GgufCase{"hunyuan", "hunyuan-dense"}),
    [](const auto& info) {
      std::string name = info.param.folder;
      std::ranges::replace(name, '-', '_');
      return name;
    });

}  // namespace
}  // namespace rudder::model
