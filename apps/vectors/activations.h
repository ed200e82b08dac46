// Captures a model's activations for prompts, through the engine's capture path; `rudder vectors`
// learns and evaluates with them. Main thread. The session must capture.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model_session.h"
#include "rudder/base/result.h"
#include "rudder/engine/request.h"
#include "rudder/steer/capture/result.h"
#include "rudder/steer/capture/spec.h"
#include "rudder/steer/train/directions.h"
#include "rudder/tap/sequence_taps.h"
#include "rudder/tap/site.h"

namespace rudder::apps {

// "all" or "4,8-12,-1" (steer/layers.h): layers of the site, ascending. kInvalidArgument names what
// is wrong.
Result<std::vector<int32_t>> parse_layers(std::string_view text, tap::Site site,
                                          const tap::Geometry& geometry);

// A spec for the consumer `response` that gives the mean row over `positions` of each layer, before
// ("pre") or after ("post") the steering of that point.
Result<std::shared_ptr<const steer::capture::CaptureSpec>> mean_spec(
    const ModelSession& session, tap::Site site, const std::vector<int32_t>& layers,
    std::string_view positions, std::string_view point = "pre");

// Makes the request, whose prompt is set, capture by that spec beside the steering of `taps`. What
// it returns and the spec are held until the request is submitted.
Result<std::shared_ptr<const tap::SequenceTaps>> add_capture(
    engine::Engine& engine, const steer::capture::CaptureSpec& spec, tap::SequenceTaps taps,
    engine::RequestParams& params);

// The mean rows that a capture gave, by layer: `layers` many. Empty rows when nothing was captured.
Result<std::vector<std::vector<float>>> mean_rows(const steer::capture::CaptureResults& results,
                                                  tap::Site site, size_t num_layers);

// A row a prompt for each layer, prompts in order; all prompts run batched. With `mean` a row is
// the mean over the prompt's tokens, else that of its last token.
Result<std::vector<steer::RowSet>> rows_of_prompts(ModelSession& session,
                                                   const std::vector<std::vector<int32_t>>& prompts,
                                                   tap::Site site,
                                                   const std::vector<int32_t>& layers, bool mean,
                                                   const std::string& label);

}  // namespace rudder::apps
