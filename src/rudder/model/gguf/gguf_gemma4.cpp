// Gemma 4 in GGUF files: sizes by layer, layers that share KV, embeddings by layer, and a rope of
// which a part turns, as divisors of its frequencies. Source: llama.cpp, conversion/gemma.py.
#include <string>
#include <vector>

#include "rudder/model/gguf/gguf_keys.h"

namespace rudder::model {
namespace {

namespace json = boost::json;

constexpr float kStill = 1e29f;  // a divisor above it: the pair does not turn

// Layers with a window.
Result<std::vector<bool>> sliding_layers_of(GgufKeys& keys, int64_t num_layers) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  RUDDER_TRY(const std::vector<double> stored, keys.gguf.numbers(keys.key(kPattern)));
  if (std::ssize(stored) != num_layers) {
    return keys.contradiction(fmt::format("{} entries for {} layers", stored.size(), num_layers),
                              kPattern);
  }
  std::vector<bool> out;
  json::array types;
  for (const double one : stored) {
    out.push_back(one != 0);
    types.emplace_back(one != 0 ? "sliding_attention" : "full_attention");
  }
  keys.out["layer_types"] = std::move(types);
  return out;
}

Result<void> add_heads(GgufKeys& keys, const std::vector<bool>& sliding) {
  RUDDER_TRY_VOID(keys.copy_size("attention.head_count", "num_attention_heads"));
  RUDDER_TRY(const int64_t wide, keys.size("attention.key_length"));
  int64_t narrow = wide;
  if (keys.has("attention.key_length_swa")) {
    RUDDER_TRY(narrow, keys.size("attention.key_length_swa"));
  }
  keys.out["global_head_dim"] = wide;
  keys.out["head_dim"] = narrow;
  const std::pair<const char*, int64_t> same[] = {{"attention.value_length", wide},
                                                  {"rope.dimension_count", wide},
                                                  {"attention.value_length_swa", narrow},
                                                  {"rope.dimension_count_swa", narrow}};
  for (const auto& [name, wanted] : same) {
    if (!keys.has(name)) continue;
    RUDDER_TRY(const int64_t length, keys.size(name));
    if (length == wanted) continue;
    return keys.contradiction(
        fmt::format("it is {}, keys of a head have {} numbers", length, wanted), name);
  }
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  RUDDER_TRY(const std::vector<int64_t> kv, keys.sizes(kKvHeads, std::ssize(sliding)));
  int64_t of_kind[2] = {0, 0};
  bool k_is_v = false;
  for (size_t i = 0; i < sliding.size(); ++i) {
    int64_t& known = of_kind[sliding[i] ? 1 : 0];
    if (known != 0 && known != kv[i]) {
      return keys.contradiction("layers of one kind have different KV heads", kKvHeads);
    }
    known = kv[i];
    const auto stored = [&](const char* what) {
      return keys.source.find(fmt::format("blk.{}.{}.weight", i, what)) != nullptr;
    };
    k_is_v = k_is_v || (!sliding[i] && stored("attn_k") && !stored("attn_v"));
  }
  keys.out["attention_k_eq_v"] = k_is_v;
  keys.out["num_key_value_heads"] = of_kind[1] != 0 ? of_kind[1] : of_kind[0];
  if (k_is_v && of_kind[0] != 0) keys.out["num_global_key_value_heads"] = of_kind[0];
  if (k_is_v || of_kind[0] == of_kind[1] || of_kind[0] == 0 || of_kind[1] == 0) return {};
  return keys.contradiction("layers without a window have other KV heads, and values", kKvHeads);
}

// Of the pairs of a head of layers without a window, the share that turns.
Result<double> turning_part(GgufKeys& keys) {
  const weights::GgufTensor* const stored = keys.source.find("rope_freqs.weight");
  if (stored == nullptr) return 1.0;
  const auto count = static_cast<int64_t>(stored->shape.dims[0]);
  if (stored->type->number != weights::kGgufF32 || stored->shape.rank != 1 ||
      2 * count != keys.out["global_head_dim"].as_int64()) {
    return fail(ErrorCode::kCorruptFile, "it is no list of F32 of half a head",
                keys.gguf.where_tensor(stored->name));
  }
  std::vector<float> values(static_cast<size_t>(count));
  stored->type->expand(stored->bytes.data(), count, values.data());
  const auto still = std::ranges::find_if(values, [](float one) { return one > kStill; });
  const bool is_known = std::all_of(values.begin(), still, [](float one) { return one == 1; }) &&
                        std::all_of(still, values.end(), [](float one) { return one > kStill; });
  if (!is_known) {
    return fail(ErrorCode::kUnsupported, "pairs of this architecture turn or stand still",
                keys.gguf.where_tensor(stored->name));
  }
  return static_cast<double>(still - values.begin()) / static_cast<double>(count);
}

Result<void> add_ropes(GgufKeys& keys) {
  json::object full = {{"rope_type", "proportional"}, {"rope_theta", 1e6}};
  RUDDER_TRY(full["partial_rotary_factor"], turning_part(keys));
  RUDDER_TRY_VOID(keys.copy_number("rope.freq_base", "rope_theta", full));
  json::object sliding = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  RUDDER_TRY_VOID(keys.copy_number("rope.freq_base_swa", "rope_theta", sliding));
  keys.out["rope_parameters"] =
      json::object{{"full_attention", std::move(full)}, {"sliding_attention", std::move(sliding)}};
  return {};
}

// The last layers, which share KV, may have MLPs twice as wide.
Result<void> add_widths(GgufKeys& keys, int64_t num_layers) {
  constexpr std::string_view kShared = "attention.shared_kv_layers";
  constexpr std::string_view kWidth = "feed_forward_length";
  int64_t shared = 0;
  if (keys.has(kShared)) {
    RUDDER_TRY(shared, keys.gguf.integer(keys.key(kShared), 0, num_layers - 1));
  }
  keys.out["num_kv_shared_layers"] = shared;
  RUDDER_TRY(const std::vector<int64_t> widths, keys.sizes(kWidth, num_layers));
  const int64_t factor = shared > 0 && widths.back() == 2 * widths.front() ? 2 : 1;
  for (int64_t i = 0; i < num_layers; ++i) {
    const int64_t wanted = widths.front() * (i < num_layers - shared ? 1 : factor);
    if (widths[static_cast<size_t>(i)] == wanted) continue;
    return keys.contradiction("layers of different sizes are not served", kWidth);
  }
  keys.out["intermediate_size"] = widths.front();
  keys.out["use_double_wide_mlp"] = factor == 2;
  return {};
}

}  // namespace

Result<void> add_gguf_gemma4(GgufKeys& keys, int64_t num_layers) {
  RUDDER_TRY(const std::vector<bool> sliding, sliding_layers_of(keys, num_layers));
  RUDDER_TRY_VOID(add_heads(keys, sliding));
  RUDDER_TRY_VOID(add_ropes(keys));
  RUDDER_TRY_VOID(add_widths(keys, num_layers));
  RUDDER_TRY_VOID(keys.copy_size("attention.sliding_window", "sliding_window"));
  keys.out.erase("hidden_act");
  RUDDER_TRY_VOID(keys.copy_number("final_logit_softcapping", "final_logit_softcapping", keys.out));
  constexpr std::string_view kByLayer = "embedding_length_per_layer_input";
  int64_t by_layer = 0;
  if (keys.has(kByLayer)) {
    RUDDER_TRY(by_layer, keys.gguf.integer(keys.key(kByLayer), 0, kMostGguf));
  }
  keys.out["hidden_size_per_layer_input"] = by_layer;
  if (by_layer > 0) keys.out["vocab_size_per_layer_input"] = keys.out["vocab_size"];
  return {};
}

}  // namespace rudder::model
