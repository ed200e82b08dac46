// What a row of a prompt file asks of the model's activations: the steering and capture fields of a
// request to the server, under the same names. For `rudder generate`; main thread.
#pragma once

#include <boost/json/fwd.hpp>

#include "model_session.h"
#include "prompt_file.h"
#include "rudder/base/result.h"
#include "rudder/engine/request.h"
#include "rudder/server/steering/tap_fields.h"
#include "rudder/steer/capture/result.h"

namespace rudder::apps {

// Sets taps and capture of `params`, whose prompt is the row's; the lease is held until the request
// is submitted. kUnsupported where the session runs without what the row asks for; other errors
// name the field.
Result<server::TapsLease> add_row_taps(const ModelSession& session, const PromptRow& row,
                                       engine::RequestParams* params);

// As the row's "capture_results", where there are any.
Result<void> add_capture_results(const steer::capture::CaptureResults& results,
                                 boost::json::object* row);

}  // namespace rudder::apps
