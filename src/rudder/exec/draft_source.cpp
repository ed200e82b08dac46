#include "rudder/exec/draft_source.h"

#include <fmt/format.h>

#include "rudder/base/check.h"

namespace rudder::exec {

Result<void> DraftSource::check_device(ops::Ops& /*ops*/, const model::Stage& /*stage*/) const {
  return {};
}

Result<void> DraftSource::check_model(const model::ModelSpec& /*model*/,
                                      const step::KvGroups& /*groups*/,
                                      int32_t /*max_seq_len*/) const {
  return {};
}

Result<void> DraftSource::join(std::vector<model::Stage>& /*stages*/) const {
  return {};
}

Result<int64_t> DraftSource::block_bytes(const ops::KvFormat& /*kv*/, tensor::DType /*act*/,
                                         int32_t /*block_size*/) const {
  return 0;
}

Result<Setup> DraftSource::enqueue(const DeviceStep& /*step*/, std::span<GuessAsk> /*asks*/) {
  RUDDER_CHECK(false, "it guesses as a part of the step, or behind tokens that are known");
  return Setup{};
}

Result<Setup> DraftSource::run(std::span<GuessAsk> /*asks*/) {
  RUDDER_CHECK(false, "it guesses as a part of the step");
  return Setup{};
}

void keep_tokens(ops::Ops& ops, const DeviceStep& step) {
  if (!step.look_up.empty()) ops.draft_ops()->look_up(step.look_up);
}

bool guesses_as(const DraftSource& source, const step::DraftCaps& caps) {
  step::DraftCaps said = {
      .max_draft = caps.max_draft, .takes_trees = caps.takes_trees, .guesses = true};
  source.describe(said);
  return said == caps;
}

tl::unexpected<Error> of_draft(const Error& error) {
  return fail(error.code, error.to_string(), kDraftWhere);
}

Result<void> check_runs_heads(ops::Ops& ops) {
  if (ops.draft_ops() != nullptr) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("the backend {} runs no draft heads yet", ops.name()),
              "speculative-config.method");
}

Result<void> check_positions(const model::ModelSpec& draft, int32_t max_seq_len) {
  if (draft.max_positions >= max_seq_len) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("it was made for {} positions, sequences have up to {}: see "
                          "--max-model-len",
                          draft.max_positions, max_seq_len),
              kDraftWhere);
}

}  // namespace rudder::exec
