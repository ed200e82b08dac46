// Runs requests on an engine in this process, all at once, and times them: for benches without
// HTTP. Called on the main thread.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/decode_window.h"
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

// Of the answers to a batch.
DecodeWindow decode_window(const std::vector<LocalAnswer>& answers);

}  // namespace rudder::apps
