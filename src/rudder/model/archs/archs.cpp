#include "rudder/model/archs/archs.h"

#include <fmt/format.h>

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

Result<const Architecture*> find_architecture(std::string_view name,
                                              std::span<const Architecture> among) {
  std::string known;
  for (const Architecture& architecture : among) {
    if (architecture.name == name) return &architecture;
    if (!architecture.base_name.empty() && architecture.base_name == name) return &architecture;
    if (!known.empty()) known += ", ";
    known += architecture.name;
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
  const Reach reach = reach_of(spec.ropes, spec.max_positions);
  spec.max_positions = reach.usual;
  spec.longest_positions = reach.longest;
  spec.architecture = (*architecture)->name;
  return spec;
}

}  // namespace rudder::model
