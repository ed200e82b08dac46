// Checkpoints of a text model of another architecture with an image encoder in front of it: Mistral
// Small 3.1 and later, Ministral 3, LLaVA, InternVL 3. "text_config" says which; what the encoder
// and the projection behind it hold is passed over.
#include <fmt/format.h>

#include <algorithm>

#include "rudder/model/archs/archs.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

// Of Architecture.wraps: each has the default names of tensors.
constexpr std::string_view kOfMistral3[] = {"mistral", "ministral3", "mistral4"};
constexpr std::string_view kOfLlava[] = {"llama", "mistral", "qwen2"};
constexpr std::string_view kOfInternVl[] = {"qwen2", "qwen3", "llama"};

// By its own architecture. Where both are there, the whole config says whether the head is tied.
Result<ModelSpec> read_wrapped(const HfConfig& config, std::string_view usual, bool tied_head) {
  constexpr std::string_view kTied = "tie_word_embeddings";
  RUDDER_TRY(const HfConfig text, config.object("text_config"));
  RUDDER_TRY(const std::string type, text.string_or("model_type", std::string(usual)));
  const auto own = std::ranges::find_if(architectures(), [&](const Architecture& one) {
    return one.model_type == type && !one.has_text_config();
  });
  if (own == architectures().end()) {
    return fail(ErrorCode::kUnsupported, fmt::format("the text model '{}' is not served", type),
                text.where("model_type"));
  }
  RUDDER_TRY(ModelSpec spec, own->read_spec(text));
  const HfConfig& says = config.has(kTied) ? config : text;
  RUDDER_TRY(spec.tied_head, says.boolean_or(kTied, tied_head));
  return spec;
}

Result<ModelSpec> read_mistral3(const HfConfig& config) {
  return read_wrapped(config, kOfMistral3[0], true);
}

Result<ModelSpec> read_llava(const HfConfig& config) {
  return read_wrapped(config, kOfLlava[0], false);
}

Result<ModelSpec> read_internvl(const HfConfig& config) {
  return read_wrapped(config, kOfInternVl[0], true);
}

WeightNames wrapped_names() {
  WeightNames names;
  names.prefix = "model.language_model.";
  names.embedding = "model.language_model.embed_tokens.weight";
  names.final_norm = "model.language_model.norm";
  names.ignored_prefixes = {"vision_tower.",       "multi_modal_projector.",
                            "model.vision_tower.", "model.multi_modal_projector.",
                            "model.image_newline", "image_newline"};
  return names;
}

Architecture wrapped(std::string_view name, std::string_view model_type,
                     Result<ModelSpec> (*read_spec)(const HfConfig& config),
                     std::span<const std::string_view> wraps) {
  return {.name = name,
          .model_type = model_type,
          .read_spec = read_spec,
          .names = wrapped_names(),
          .wraps = wraps};
}

}  // namespace

Architecture mistral3() {
  return wrapped("Mistral3ForConditionalGeneration", "mistral3", read_mistral3, kOfMistral3);
}

Architecture llava() {
  return wrapped("LlavaForConditionalGeneration", "llava", read_llava, kOfLlava);
}

Architecture internvl() {
  return wrapped("InternVLForConditionalGeneration", "internvl", read_internvl, kOfInternVl);
}

}  // namespace rudder::model
