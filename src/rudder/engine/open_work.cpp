#include "rudder/engine/open_work.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace rudder::engine {

OpenWork::OpenWork(const RequestParams& params, int64_t cached)
    : choices_(static_cast<size_t>(params.n),
               {.prompt = std::ssize(params.prompt) - cached,
                .answer = params.max_tokens.value_or(std::numeric_limits<int32_t>::max())}),
      tokens_(choices_.empty() ? 0 : params.n * left(choices_.front())) {}

int64_t OpenWork::left(const Choice& choice) {
  return choice.prompt + std::min(choice.answer, kMostGranted);
}

void OpenWork::note(const Event& event) {
  const auto at = static_cast<size_t>(event.choice);
  if (at >= choices_.size()) return;
  Choice& choice = choices_[at];
  tokens_ -= left(choice);
  if (!event.tokens.empty()) choice.prompt = 0;
  choice.answer = std::max<int64_t>(choice.answer - std::ssize(event.tokens), 0);
  if (event.finish) choice = {};
  tokens_ += left(choice);
}

}  // namespace rudder::engine
