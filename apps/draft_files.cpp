#include "draft_files.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "model_folder.h"
#include "model_session.h"
#include "token_files.h"

namespace rudder::apps {
namespace {

// As published Medusa heads name their weights.
constexpr std::string_view kMedusaFile = "medusa_lm_head.safetensors";

tl::unexpected<Error> bad_draft(ErrorCode code, std::string message) {
  return fail(code, std::move(message), "speculative-config.model");
}

// What a model reads as one token must be that token to the other.
Result<void> check_tokens(const text::Tokenizer& draft, const text::Tokenizer& model) {
  if (draft.vocab_size() != model.vocab_size()) {
    return bad_draft(ErrorCode::kInvalidArgument,
                     fmt::format("its tokenizer.json has {} tokens, the model's {}",
                                 draft.vocab_size(), model.vocab_size()));
  }
  for (int32_t id = 0; id < model.vocab_size(); ++id) {
    if (draft.id_to_token(id) == model.id_to_token(id)) continue;
    return bad_draft(ErrorCode::kInvalidArgument,
                     fmt::format("token {} is '{}' in its tokenizer.json, '{}' in the model's", id,
                                 draft.id_to_token(id), model.id_to_token(id)));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const weights::Checkpoint>> open_draft_files(
    const draft::Speculation& speculation, const ModelFiles& model) {
  if (speculation.method == draft::Method::kMtp) return model.checkpoint;
  if (!draft::has_model(speculation.method)) {
    return std::shared_ptr<const weights::Checkpoint>();
  }
  const bool is_medusa = speculation.method == draft::Method::kMedusa;
  const auto folder = find_model(speculation.model, "");
  if (!folder) return bad_draft(folder.error().code, folder.error().message);
  const auto checkpoint = weights::Checkpoint::open_folder(*folder, is_medusa ? kMedusaFile : "");
  if (!checkpoint) return bad_draft(checkpoint.error().code, checkpoint.error().to_string());
  if (speculation.method != draft::Method::kDraftModel) {
    return std::shared_ptr<const weights::Checkpoint>(*checkpoint);
  }
  const auto json = (*checkpoint)->read_text("tokenizer.json");
  if (!json) return bad_draft(json.error().code, json.error().to_string());
  const auto tokens = read_token_files(**checkpoint);
  if (!tokens) return bad_draft(tokens.error().code, tokens.error().to_string());
  const auto draft = text::Tokenizer::from_files(*json, *tokens);
  if (!draft) return bad_draft(draft.error().code, draft.error().to_string());
  RUDDER_TRY_VOID(check_tokens(**draft, *model.tokenizer));
  return std::shared_ptr<const weights::Checkpoint>(*checkpoint);
}

}  // namespace rudder::apps
