#include "rudder/exec/draft_loader.h"

#include <fmt/format.h>

#include <utility>

#include "rudder/model/loader.h"
#include "rudder/model/shard.h"

namespace rudder::exec {
namespace {

tl::unexpected<Error> of_draft(const Error& error) {
  return fail(error.code, error.to_string(), "speculative-config.model");
}

}  // namespace

Result<DraftModel> read_draft(const StepLimits& limits, const model::ModelSpec& target) {
  DraftModel draft;
  if (limits.draft_kind == DraftKind::kModel) {
    Result<model::ModelSpec> spec = model::read_spec(*limits.draft_model);
    if (!spec) return of_draft(spec.error());
    draft.spec = *std::move(spec);
    draft.tree = limits.draft_tree;
    if (draft.tree.tree.empty() || model::runs_trees(draft.spec)) return draft;
    return fail(ErrorCode::kUnsupported,
                "a layer of the draft model has a window or a gate: it guesses chains alone",
                "speculative-config.speculative_token_tree");
  }
  if (limits.draft_kind == DraftKind::kMedusa) {
    Result<model::MedusaSpec> spec = model::read_medusa(*limits.draft_model);
    if (!spec) return of_draft(spec.error());
    const int32_t depth = limits.draft_tree.tree.depth();
    if (depth > spec->num_heads) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the tree is {} deep, there are {} heads, one a token", depth,
                              spec->num_heads),
                  "speculative-config.speculative_token_tree");
    }
    RUDDER_TRY_VOID(model::fit_medusa(target, depth > 0 ? depth : limits.max_draft, *spec));
    draft.medusa.emplace().spec = *spec;
    draft.medusa->tree = limits.draft_tree;
    return draft;
  }
  if (limits.draft_kind == DraftKind::kAssistant) {
    Result<model::AssistantSpec> spec = model::read_assistant(*limits.draft_model);
    if (!spec) return of_draft(spec.error());
    if (!limits.draft_tree.tree.empty()) {
      return fail(ErrorCode::kUnsupported, "an assistant guesses chains alone",
                  "speculative-config.speculative_token_tree");
    }
    RUDDER_TRY_VOID(model::fit_assistant(target, *spec));
    draft.assistant.emplace().spec = *std::move(spec);
    return draft;
  }
  Result<model::DraftHeadSpec> spec = model::read_draft_head(
      *limits.draft_model, limits.draft_kind == DraftKind::kEagle ? model::HeadInput::kProduct
                                                                  : model::HeadInput::kSideBySide);
  if (!spec) return of_draft(spec.error());
  RUDDER_TRY_VOID(model::fit_draft_head(target, *spec));
  draft.spec = spec->layer;
  draft.head.emplace().spec = *std::move(spec);
  draft.tree = limits.draft_tree;
  return draft;
}

Result<void> shard_draft(DraftModel& draft, ops::Rank rank) {
  const auto shard = [&]() -> Result<void> {
    if (draft.medusa) return model::check_medusa_shares(draft.medusa->spec, rank);
    if (draft.assistant) {
      RUDDER_TRY(draft.assistant->spec, model::shard_assistant(draft.assistant->spec, rank));
      return {};
    }
    if (!draft.head) {
      RUDDER_TRY(draft.spec, model::shard_spec(draft.spec, rank));
      return {};
    }
    RUDDER_TRY(draft.head->spec, model::shard_draft_head(draft.head->spec, rank));
    draft.spec = draft.head->spec.layer;
    return {};
  };
  const Result<void> sharded = shard();
  if (sharded) return {};
  return fail(sharded.error().code, "speculative-config.model: " + sharded.error().message,
              sharded.error().where);
}

Result<DraftModel> load_draft(const StepLimits& limits, const model::ModelSpec& target,
                              ops::Ops& ops) {
  RUDDER_TRY(DraftModel draft, read_draft(limits, target));
  if (draft.medusa) {
    Result<model::MedusaWeights> weights =
        model::load_medusa(*limits.draft_model, draft.medusa->spec, ops);
    if (!weights) return of_draft(weights.error());
    draft.medusa->weights = *std::move(weights);
    return draft;
  }
  if (draft.assistant) {
    Result<model::AssistantWeights> weights =
        model::load_assistant(*limits.draft_model, draft.assistant->spec, ops);
    if (!weights) return of_draft(weights.error());
    draft.assistant->weights = *std::move(weights);
  } else if (draft.head) {
    Result<model::DraftHeadWeights> weights =
        model::load_draft_head(*limits.draft_model, draft.head->spec, ops);
    if (!weights) return of_draft(weights.error());
    draft.head->weights = *std::move(weights);
  } else {
    RUDDER_TRY(draft.weights, model::load_weights(*limits.draft_model, draft.spec, ops, {}));
  }
  RUDDER_TRY_VOID(shard_draft(draft, ops::rank_of(ops)));
  return draft;
}

Result<int64_t> draft_weight_bytes(const DraftModel& draft, const StepLimits& limits,
                                   ops::Ops& ops) {
  const ops::Rank rank = ops::rank_of(ops);
  const model::FormatOf format_of = model::stored_formats(*limits.draft_model, ops);
  if (draft.medusa) return model::medusa_bytes(draft.medusa->spec, format_of, rank);
  if (draft.assistant) return model::assistant_bytes(draft.assistant->spec, format_of, rank);
  if (draft.head) return model::draft_head_bytes(draft.head->spec, format_of, rank);
  RUDDER_TRY(const model::WeightBudget weights,
             model::budget_weights(*limits.draft_model, draft.spec, ops, rank));
  return weights.bytes;
}

}  // namespace rudder::exec
