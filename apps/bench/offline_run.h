// Runs requests on an engine in this process, all at once, and times them: for benches without
// HTTP. Called on the main thread.
#pragma once

#include <cstdint>
#include <vector>

#include "local_client.h"
#include "model_session.h"
#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/engine/request.h"

namespace rudder::apps {

// The answers in order, and the seconds until the last one.
Result<std::vector<LocalAnswer>> run_requests(ModelSession& session,
                                              std::vector<engine::RequestParams> requests,
                                              const ProgressFn& progress, double* seconds);

double seconds_between(int64_t from_us, int64_t to_us);

// The time in which every sequence decodes: from the last first token to the first last one, so
// that no prompt runs in it. Empty where one ends before another begins.
struct DecodeWindow {
  double seconds = 0;
  int64_t tokens = 0;  // of all sequences

  // Seconds a token of one sequence; 0 for an empty window.
  double per_token(size_t num_sequences) const {
    return tokens > 0 ? seconds * static_cast<double>(num_sequences) / static_cast<double>(tokens)
                      : 0;
  }
};

DecodeWindow decode_window(const std::vector<LocalAnswer>& answers);

}  // namespace rudder::apps
