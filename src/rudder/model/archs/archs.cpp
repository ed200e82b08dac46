#include "rudder/model/archs/archs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "rudder/model/archs/check_config.h"
#include "rudder/model/rope.h"

namespace rudder::model {

std::span<const Architecture> architectures() {
  static const std::array kTable = {llama(),
                                    mistral(),
                                    qwen2(),
                                    qwen3(),
                                    gemma2(),
                                    gemma3(),
                                    phi3(),
                                    gemma3_multimodal(),
                                    gemma4(),
                                    gemma4_multimodal(),
                                    gemma4_unified(),
                                    olmo2(),
                                    asynct(),
                                    mixtral(),
                                    qwen3_moe(),
                                    olmoe(),
                                    gpt_oss(),
                                    glm4_moe(),
                                    qwen3_next(),
                                    qwen3_5(),
                                    qwen3_5_moe(),
                                    qwen3_5_multimodal(),
                                    qwen3_5_moe_multimodal(),
                                    lfm2(),
                                    lfm2_moe(),
                                    granite_hybrid(),
                                    bamba(),
                                    falcon_h1(),
                                    nemotron_h(),
                                    deepseek_v2(),
                                    deepseek_v3(),
                                    glm4_moe_lite(),
                                    mistral4(),
                                    kimi_linear(),
                                    glm5_next(),
                                    hy_v4(),
                                    gemma(),
                                    ministral(),
                                    ministral3(),
                                    smollm3(),
                                    olmo3(),
                                    exaone4(),
                                    granite(),
                                    granite_swa(),
                                    glm(),
                                    glm4(),
                                    seed_oss(),
                                    ernie4_5(),
                                    helium(),
                                    hunyuan(),
                                    cwm(),
                                    mistral3(),
                                    llava(),
                                    internvl(),
                                    qwen2_vl(),
                                    qwen2_5_vl(),
                                    qwen3_vl()};
  return kTable;
}

std::span<const Architecture> assistants() {
  static const std::array kTable = {gemma4_assistant(), gemma4_unified_assistant()};
  return kTable;
}

namespace {

// Published architectures with mathematics that is not here (docs/adr/0132-deepseek-v4.md).
struct NotServed {
  std::string_view name;
  std::string_view why;
};
constexpr NotServed kNotServed[] = {
    {"DeepseekV4ForCausalLM",
     "compressed keys and values, an indexer that chooses them, and experts by token id"},
    {"DeepseekV41ForCausalLM",
     "compressed keys and values, an indexer that chooses them, and streams that are read by "
     "numbers of the branch before"},
    {"Qwen4ExpForConditionalGeneration", "gated streams and tables of n-grams"}};

}  // namespace

Result<const Architecture*> find_architecture(std::string_view name,
                                              std::span<const Architecture> among) {
  std::string known;
  for (const Architecture& architecture : among) {
    if (architecture.name == name) return &architecture;
    if (!architecture.base_name.empty() && architecture.base_name == name) return &architecture;
    if (!known.empty()) known += ", ";
    known += architecture.name;
  }
  const auto* const refused = std::ranges::find(kNotServed, name, &NotServed::name);
  if (refused != std::end(kNotServed)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the architecture '{}' is not served: it has {}", name, refused->why));
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("the architecture '{}' is not one of {}", name, known));
}

Result<ModelSpec> read_config(const weights::HfConfig& config,
                              std::span<const Architecture> among) {
  RUDDER_TRY(const std::vector<std::string> names, config.strings("architectures"));
  if (names.size() != 1) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("'architectures' names {} architectures, not one", names.size()),
                config.where("architectures"));
  }
  auto architecture = find_architecture(names[0], among);
  if (!architecture) {
    Error error = architecture.error();
    error.where = config.where("architectures");
    return tl::unexpected(std::move(error));
  }
  RUDDER_TRY_VOID(check_names(**architecture, config));
  RUDDER_TRY(ModelSpec spec, (*architecture)->read_spec(config));
  RUDDER_TRY_VOID(check_unread_keys(**architecture, config));
  const auto attends = [](const LayerSpec& layer) {
    return attention_of(layer) != nullptr || latent_of(layer) != nullptr;
  };
  if (std::ranges::none_of(spec.layers, attends)) {
    return fail(ErrorCode::kUnsupported, "a model of which no layer attends is not supported",
                config.where("architectures"));
  }
  const Reach reach = reach_of(spec.ropes, spec.max_positions);
  spec.max_positions = reach.usual;
  spec.longest_positions = reach.longest;
  spec.architecture = (*architecture)->name;
  return spec;
}

}  // namespace rudder::model
