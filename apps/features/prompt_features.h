// The features of prompts' tokens: rows that the engine captures where a dictionary reads, encoded
// on the host. For the commands of `rudder features`; main thread. The session captures and steers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model_session.h"
#include "rudder/base/result.h"
#include "rudder/features/dictionary.h"
#include "rudder/steer/capture/result.h"

namespace rudder::apps {

// The settings of a session that runs dictionaries.
SessionSettings feature_session_settings();

// The dictionary that --dictionary registered, of this layer; below 0: of its only one.
// kInvalidArgument when there is not one dictionary, or not one layer.
Result<std::shared_ptr<const features::Dictionary>> session_dictionary(const ModelSession& session,
                                                                       int32_t layer);

// A spec for the consumer `response` that gives the rows of all tokens of a prompt, f32, where the
// dictionary reads.
Result<std::shared_ptr<const steer::capture::CaptureSpec>> rows_spec(
    const ModelSession& session, const features::Dictionary& dictionary);

// The rows that such a capture gave, [tokens, width].
Result<std::vector<float>> token_rows(const steer::capture::CaptureResults& results,
                                      const features::Dictionary& dictionary);

// Gets all features [num_features] of each token of each prompt. Prompts run side by side, on
// threads of a pool; the tokens of a prompt come in order, on one thread.
using TakeFeatures =
    std::function<void(size_t prompt, size_t token, std::span<const float> features)>;
Result<void> encode_prompts(ModelSession& session, const features::Dictionary& dictionary,
                            const std::vector<std::vector<int32_t>>& prompts,
                            const std::string& label, const TakeFeatures& take);

}  // namespace rudder::apps
