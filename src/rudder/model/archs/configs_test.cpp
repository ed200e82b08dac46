// What Hugging Face transformers makes of configurations (tools/golden/configs.py): the same ropes,
// and no key of its configuration classes that is left unread without a verdict.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>

#include "rudder/base/json.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/check_config.h"
#include "rudder/model/rope.h"
#include "rudder/weights/mapped_file.h"

namespace rudder::model {
namespace {

namespace json = boost::json;
using weights::HfConfig;

const json::object& golden_configs() {
  static const json::value kFile = [] {
    const auto text = weights::read_text_file("tests/golden/configs.json", size_t{1} << 24);
    return parse_json(text.value(), "configs.json").value();
  }();
  return kFile.as_object();
}

HfConfig config_of(const json::value& value) {
  return HfConfig::parse(json::serialize(value), "config.json").value();
}

// What Rudder refuses of ropes that transformers reads: of a part of a head, where the architecture
// turns whole ones, and what no published Gemma 4 has.
bool may_refuse_rope(const json::value& config) {
  return json::serialize(config).find("partial_rotary_factor") != std::string::npos ||
         config.at("model_type") == "gemma4_text";
}

bool names_a_rope(const Error& error) {
  return error.where.find("rope_parameters") != std::string::npos ||
         error.where.find("rope_scaling") != std::string::npos ||
         error.where.ends_with("partial_rotary_factor");
}

// Of the first layer with attention.
float scale_of_scores(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    if (const Attention* const attention = attention_of(layer)) return attention->scale;
    if (const LatentAttention* const latent = latent_of(layer)) return latent->scale;
  }
  return 0;
}

TEST(GoldenConfigs, RopesAreThoseOfTransformersOrRefusedByName) {
  int64_t compared = 0;
  int64_t refused = 0;
  for (const json::value& item : golden_configs().at("ropes").as_array()) {
    const std::string text = json::serialize(item.at("config"));
    const auto spec = read_config(config_of(item.at("config")));
    if (!spec && may_refuse_rope(item.at("config"))) {
      EXPECT_TRUE(names_a_rope(spec.error())) << text << "\n" << spec.error().to_string();
      ++refused;
      continue;
    }
    ASSERT_TRUE(spec) << text << "\n" << spec.error().to_string();
    EXPECT_NEAR(scale_of_scores(*spec), item.at("scale").to_number<double>(), 1e-6) << text;
    const json::array& ropes = item.at("ropes").as_array();
    ASSERT_EQ(spec->ropes.size(), ropes.size()) << text;
    const auto length = item.at("length").to_number<int32_t>();
    for (size_t r = 0; r < ropes.size(); ++r) {
      EXPECT_NEAR(rope_attention_factor(spec->ropes[r]),
                  ropes[r].at("attention_factor").to_number<double>(), 1e-6)
          << text;
      const std::vector<double> got = rope_frequencies(spec->ropes[r], length);
      const json::array& wanted = ropes[r].at("frequencies").as_array();
      ASSERT_EQ(got.size(), wanted.size()) << text;
      for (size_t i = 0; i < got.size(); ++i, ++compared) {
        const auto frequency = wanted[i].to_number<double>();
        ASSERT_NEAR(got[i], frequency, 3e-6 * frequency) << "pair " << i << " of " << text;
      }
    }
  }
  EXPECT_GT(compared, 1000);
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 60);
}

void expect_verdicts(const std::string& family, const HfConfig& config) {
  for (const std::string& key : config.unread_keys()) {
    EXPECT_TRUE(has_verdict(key)) << family << ": " << key;
  }
}

TEST(GoldenConfigs, NoKeyIsLeftUnreadWithoutAVerdict) {
  for (const auto& [family, defaults] : golden_configs().at("defaults").as_object()) {
    const HfConfig config = config_of(defaults);
    const auto spec = read_config(config);
    EXPECT_TRUE(spec) << std::string(family) << ": " << spec.error().to_string();
    expect_verdicts(family, config);
    if (config.has("text_config")) expect_verdicts(family, config.object("text_config").value());
  }
}

std::string described(const Attention& a) {
  const auto* const softmax = std::get_if<Softmax>(&a.weighting);
  return fmt::format("attention {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", a.num_heads,
                     a.num_kv_heads, a.head_dim, a.scale, a.window, a.rope,
                     softmax == nullptr ? -1 : softmax->softcap, a.qkv_bias, a.out_bias, a.out_gate,
                     static_cast<int>(a.qk_norm), a.neighbours, a.v_is_k, a.kv_layer, a.out_factor);
}

std::string described(const LatentAttention& a) {
  return fmt::format("latent {} {} {} {} {} {} {} {} {} {} {} {} {}", a.shape.num_heads,
                     a.shape.nope_dim, a.shape.rope_dim, a.shape.value_dim, a.shape.rank,
                     a.query_rank, a.scale, a.neighbours, a.bias, a.latent_eps, a.rope, a.sinks,
                     a.out_gate);
}

std::string described(const GatedDelta& m) {
  return fmt::format("delta {} {} {} {} {} {} {}", m.key_heads, m.value_heads, m.key_dim,
                     m.value_dim, m.conv_length, m.gate_rank, m.decay_floor);
}

std::string described(const ShortConv& m) {
  return fmt::format("conv {} {} {}", m.width, m.length, m.bias);
}

std::string described(const StateSpace& m) {
  return fmt::format("space {} {} {} {} {} {} {} {} {} {} {} {} {}", m.heads, m.groups, m.head_dim,
                     m.state_dim, m.conv_length, m.conv_bias, m.bias, m.step_low, m.step_high,
                     m.norm_runs, m.gates_first, fmt::join(m.in_factors, ","), m.out_factor);
}

std::string described(const Parallel& m) {
  return described(m.attention) + described(m.space);
}
std::string described(const CustomMixer&) {
  return "custom";
}
std::string described(const NoMixer&) {
  return "none";
}
std::string described(const NoMlp&) {
  return "none";
}

std::string described(const GatedMlp& m) {
  return fmt::format("mlp {} {} {} {} {}", m.width, static_cast<int>(m.activation), m.bias,
                     m.gate_factor, m.out_factor);
}

std::string described(const Experts& e) {
  const Router& r = e.router;
  return fmt::format("experts {} {} {} {} {} {} {} router {} {} {} {} {} {} {}", e.count, e.chosen,
                     e.width, static_cast<int>(e.activation), e.bias, e.shared_width, e.shared_gate,
                     static_cast<int>(r.kind), r.renormalises, r.scale, r.groups, r.kept_groups,
                     r.correction, r.bias);
}

// All of a spec that configurations say.
std::string described(const ModelSpec& spec) {
  std::string out = fmt::format("{} {} {} {} {} {} {} {} {} {} {}", spec.hidden, spec.vocab,
                                spec.max_positions, spec.norm_eps, spec.embed_scale,
                                spec.branch_scale, spec.logit_scale, spec.final_softcap,
                                spec.tied_head, spec.query_growth.slope, spec.query_growth.period);
  for (const RopeSpec& rope : spec.ropes) {
    out += fmt::format(" [{} {}]", rope_attention_factor(rope),
                       fmt::join(rope_frequencies(rope, spec.max_positions), " "));
  }
  for (const LayerSpec& layer : spec.layers) {
    out += "\n" + std::visit([](const auto& mixer) { return described(mixer); }, layer.mixer);
    out += " " + std::visit([](const auto& mlp) { return described(mlp); }, layer.mlp);
  }
  return out;
}

// A class may say nothing of a key that has no sense without a value (OPEN of configs.py).
bool is_open(std::string_view family, std::string_view key) {
  constexpr std::pair<std::string_view, std::string_view> kOpen[] = {
      {"glm4_moe", "head_dim"},
      {"deepseek_v2", "num_experts_per_tok"},
      {"granitemoehybrid", "layer_types"},
      {"bamba", "attn_layer_indices"}};
  return std::ranges::find(kOpen, std::pair(family, key)) != std::end(kOpen);
}

// A configuration may leave out what its class says anyway: each key, and all of them at once.
TEST(GoldenConfigs, AMissingKeyIsTheDefaultOfTheClass) {
  for (const auto& [family, defaults] : golden_configs().at("defaults").as_object()) {
    const auto whole = read_config(config_of(defaults));
    ASSERT_TRUE(whole) << std::string(family) << ": " << whole.error().to_string();
    const auto without = [&](const std::vector<std::string>& keys) {
      json::object changed = defaults.as_object();
      json::value* const text = changed.if_contains("text_config");
      for (const std::string& key : keys) {
        (text == nullptr ? changed : text->as_object()).erase(key);
      }
      return read_config(config_of(changed));
    };
    std::vector<std::string> keys;
    const json::value* const text = defaults.as_object().if_contains("text_config");
    for (const auto& [key, value] : (text == nullptr ? defaults : *text).as_object()) {
      // Those of other sizes have a number there (tools/golden/configs.py).
      if (key == "architectures" || key == "hidden_size_per_layer_input") continue;
      if (is_open(family, key)) continue;
      keys.emplace_back(key);
      const auto spec = without({keys.back()});
      ASSERT_TRUE(spec) << std::string(family) << ": " << spec.error().to_string();
      EXPECT_EQ(described(*spec), described(*whole)) << std::string(family) << ": " << keys.back();
    }
    const auto spec = without(keys);
    ASSERT_TRUE(spec) << std::string(family) << ": " << spec.error().to_string();
    EXPECT_EQ(described(*spec), described(*whole)) << std::string(family);
  }
}

// What stands under a name that a class takes for one of its keys is read as that key, or refused.
TEST(GoldenConfigs, KeysHaveTheirOtherNames) {
  int64_t taken = 0;
  for (const auto& [family, aliases] : golden_configs().at("aliases").as_object()) {
    for (const json::value& alias : aliases.as_array()) {
      const json::string& other = alias.at(0).as_string();
      const json::string& key = alias.at(1).as_string();
      json::object renamed = golden_configs().at("defaults").at(family).as_object();
      renamed.erase(key);
      json::object plain = renamed;
      plain[key] = alias.at(2);
      renamed[other] = alias.at(2);
      const auto expected = read_config(config_of(plain));
      const auto spec = read_config(config_of(renamed));
      const std::string what = fmt::format("{}: {}", std::string(family), std::string(other));
      ASSERT_TRUE(expected) << what << ": " << expected.error().to_string();
      if (!spec) {
        EXPECT_NE(spec.error().to_string().find(std::string(other)), std::string::npos)
            << what << ": " << spec.error().to_string();
        continue;
      }
      EXPECT_EQ(described(*spec), described(*expected)) << what;
      ++taken;
    }
  }
  EXPECT_GE(taken, 20);
}

// Values of a key that differ from `value`.
std::vector<json::value> others_of(const json::value& value) {
  if (value.is_bool()) return {!value.as_bool()};
  if (value.is_int64()) return {value.as_int64() * 2, value.as_int64() + 1};
  if (value.is_double()) return {value.as_double() * 2};
  if (value.is_string()) return {value, "gelu"};
  return {value};
}

// Keys of other classes change nothing where a family's own does not know them, or are refused by
// name; but transformers reads some of all families, and tensors say whether there are biases.
TEST(GoldenConfigs, KeysOfOtherClassesChangeNothing) {
  constexpr std::string_view kOfAll[] = {"head_dim",       "original_max_position_embeddings",
                                         "attention_bias", "mlp_bias",
                                         "architectures",  "model_type",
                                         "text_config",    "layer_types"};
  const json::object& families = golden_configs().at("defaults").as_object();
  const auto text_of = [](const json::value& config) {
    const json::value* const text = config.as_object().if_contains("text_config");
    return (text == nullptr ? config : *text).as_object();
  };
  std::map<std::string, json::value> pool;
  for (const auto& [family, defaults] : families) {
    for (const auto& [key, value] : text_of(defaults)) {
      if (!value.is_null()) pool.emplace(key, value);
    }
  }
  for (const auto& [family, defaults] : families) {
    const std::string before = described(read_config(config_of(defaults)).value());
    const json::object own = text_of(defaults);
    const json::value* const aliases =
        golden_configs().at("aliases").as_object().if_contains(family);
    const std::string other_names = aliases == nullptr ? "" : json::serialize(*aliases);
    for (const auto& [key, value] : pool) {
      if (own.contains(key) || std::ranges::find(kOfAll, key) != std::end(kOfAll)) continue;
      // Of the text's head, where older files say it
      // (TheHeadOfQwenVlIsTiedWhereEitherConfigSaysSo).
      if (key == "tie_word_embeddings" && family.starts_with("qwen2")) continue;
      if (other_names.find(fmt::format("\"{}\"", key)) != std::string::npos) continue;
      for (const json::value& foreign : others_of(value)) {
        json::object changed = defaults.as_object();
        json::value* const text = changed.if_contains("text_config");
        (text == nullptr ? changed : text->as_object())[key] = foreign;
        const auto spec = read_config(config_of(changed));
        const std::string what =
            fmt::format("{}: {} {}", std::string(family), key, json::serialize(foreign));
        if (!spec) continue;  // told, if not always where it stands
        EXPECT_EQ(described(*spec), before) << what;
      }
    }
  }
}

// Where a class knows the key, all values but the neutral one are refused when it is not read.
TEST(GoldenConfigs, UnreadMechanismsAreRefused) {
  for (const auto& [family, defaults] : golden_configs().at("defaults").as_object()) {
    for (const auto& [key, value] : {std::pair<const char*, json::value>{"is_causal", false},
                                     {"num_experts", 8},
                                     {"residual_multiplier", 0.22},
                                     {"no_rope_layers", json::array{0, 1}}}) {
      // Granite's multipliers are its own.
      if (key == std::string_view("residual_multiplier") && family.starts_with("granite")) continue;
      json::object changed = defaults.as_object();
      json::value* const text = changed.if_contains("text_config");
      json::object& part = text == nullptr ? changed : text->as_object();
      if (key == std::string_view("num_experts") &&
          (part.contains("num_experts_per_tok") || part.contains("num_experts_per_token"))) {
        continue;  // it has some
      }
      part[key] = value;
      const auto spec = read_config(config_of(changed));
      ASSERT_FALSE(spec) << std::string(family) << ": " << key;
      EXPECT_TRUE(spec.error().where.ends_with(key)) << spec.error().to_string();
    }
  }
}

}  // namespace
}  // namespace rudder::model
