#include "rudder/model/gguf/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <vector>

#include "rudder/base/log.h"
#include "rudder/model/gguf/gguf_keys.h"

namespace rudder::model {
namespace {

namespace json = boost::json;
using weights::GgufFile;
using weights::GgufTensor;

// Keys that change no result, or that only repeat what others say.
constexpr std::string_view kNeutralKeys[] = {"vocab_size", "tensor_data_layout", "attention.causal",
                                             "rope.scaling.finetuned", "rope.scaling.truncate"};
// Where others are there and are neither 0, false nor empty, the model is another one.
constexpr std::string_view kMeaningful[] = {"attention.", "rope.",  "expert", "ssm.",       "scale",
                                            "softcap",    "router", "norm",   "multiplier", "lora",
                                            "nextn",      "clamp",  "swiglu", "per_layer"};

class GgufConfig : GgufKeys {
 public:
  GgufConfig(const GgufSource& from, const GgufArchitecture& of) : GgufKeys(from, of) {}

  Result<std::string> make() {
    out["architectures"] = json::array{json::string(architecture.architecture)};
    out["model_type"] = json::string(architecture.model_type);
    out["hidden_act"] = "silu";
    RUDDER_TRY_VOID(add_sizes());
    if (is("gemma4")) {
      RUDDER_TRY_VOID(add_gguf_gemma4(*this, num_layers_));
    } else {
      RUDDER_TRY_VOID(copy_size("feed_forward_length", "intermediate_size"));
      RUDDER_TRY_VOID(add_heads());
      RUDDER_TRY_VOID(add_windows());
      RUDDER_TRY_VOID(add_ropes());
    }
    RUDDER_TRY_VOID(add_gguf_experts(*this, num_layers_));
    if (is_gemma()) RUDDER_TRY_VOID(add_gemma());
    RUDDER_TRY_VOID(add_multipliers());
    RUDDER_TRY_VOID(add_growth());
    read.emplace("rope.dimension_sections");  // of images; of text a rope with them is plain
    RUDDER_TRY_VOID(add_ids());
    RUDDER_TRY_VOID(check_unread());
    return json::serialize(out);
  }

 private:
  bool is_gemma() const { return architecture.adds_one; }
  Result<void> add_sizes() {
    RUDDER_TRY_VOID(copy_size("context_length", "max_position_embeddings"));
    RUDDER_TRY_VOID(copy_size("embedding_length", "hidden_size"));
    RUDDER_TRY(num_layers_, gguf_num_layers(gguf));
    read.insert({"block_count", "nextn_predict_layers"});
    out["num_hidden_layers"] = num_layers_;
    RUDDER_TRY(const double eps, gguf.number(key("attention.layer_norm_rms_epsilon")));
    out["rms_norm_eps"] = shortest(eps);
    const GgufTensor* const table = source.find("token_embd.weight");
    if (table == nullptr || table->shape.rank != 2) {
      return fail(ErrorCode::kCorruptFile, "it is missing or no table",
                  gguf.where_tensor("token_embd.weight"));
    }
    out["vocab_size"] = static_cast<int64_t>(table->shape.dims[0]);
    out["tie_word_embeddings"] = source.find("output.weight") == nullptr;
    const bool q_bias = source.find("blk.0.attn_q.bias") != nullptr;
    const bool out_bias = source.find("blk.0.attn_output.bias") != nullptr;
    const bool is_of_q = is("glm4") || is("glm4moe") || is("seed_oss");  // what the flag says there
    out["attention_bias"] = q_bias && (out_bias || is_of_q);
    if (is("seed_oss")) out["attention_out_bias"] = out_bias;
    if (is("ernie4_5")) out["use_bias"] = q_bias;
    out["mlp_bias"] = source.find("blk.0.ffn_down.bias") != nullptr;
    return {};
  }

  Result<void> add_heads() {
    RUDDER_TRY_VOID(copy_size("attention.head_count", "num_attention_heads"));
    out["num_key_value_heads"] = out["num_attention_heads"];
    if (has("attention.head_count_kv")) {
      RUDDER_TRY_VOID(copy_size("attention.head_count_kv", "num_key_value_heads"));
    }
    read.emplace("attention.key_length");
    RUDDER_TRY(head_dim_, gguf_head_dim(gguf));
    out["head_dim"] = head_dim_;
    for (const char* const other : {"attention.value_length", "rope.dimension_count"}) {
      if (!has(other)) continue;
      RUDDER_TRY(const int64_t length, size(other));
      if (length == head_dim_) continue;
      if (other == std::string_view("rope.dimension_count") &&
          (is("phi3") || is("glm4") || is("glm4moe"))) {
        out["partial_rotary_factor"] = static_cast<double>(length) / static_cast<double>(head_dim_);
      } else {
        return contradiction(
            fmt::format("it is {}, keys of a head have {} numbers", length, head_dim_), other);
      }
    }
    return {};
  }

  // Null: the class's own default would be a window.
  Result<void> add_windows() {
    constexpr std::string_view kWindow = "attention.sliding_window";
    constexpr std::string_view kPattern = "attention.sliding_window_pattern";
    out["sliding_window"] = nullptr;
    if (has(kWindow)) {
      RUDDER_TRY(const int64_t window, gguf.integer(key(kWindow), 0, kMostGguf));
      if (window > 0) out["sliding_window"] = window;
    }
    if (is_gemma() && out["sliding_window"].is_null()) out.erase("sliding_window");
    const bool windows_are_read = is_gemma() || is("phi3") || is("exaone4") || is("gpt-oss");
    if (!windows_are_read && !out["sliding_window"].is_null()) {
      return contradiction("windows of this architecture are not served", kWindow);
    }
    if (!has(kPattern)) return {};
    const auto& value = gguf.values().find(key(kPattern))->second;
    if (!is("gemma3") && !is("exaone4")) {
      return contradiction("patterns of windows of this architecture are not served", kPattern);
    }
    if (!value.is_array) {
      RUDDER_TRY(out["sliding_window_pattern"], size(kPattern));
      return {};
    }
    RUDDER_TRY(const std::vector<double> sliding, gguf.numbers(key(kPattern)));
    json::array types;
    for (const double one : sliding) {
      types.emplace_back(one != 0 ? "sliding_attention" : "full_attention");
    }
    out["layer_types"] = std::move(types);
    return {};
  }

  // Numbers of a small tensor: [half of a head].
  Result<json::array> factors_of(const GgufTensor& tensor) {
    const auto count = static_cast<int64_t>(tensor.shape.dims[0]);
    if (tensor.type->number != weights::kGgufF32 || tensor.shape.rank != 1) {
      return fail(ErrorCode::kCorruptFile, "it is no list of F32", gguf.where_tensor(tensor.name));
    }
    std::vector<float> values(static_cast<size_t>(count));
    tensor.type->expand(tensor.bytes.data(), count, values.data());
    json::array list;
    for (const float value : values) {
      if (!std::isfinite(value) || value <= 0) {
        return fail(ErrorCode::kCorruptFile, fmt::format("{} divides no frequency", value),
                    gguf.where_tensor(tensor.name));
      }
      list.emplace_back(static_cast<double>(value));
    }
    return list;
  }

  Result<void> add_ropes() {
    if (has("rope.freq_base")) {
      RUDDER_TRY_VOID(copy_number("rope.freq_base", "rope_theta", out));
    }
    if (is("gemma3")) {
      out["rope_local_base_freq"] = 10'000.0;
      RUDDER_TRY_VOID(copy_number("rope.freq_base_swa", "rope_local_base_freq", out));
    }
    RUDDER_TRY(json::object scaling, scaling_by_keys());
    if (const GgufTensor* const factors = source.find("rope_freqs.weight")) {
      if (!scaling.empty())
        return contradiction("it stands beside rope_freqs", "rope.scaling.type");
      RUDDER_TRY(json::array list, factors_of(*factors));
      scaling = {{"rope_type", "longrope"},
                 {"factor", 1.0},
                 {"attention_factor", 1.0},
                 {"short_factor", list},
                 {"long_factor", list},
                 {"original_max_position_embeddings", out["max_position_embeddings"]}};
    }
    const GgufTensor* const shorter = source.find("rope_factors_short.weight");
    const GgufTensor* const longer = source.find("rope_factors_long.weight");
    if ((shorter == nullptr) != (longer == nullptr)) {
      return fail(ErrorCode::kCorruptFile, "one of the two is missing",
                  gguf.where_tensor("rope_factors_long.weight"));
    }
    if (shorter != nullptr) {
      scaling["rope_type"] = "longrope";
      RUDDER_TRY(scaling["short_factor"], factors_of(*shorter));
      RUDDER_TRY(scaling["long_factor"], factors_of(*longer));
    }
    if (!scaling.empty()) out["rope_scaling"] = std::move(scaling);
    return {};
  }

  Result<json::object> scaling_by_keys() {
    json::object rope;
    constexpr std::string_view kType = "rope.scaling.type";
    RUDDER_TRY(std::string_view type, gguf.text_or(key(kType), "none"));
    if (has("rope.scale_linear") && type == "none") {
      RUDDER_TRY_VOID(copy_number("rope.scale_linear", "factor", rope));
      if (rope["factor"] == 1.0) return json::object();
      type = "linear";
    }
    if (has("rope.scaling.original_context_length")) {
      RUDDER_TRY(const int64_t original, size("rope.scaling.original_context_length"));
      out["original_max_position_embeddings"] = original;
    }
    const bool is_phi3 = is("phi3");
    if (type == "none" && !is_phi3) return json::object();
    if (type != "none" && type != "linear" && type != "yarn" && type != "longrope") {
      return contradiction(fmt::format("the rope type '{}' is not known", type), kType);
    }
    RUDDER_TRY_VOID(copy_number("rope.scaling.factor", "factor", rope));
    if (type == "yarn") RUDDER_TRY_VOID(add_yarn(rope));
    if (is("gpt-oss")) rope["truncate"] = false;  // of that model alone
    if (is_phi3) RUDDER_TRY_VOID(copy_number("rope.scaling.attn_factor", "attention_factor", rope));
    if (type != "none") rope["rope_type"] = json::string(type);
    if (out.contains("original_max_position_embeddings") && !is_phi3) {
      rope["original_max_position_embeddings"] = out["original_max_position_embeddings"];
      out.erase("original_max_position_embeddings");
    }
    return rope;
  }

  // Attention's factor is llama.cpp's times that of YaRN itself.
  Result<void> add_yarn(json::object& rope) {
    RUDDER_TRY_VOID(copy_number("rope.scaling.yarn_beta_fast", "beta_fast", rope));
    RUDDER_TRY_VOID(copy_number("rope.scaling.yarn_beta_slow", "beta_slow", rope));
    if (!has("rope.scaling.attn_factor") || !rope.contains("factor")) return {};
    RUDDER_TRY(const double extra, gguf.number(key("rope.scaling.attn_factor")));
    const double factor = rope["factor"].as_double();
    rope["attention_factor"] = shortest(extra) * (0.1 * std::log(std::max(factor, 1.0)) + 1);
    return {};
  }

  Result<void> add_multipliers() {
    if (!is("granite")) return {};
    RUDDER_TRY_VOID(copy_number("embedding_scale", "embedding_multiplier", out));
    RUDDER_TRY_VOID(copy_number("residual_scale", "residual_multiplier", out));
    RUDDER_TRY_VOID(copy_number("logit_scale", "logits_scaling", out));
    return copy_number("attention.scale", "attention_multiplier", out);
  }

  // Files of Ministral 3 and of the text half of Mistral Small have one name.
  Result<void> add_growth() {
    constexpr std::string_view kSlope = "attention.temperature_scale";
    if (!is("mistral3") || !has(kSlope)) return {};
    json::value* const rope = out.if_contains("rope_scaling");
    if (rope == nullptr) return contradiction("no rope scaling stands beside it", kSlope);
    out["architectures"] = json::array{"Ministral3ForCausalLM"};
    out["model_type"] = "ministral3";
    RUDDER_TRY_VOID(copy_number("rope.scaling.yarn_log_multiplier", "mscale", rope->as_object()));
    RUDDER_TRY_VOID(
        copy_number("rope.scaling.yarn_log_multiplier", "mscale_all_dim", rope->as_object()));
    return copy_number(kSlope, "llama_4_scaling_beta", rope->as_object());
  }

  // llama.cpp knows the larger ones by their number of layers; their queries are scaled by the
  // width of all heads, not of one.
  Result<void> add_gemma() {
    if (is("gemma")) {
      out["hidden_act"] = "gelu_pytorch_tanh";
      return {};
    }
    const int64_t layers_of_27b = is("gemma2") ? 46 : 62;
    const int64_t width = out["hidden_size"].as_int64();
    out["query_pre_attn_scalar"] =
        num_layers_ == layers_of_27b ? width / out["num_attention_heads"].as_int64() : head_dim_;
    out.erase("hidden_act");
    RUDDER_TRY_VOID(copy_number("attn_logit_softcapping", "attn_logit_softcapping", out));
    return copy_number("final_logit_softcapping", "final_logit_softcapping", out);
  }

  Result<void> add_ids() {
    for (const auto& [name, target] :
         {std::pair("bos", "bos_token_id"), std::pair("eos", "eos_token_id"),
          std::pair("padding", "pad_token_id")}) {
      const std::string whole = fmt::format("tokenizer.ggml.{}_token_id", name);
      if (!gguf.has(whole)) continue;
      RUDDER_TRY(out[target], gguf.integer(whole, 0, INT32_MAX));
    }
    return {};
  }

  static bool is_neutral(const weights::GgufValue& value) {
    if (value.is_array) return value.count == 0;
    return std::ranges::all_of(value.bytes, [](std::byte one) { return one == std::byte{0}; });
  }

  Result<void> check_unread() {
    const std::string prefix = fmt::format("{}.", architecture.name);
    for (const auto& [whole, value] : gguf.values()) {
      if (!whole.starts_with(prefix)) continue;
      const std::string_view name = whole.substr(prefix.size());
      if (read.contains(name) || std::ranges::find(kNeutralKeys, name) != std::end(kNeutralKeys)) {
        continue;
      }
      const bool is_meaningful = std::ranges::any_of(kMeaningful, [&](std::string_view part) {
        return name.find(part) != std::string_view::npos;
      });
      if (is_neutral(value)) continue;
      if (is_meaningful) {
        return fail(ErrorCode::kUnsupported, "this architecture has nothing here that it asks for",
                    gguf.where(whole));
      }
      log_info("{}: it is not read", gguf.where(whole));
    }
    return {};
  }

  int64_t num_layers_ = 0;
  int64_t head_dim_ = 0;
};

}  // namespace

const GgufTensor* GgufSource::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &GgufTensor::name);
  return found != tensors.end() ? *found : nullptr;
}

Result<int64_t> gguf_num_layers(const GgufFile& metadata) {
  RUDDER_TRY(const std::string_view name, metadata.text("general.architecture"));
  const std::string all = fmt::format("{}.block_count", name);
  const std::string guessing = fmt::format("{}.nextn_predict_layers", name);
  RUDDER_TRY(const int64_t count, metadata.integer(all, 1, kMostGguf));
  if (!metadata.has(guessing)) return count;
  RUDDER_TRY(const int64_t behind, metadata.integer(guessing, 0, count - 1));
  return count - behind;
}

Result<int64_t> gguf_head_dim(const GgufFile& metadata) {
  RUDDER_TRY(const std::string_view name, metadata.text("general.architecture"));
  const std::string length = fmt::format("{}.attention.key_length", name);
  if (metadata.has(length)) return metadata.integer(length, 2, kMostGguf);
  const std::string width = fmt::format("{}.embedding_length", name);
  const std::string heads = fmt::format("{}.attention.head_count", name);
  RUDDER_TRY(const int64_t hidden, metadata.integer(width, 1, kMostGguf));
  RUDDER_TRY(const int64_t count, metadata.integer(heads, 1, kMostGguf));
  if (hidden % count == 0 && hidden / count >= 2) return hidden / count;
  return fail(ErrorCode::kCorruptFile, fmt::format("{} heads do not share {} rows", count, hidden),
              metadata.where(heads));
}

Result<std::string> gguf_config(const GgufSource& source, const GgufArchitecture& architecture) {
  return GgufConfig(source, architecture).make();
}

}  // namespace rudder::model
