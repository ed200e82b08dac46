// DraftMethod: how drafts are guessed. The command line names methods (draft/settings.h), and the
// executor has a proposer for some of them (exec/draft_sources.h). No capacity, plan or result
// knows of it.
#pragma once

#include <cstdint>

namespace rudder::step {

// Those of weights are last: the executor guesses, by kDraftModel or one behind it.
enum class DraftMethod : uint8_t {
  kNone,
  kNgram,
  kSuffix,
  kDraftModel,
  kEagle,
  kEagle3,
  kMedusa,
  kAssistant,  // "mtp" with a folder
  kMtp,        // "mtp" without: the model's own checkpoint has what guesses
};

}  // namespace rudder::step
