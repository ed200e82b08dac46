#include "rudder/exec/draft_sources.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/exec/assistant_proposer.h"
#include "rudder/exec/head_proposer.h"
#include "rudder/exec/look_up_proposer.h"
#include "rudder/exec/medusa_proposer.h"
#include "rudder/exec/model_proposer.h"
#include "rudder/exec/mtp_proposer.h"

namespace rudder::exec {
namespace {

using Source = Result<std::unique_ptr<DraftSource>>;

struct Reader {
  step::DraftMethod method;
  Source (*read)(const StepLimits& limits, const model::ModelSpec& target);
};

constexpr Reader kReaders[] = {{step::DraftMethod::kDraftModel, ModelProposer::read},
                               {step::DraftMethod::kEagle, HeadProposer::read},
                               {step::DraftMethod::kEagle3, HeadProposer::read},
                               {step::DraftMethod::kMedusa, MedusaProposer::read},
                               {step::DraftMethod::kAssistant, AssistantProposer::read},
                               {step::DraftMethod::kMtp, MtpProposer::read}};

}  // namespace

Source read_source(const StepLimits& limits, const model::ModelSpec& target) {
  if (limits.look_up.max_n > 0) return LookUpProposer::of(limits.look_up);
  if (limits.draft_model == nullptr) return nullptr;
  if (limits.make_decoder) {
    return fail(ErrorCode::kUnsupported,
                "models and heads that guess run on a CPU and on GPUs alone",
                "speculative-config.model");
  }
  const auto* const reader = std::ranges::find(kReaders, limits.draft_method, &Reader::method);
  RUDDER_CHECK(reader != std::end(kReaders));
  return reader->read(limits, target);
}

Result<void> shard_source(DraftSource& source, ops::Rank rank) {
  const Result<void> sharded = source.shard(rank);
  if (sharded) return {};
  return fail(sharded.error().code, "speculative-config.model: " + sharded.error().message,
              sharded.error().where);
}

}  // namespace rudder::exec
