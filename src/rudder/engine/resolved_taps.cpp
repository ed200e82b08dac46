#include "rudder/engine/resolved_taps.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace rudder::engine {

Result<ResolvedTaps> resolve_taps(const RequestParams& params, const steer::ProgramTable& programs,
                                  const steer::capture::Dispatcher* captures,
                                  const RequestLimits& limits) {
  ResolvedTaps resolved;
  resolved.adapter = params.adapter;
  if (params.adapter != nullptr && params.adapter->adapter->max_rank > limits.adapters.max_rank) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the adapter '{}' is of rank {}, the server takes {}", params.adapter->name,
                    params.adapter->adapter->max_rank, limits.adapters.max_rank),
        "model");
  }
  const bool has_capture = params.capture.value != 0;
  if (params.taps.segments.empty() && !has_capture) return resolved;
  RUDDER_TRY(tap::SequenceTaps taps, programs.resolve(params.taps));
  if (has_capture) {
    resolved.capture = captures == nullptr ? nullptr : captures->find(params.capture);
    if (resolved.capture == nullptr) {
      return fail(ErrorCode::kUnavailable, "the request's capture is not known", "capture");
    }
    taps.capture = resolved.capture->set;
    const bool reads_all = !taps.captured.empty() && taps.captured.back().end == tap::kNoEnd &&
                           std::cmp_less_equal(taps.captured.back().begin, params.prompt.size());
    if (resolved.capture->stop_when && !reads_all) {
      return fail(ErrorCode::kInvalidArgument, "every generated token must be captured",
                  "stop_when");
    }
    const auto prompt_len = static_cast<int32_t>(params.prompt.size());
    const int64_t asked_len = int64_t{prompt_len} + params.max_tokens.value_or(limits.max_seq_len);
    RUDDER_TRY_VOID(steer::capture::check_pattern_keys(
        *resolved.capture, prompt_len,
        static_cast<int32_t>(std::min<int64_t>(limits.max_seq_len, asked_len))));
    const int64_t elements = tap::record_elements(*taps.capture, limits.geometry);
    if (elements > limits.taps.capture_elements) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the captured rows of a token are {} elements, the server's capture "
                              "buffer takes {}",
                              elements, limits.taps.capture_elements),
                  "capture");
    }
  }
  resolved.sequence = std::make_shared<const tap::SequenceTaps>(std::move(taps));
  return resolved;
}

}  // namespace rudder::engine
