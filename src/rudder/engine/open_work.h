// OpenWork: what an engine still has to do for a request, in tokens: those of its prompt that are
// not computed yet, and those of the answer that it may still have. Requests go to the engine whose
// sum of these is least. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/engine/event.h"
#include "rudder/engine/request.h"

namespace rudder::engine {

// An answer counts as no more than so many tokens at once: most end long before they must.
inline constexpr int64_t kMostGranted = 512;

class OpenWork {
 public:
  OpenWork() = default;
  // `cached`: tokens of the prompt that need not be computed.
  explicit OpenWork(const RequestParams& params, int64_t cached = 0);

  int64_t tokens() const { return tokens_; }
  // An event of the request: its choice's prompt is computed when it has a token, and a token that
  // came is not to come.
  void note(const Event& event);

 private:
  struct Choice {
    int64_t prompt = 0;  // 0: it is computed
    int64_t answer = 0;  // that may still come
  };
  static int64_t left(const Choice& choice);

  std::vector<Choice> choices_;
  int64_t tokens_ = 0;
};

}  // namespace rudder::engine
