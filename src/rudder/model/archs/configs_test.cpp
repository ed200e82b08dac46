// What Hugging Face transformers makes of configurations (tools/golden/configs.py): the same ropes,
// and no key of its configuration classes that is left unread without a verdict.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

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

// All of a spec that configurations say.
std::string described(const ModelSpec& spec) {
  std::string out =
      fmt::format("{} {} {} {} {} {} {}", spec.hidden, spec.vocab, spec.max_positions,
                  spec.norm_eps, spec.embed_scale, spec.final_softcap, spec.tied_head);
  for (const RopeSpec& rope : spec.ropes) {
    out += fmt::format(" [{} {}]", rope_attention_factor(rope),
                       fmt::join(rope_frequencies(rope, spec.max_positions), " "));
  }
  for (const LayerSpec& layer : spec.layers) {
    const Attention& a = *attention_of(layer);
    out += fmt::format("\n{} {} {} {} {} {} {} {} {} {}", a.num_heads, a.num_kv_heads, a.head_dim,
                       a.scale, a.window, a.rope, softmax_of(layer)->softcap, a.qkv_bias,
                       static_cast<int>(a.qk_norm), a.v_is_k);
    if (const GatedMlp* const mlp = gated_mlp_of(layer)) {
      out += fmt::format(" {} {} {}", mlp->width, static_cast<int>(mlp->activation), mlp->bias);
    } else {
      const Experts& experts = *experts_of(layer);
      const Router& router = experts.router;
      out += fmt::format(" {} {} {} {} {} {}", experts.count, experts.chosen, experts.width,
                         experts.shared_width, static_cast<int>(experts.activation), experts.bias);
      out += fmt::format(" {} {} {} {} {}", static_cast<int>(router.kind), router.renormalises,
                         router.scale, router.groups, router.kept_groups);
    }
  }
  return out;
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
      if (key == std::string_view("num_experts") && changed.contains("num_experts_per_tok")) {
        continue;  // it has some
      }
      json::value* const text = changed.if_contains("text_config");
      (text == nullptr ? changed : text->as_object())[key] = value;
      const auto spec = read_config(config_of(changed));
      ASSERT_FALSE(spec) << std::string(family) << ": " << key;
      EXPECT_TRUE(spec.error().where.ends_with(key)) << spec.error().to_string();
    }
  }
}

}  // namespace
}  // namespace rudder::model
