// A golden checkpoint written as GGUF, as llama.cpp's converter writes one of its family. For tests
// of one room; one thread.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <numbers>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/model/binder.h"
#include "rudder/weights/checkpoint.h"
#include "rudder/weights/gguf_test_file.h"

namespace rudder::model {

struct GgufCase {
  const char* folder;
  const char* name;  // "general.architecture"
  bool permutes = false;
  bool adds_one = false;
  bool has_old_experts = false;  // a tensor for each
  bool fuses = false;            // gate and up of all experts are one tensor
  // Faults.
  uint64_t lost_experts = 0;          // each tensor of all of them has so many less
  std::string_view lost_tensor = {};  // those with it in their name are not there
};

// Modules of every family; which of the two a norm is, the family says.
inline std::string written_name(std::string name, bool has_two_norms) {
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
      {"self_attn.sinks", "attn_sinks.weight"},
      {"block_sparse_moe.gate.", "ffn_gate_inp."},
      {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
      {"mlp.gate.", "ffn_gate_inp."},
      {"mlp.router.", "ffn_gate_inp."},
      {"mlp.shared_experts.gate_proj.", "ffn_gate_shexp."},
      {"mlp.shared_experts.up_proj.", "ffn_up_shexp."},
      {"mlp.shared_experts.down_proj.", "ffn_down_shexp."},
      {"router.proj.", "ffn_gate_inp."},
      {"router.scale", "ffn_gate_inp.scale"},
      {"router.per_expert_scale", "ffn_down_exps.scale"},
      {"layer_scalar", "layer_output_scale.weight"},
      {"pre_feedforward_layernorm_2.", "pre_ffw_norm_2."},
      {"post_feedforward_layernorm_1.", "post_ffw_norm_1."},
      {"post_feedforward_layernorm_2.", "post_ffw_norm_2."},
      {"per_layer_input_gate.", "inp_gate."},
      {"per_layer_projection.", "proj."},
      {"post_per_layer_input_norm.", "post_norm."},
      {"model.embed_tokens_per_layer.", "per_layer_token_embd."},
      {"model.per_layer_model_projection.", "per_layer_model_proj."},
      {"model.per_layer_projection_norm.", "per_layer_proj_norm."},
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
inline std::vector<float> permuted(const std::vector<float>& values, int64_t rows,
                                   int64_t head_dim) {
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

struct GoldenNumbers {
  tensor::Shape shape;
  std::vector<float> values;
};

// A tensor of all experts as one for each: [experts, inputs, rows], a row of gate and up in turn,
// of gpt-oss; [experts, rows, inputs], up behind gate, of Gemma 4.
inline void take_apart(const weights::TensorInfo& all, bool in_turn,
                       std::map<std::string, GoldenNumbers>& out) {
  const std::vector<float> values = values_of(all.view);
  const size_t at = all.name.find(".experts.") + std::string(".experts.").size();
  const bool is_bias = all.name.ends_with("_bias");
  const bool is_two = all.name.substr(at).starts_with("gate_up");
  const int64_t parts = is_two ? 2 : 1;
  const int64_t rows = all.view.shape[is_bias || !in_turn ? 1 : 2] / parts;
  const int64_t inputs = is_bias ? 1 : all.view.shape[in_turn ? 1 : 2];
  for (int64_t e = 0; e < all.view.shape[0]; ++e) {
    for (int64_t part = 0; part < parts; ++part) {
      const char* const module = !is_two ? "down_proj" : part == 0 ? "gate_proj" : "up_proj";
      GoldenNumbers& one = out[fmt::format("{}{}.{}.{}", all.name.substr(0, at), e, module,
                                           is_bias ? "bias" : "weight")];
      one.shape = is_bias ? tensor::Shape{rows} : tensor::Shape{rows, inputs};
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t stored = in_turn ? row * parts + part : part * rows + row;
        for (int64_t i = 0; i < inputs; ++i) {
          const int64_t index = in_turn ? (e * inputs + i) * rows * parts + stored
                                        : (e * rows * parts + stored) * inputs + i;
          one.values.push_back(values[static_cast<size_t>(index)]);
        }
      }
    }
  }
}

// The tensors of a folder as a GGUF file's are here.
inline std::map<std::string, GoldenNumbers> written_numbers(const weights::Checkpoint& from,
                                                            const GgufCase& one) {
  std::map<std::string, GoldenNumbers> out;
  for (const weights::TensorInfo& tensor : from.tensors()) {
    const size_t at = tensor.name.find(".experts.");
    const bool is_stack = at != std::string::npos && std::isdigit(tensor.name[at + 9]) == 0;
    if (is_stack) {
      take_apart(tensor, one.name == std::string_view("gpt-oss"), out);
    } else {
      out[tensor.name] = {tensor.view.shape, values_of(tensor.view)};
    }
  }
  return out;
}

class GgufWriter {
 public:
  GgufWriter(const GgufCase& one, const weights::Checkpoint& from) : case_(one), from_(from) {
    config_ = boost::json::parse(from.read_text("config.json").value()).as_object();
  }

  std::string write() {
    add_keys();
    add_tokenizer();
    for (const auto& [name, numbers] : written_numbers(from_, case_)) {
      if (case_.has_old_experts || name.find(".experts.") == std::string::npos) {
        add(name, numbers);
      } else {
        collect(name, numbers);
      }
    }
    for (auto& [name, all] : experts_) {
      const size_t one = all.values.size() / all.extents.back();
      all.extents.back() -= case_.lost_experts;
      all.values.resize(one * all.extents.back());
      add_floats(name, all.extents, all.values);
    }
    weights::GgufBytes out;
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
  void number(std::string_view name, const boost::json::object& of, std::string_view from) {
    if (!of.contains(from) || of.at(from).is_null()) return;
    keys_.value(key(name), of.at(from).to_number<float>());
  }

  void add_keys() {
    ++values_;
    keys_.value("general.architecture", case_.name);
    integer("context_length", "max_position_embeddings");
    integer("embedding_length", "hidden_size");
    integer("block_count", "num_hidden_layers");
    integer("attention.head_count", "num_attention_heads");
    if (is("gemma4")) {
      add_gemma4();
    } else {
      integer("feed_forward_length", "intermediate_size");
      integer("attention.head_count_kv", "num_key_value_heads");
      integer("attention.key_length", "head_dim");
      integer("attention.value_length", "head_dim");
    }
    if (!is("llama")) integer("attention.sliding_window", "sliding_window");
    add_experts();
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
      const boost::json::array& types = config_["layer_types"].as_array();
      keys_.key(key("attention.sliding_window_pattern"), 9).put(uint32_t{7});
      keys_.put(uint64_t{types.size()});
      for (const boost::json::value& type : types) keys_.put(uint8_t{type == "sliding_attention"});
    }
    add_rope();
  }

  void add_experts() {
    for (const char* const count : {"num_experts", "num_local_experts", "n_routed_experts"}) {
      if (is("gemma4") && !config_["enable_moe_block"].as_bool()) return;
      integer("expert_count", count);
    }
    for (const char* const chosen : {"num_experts_per_tok", "top_k_experts"}) {
      integer("expert_used_count", chosen);
    }
    integer("expert_feed_forward_length",
            is("gpt-oss") ? "intermediate_size" : "moe_intermediate_size");
    if (!is("glm4moe")) return;
    integer("expert_shared_count", "n_shared_experts");
    integer("leading_dense_block_count", "first_k_dense_replace");
    integer("expert_group_count", "n_group");
    integer("expert_group_used_count", "topk_group");
    number("expert_weights_scale", config_, "routed_scaling_factor");
    keys_.value(key("expert_gating_func"), 2U);
  }

  // Gemma4Model.set_gguf_parameters and generate_extra_tensors.
  void add_gemma4() {
    const boost::json::array& types = config_["layer_types"].as_array();
    const auto of_all = [&](std::string_view name, uint32_t type, auto value) {
      keys_.key(key(name), 9).put(type).put(uint64_t{types.size()});
      for (size_t i = 0; i < types.size(); ++i) keys_.put(value(i));
    };
    const auto is_full = [&](size_t i) { return types[i].as_string() == "full_attention"; };
    const boost::json::object& wide =
        config_["per_layer_config"].as_object()[std::to_string(types.size() - 1)].as_object();
    const auto of_full = [&](std::string_view name, std::string_view other) {
      return wide.contains(name) ? wide.at(name).to_number<uint32_t>()
                                 : config_[other].to_number<uint32_t>();
    };
    const uint32_t dim = of_full("head_dim", "head_dim");
    const uint32_t heads = of_full("num_key_value_heads", "num_key_value_heads");
    keys_.value(key("attention.key_length"), dim).value(key("attention.value_length"), dim);
    integer("attention.key_length_swa", "head_dim");
    integer("attention.value_length_swa", "head_dim");
    integer("attention.shared_kv_layers", "num_kv_shared_layers");
    integer("embedding_length_per_layer_input", "hidden_size_per_layer_input");
    of_all("attention.sliding_window_pattern", 7, [&](size_t i) { return uint8_t{!is_full(i)}; });
    of_all("attention.head_count_kv", 5, [&](size_t i) {
      return is_full(i) ? static_cast<int32_t>(heads)
                        : config_["num_key_value_heads"].to_number<int32_t>();
    });
    const auto shared = config_["num_kv_shared_layers"].to_number<size_t>();
    const bool is_double = config_["use_double_wide_mlp"].as_bool();
    of_all("feed_forward_length", 5, [&](size_t i) {
      const bool is_wide = is_double && i >= types.size() - shared;
      return config_["intermediate_size"].to_number<int32_t>() * (is_wide ? 2 : 1);
    });
    const boost::json::object& rope =
        config_["rope_parameters"].as_object()["full_attention"].as_object();
    const auto turning =
        static_cast<size_t>(dim * rope.at("partial_rotary_factor").to_number<double>() / 2);
    std::vector<float> divisors(dim / 2, 1e30F);
    std::fill_n(divisors.begin(), turning, 1.0F);
    add_vector("rope_freqs.weight", divisors);
  }

  void add_rope() {
    boost::json::object rope = config_;
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
    if (is("gemma4")) return;
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
      for (const boost::json::value& one : rope[from].as_array())
        values.push_back(one.to_number<float>());
      add_vector(to, values);
    }
  }

  // LlamaModel.generate_extra_tensors.
  std::vector<float> llama3_divisors(const boost::json::object& rope) {
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

  // Behind those of the experts in front of it.
  void collect(const std::string& name, const GoldenNumbers& numbers) {
    const size_t at = name.find(".experts.") + 9;
    const size_t dot = name.find('.', at);
    const std::string module = name.substr(dot + 1, name.rfind('.') - dot - 1);
    const bool is_gate = module == "gate_proj" || module == "w1";
    const bool is_up = module == "up_proj" || module == "w3";
    const char* const part = case_.fuses && (is_gate || is_up) ? "gate_up"
                             : is_gate                         ? "gate"
                             : is_up                           ? "up"
                                                               : "down";
    const size_t layer = name.find("layers.") + 7;
    Experts& all = experts_[fmt::format("blk.{}.ffn_{}_exps{}",
                                        name.substr(layer, name.find('.', layer) - layer), part,
                                        name.substr(name.rfind('.')))];
    all.values.insert(all.values.end(), numbers.values.begin(), numbers.values.end());
    const bool is_weight = name.ends_with(".weight");
    const auto rows =
        static_cast<uint64_t>(numbers.shape[0]) * (part[0] == 'g' && part[4] != 0 ? 2 : 1);
    const uint64_t count = std::stoull(name.substr(at, dot - at)) + 1;
    all.extents = is_weight
                      ? std::vector<uint64_t>{static_cast<uint64_t>(numbers.shape[1]), rows, count}
                      : std::vector<uint64_t>{rows, count};
  }

  void add(const std::string& name, const GoldenNumbers& numbers) {
    std::vector<float> values = numbers.values;
    const int64_t rows = numbers.shape[0];
    const bool turns =
        name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos;
    if (case_.permutes && turns) {
      values = permuted(values, rows, config_["head_dim"].to_number<int64_t>());
    }
    if (case_.adds_one && name.ends_with("norm.weight")) {
      for (float& value : values) value += 1;
    }
    std::vector<uint64_t> extents;
    for (int i = numbers.shape.rank() - 1; i >= 0; --i) {
      extents.push_back(static_cast<uint64_t>(numbers.shape[i]));
    }
    const bool has_two = (case_.adds_one && !is("gemma")) || is("olmo2") || is("exaone4") ||
                         is("seed_oss") || is("gpt-oss") || is("glm4moe") || is("gemma4");
    std::string written = written_name(name, has_two);
    if (case_.has_old_experts && name.find(".experts.") != std::string::npos) {
      const size_t at = name.find(".experts.") + 9;
      const size_t layer = name.find("layers.") + 7;
      const std::string module = name.substr(name.find('.', at) + 1, 2);
      written =
          fmt::format("blk.{}.ffn_{}.{}.weight", name.substr(layer, name.find('.', layer) - layer),
                      module == "w1"   ? "gate"
                      : module == "w3" ? "up"
                                       : "down",
                      name.substr(at, name.find('.', at) - at));
    }
    add_floats(written, extents, values);
  }
  void add_vector(std::string_view name, const std::vector<float>& values) {
    add_floats(name, {values.size()}, values);
  }
  void add_floats(std::string_view name, const std::vector<uint64_t>& extents,
                  const std::vector<float>& values) {
    if (!case_.lost_tensor.empty() && name.find(case_.lost_tensor) != std::string_view::npos)
      return;
    ++tensors_;
    table_.tensor(name, extents, 0, data_.size());
    for (const float value : values) data_.put(value);
    data_.pad();
  }

  struct Experts {
    std::vector<uint64_t> extents;
    std::vector<float> values;
  };

  const GgufCase& case_;
  const weights::Checkpoint& from_;
  boost::json::object config_;
  std::map<std::string, Experts> experts_;
  weights::GgufBytes keys_, table_, data_;
  int64_t values_ = 0;
  int64_t tensors_ = 0;
};

}  // namespace rudder::model
