// The table of architectures: how each config.json becomes a ModelSpec, and what its tensors are
// called. Adding one: a file of a few lines over llama_like.h, a row in archs.cpp, a golden
// checkpoint (tools/golden). Used by the loader and make_model; constant data.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {

// variant<A, B>, variant<C> to tuple<A::Names, B::Names, C::Names>.
template <typename Mixers, typename Mlps>
struct NamesOf;
template <typename... AMixer, typename... AnMlp>
struct NamesOf<std::variant<AMixer...>, std::variant<AnMlp...>> {
  using Type = std::tuple<typename AMixer::Names..., typename AnMlp::Names...>;
};

// Names of a model's tensors. Those of a layer stand behind "<prefix>layers.<i>."; ".weight" and
// ".bias" follow those of modules. Which of them are there, the spec says.
struct WeightNames {
  std::string prefix = "model.";
  std::string embedding = "model.embed_tokens.weight";
  std::string final_norm = "model.norm";  // of the module
  std::string_view head = "lm_head";      // of the module
  std::string_view mixer_pre_norm = "input_layernorm";
  std::string_view mixer_post_norm = "";
  std::string_view mlp_pre_norm = "post_attention_layernorm";
  std::string_view mlp_post_norm = "";
  std::string_view layer_scale = "layer_scalar";
  LayerEmbedding::Names layer_embedding;
  HyperConnections::Names hyper;
  NamesOf<Mixer, Mlp>::Type branches;  // by of<Attention>(), of<GatedMlp>(), ...
  // Added to every norm weight at load: checkpoints that store w and multiply by 1 + w.
  float norm_offset = 0;
  // Tensors with these prefixes belong to another modality and are not read.
  std::vector<std::string_view> ignored_prefixes = {};
  // Modules of layers, behind their prefixes, that the served forward pass does without.
  std::vector<std::string_view> ignored_modules = {};

  template <typename Branch>
  typename Branch::Names& of() {
    return std::get<typename Branch::Names>(branches);
  }
  template <typename Branch>
  const typename Branch::Names& of() const {
    return std::get<typename Branch::Names>(branches);
  }
};

struct Architecture {
  std::string_view name;        // config.json: architectures[0]
  std::string_view model_type;  // config.json: model_type
  Result<ModelSpec> (*read_spec)(const weights::HfConfig& config) = nullptr;
  WeightNames names;
  std::string_view text_model_type = "";  // of text_config, where the architecture has one
  std::string_view base_name = "";        // config.json: architectures[0] of one without a head
  // Model types of other architectures, one of which its text_config is of.
  std::span<const std::string_view> wraps = {};
  bool may_be_flat = false;  // the keys of the text may be beside the others, without text_config

  bool has_text_config() const { return !text_model_type.empty() || !wraps.empty(); }
};

std::span<const Architecture> architectures();
// Of layers that guess for a model (assistant.h): they are no models.
std::span<const Architecture> assistants();
// kUnsupported, naming those there are, for an unknown name.
Result<const Architecture*> find_architecture(
    std::string_view name, std::span<const Architecture> among = architectures());

// The spec of a config.json by the architecture that it names (ModelSpec.architecture). Refuses by
// its key what contradicts that architecture (check_config.h).
Result<ModelSpec> read_config(const weights::HfConfig& config,
                              std::span<const Architecture> among = architectures());

Architecture llama();
Architecture mistral();
Architecture qwen2();
Architecture qwen3();
Architecture gemma2();
Architecture gemma3();
Architecture gemma3_multimodal();
Architecture gemma4();
Architecture gemma4_multimodal();
Architecture gemma4_unified();
Architecture gemma4_assistant();
Architecture gemma4_unified_assistant();
Architecture phi3();
Architecture olmo2();
Architecture asynct();
Architecture mixtral();
Architecture qwen3_moe();
Architecture olmoe();
Architecture gpt_oss();
Architecture glm4_moe();
Architecture qwen3_next();
Architecture qwen3_5();
Architecture qwen3_5_moe();
Architecture qwen3_5_multimodal();
Architecture qwen3_5_moe_multimodal();
Architecture lfm2();
Architecture lfm2_moe();
Architecture granite_hybrid();
Architecture bamba();
Architecture falcon_h1();
Architecture nemotron_h();
Architecture deepseek_v2();
Architecture deepseek_v3();
Architecture glm4_moe_lite();
Architecture mistral4();
Architecture kimi_linear();
Architecture glm5_next();
Architecture hy_v4();
Architecture gemma();
Architecture ministral();
Architecture ministral3();
Architecture smollm3();
Architecture olmo3();
Architecture exaone4();
Architecture granite();
Architecture granite_swa();
Architecture glm();
Architecture glm4();
Architecture seed_oss();
Architecture ernie4_5();
Architecture helium();
Architecture hunyuan();
Architecture cwm();
Architecture mistral3();
Architecture llava();
Architecture internvl();
Architecture qwen2_vl();
Architecture qwen2_5_vl();
Architecture qwen3_vl();

}  // namespace rudder::model
