// PatchSweepRequest: the body of /v1/steering/patch_sweep, checked: what is patched, what is
// measured, and how much work that is. Parsed on the tokenise pool; plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/server/http/api_error.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/steer/config.h"
#include "rudder/tap/sequence_taps.h"
#include "rudder/tap/site.h"

namespace rudder::server {

inline constexpr int64_t kMaxSweepRuns = 8192;
inline constexpr int64_t kMaxSweepTokens = int64_t{1} << 21;  // of all runs together
// Of one window of positions: each has a program of its own.
inline constexpr int32_t kMaxSweepWindow = 64;

// The layers of one site.
struct SweepGrid {
  tap::Site site = tap::Site::kResidPost;
  std::vector<int32_t> layers;
};

// One patched run of the corrupted prompt is a cell: a point and a window of positions.
struct SweepCell {
  tap::Point point;
  tap::PositionRange positions;
};

struct PatchSweepRequest {
  std::string id;
  std::string model;
  std::vector<int32_t> clean;
  std::vector<int32_t> corrupted;
  // The tokens whose probability is measured behind a prompt: the right answer and, where the
  // metric is a difference, the wrong one.
  std::vector<int32_t> answers;
  std::vector<SweepGrid> grids;
  std::vector<tap::PositionRange> positions;
  bool with_svg = false;
  int32_t tenant = 0;
  std::string cache_salt;
  std::shared_ptr<const lora::NamedAdapter> adapter;  // null: the model as it is
  std::shared_ptr<const steer::Config> global;  // what the server steers by itself; null: nothing
  std::shared_ptr<const steer::capture::CaptureSpec> capture;  // of the clean run

  bool is_difference() const { return answers.size() == 2; }
  int64_t num_cells() const;
  SweepCell cell(int64_t number) const;  // by grid, then layer, then position
};

tl::expected<PatchSweepRequest, ApiError> parse_patch_sweep(std::string_view body,
                                                            const GenerationScope& scope);

}  // namespace rudder::server
