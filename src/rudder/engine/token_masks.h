// The masks of constrained choices. ChoiceConstraint holds one choice's matchers; MaskMaker writes
// the masks of a step's constrained sequences. EngineCore owns both; the engine thread calls them
// while the device runs the forward pass of the step that the masks are for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/base/thread_pool.h"
#include "rudder/constraint/constraint.h"
#include "rudder/engine/request.h"

namespace rudder::engine {

class ChoiceConstraint {
 public:
  // `params`: of the request, validated; `constraints`: one for each spec that it has, at least
  // one.
  ChoiceConstraint(const RequestParams& params,
                   std::vector<std::shared_ptr<const constraint::Constraint>> constraints);

  // The mask of the next token: what every constraint allows, without the stop ids before
  // min_tokens. Where the constraints allow nothing but stop ids they may come all the same: the
  // text is complete. kInvalidArgument where they allow nothing at all, else a matcher's own error.
  Result<void> write_mask(int32_t vocab_size, std::span<uint32_t> mask);
  // The token that was sampled under the last mask, unless it has ended the choice.
  Result<void> advance(int32_t token);

 private:
  void ban_stop_ids(int32_t vocab_size, std::span<uint32_t> mask) const;

  std::vector<std::shared_ptr<const constraint::Constraint>> constraints_;  // outlive matchers
  std::vector<std::unique_ptr<constraint::Matcher>> matchers_;
  std::vector<int32_t> stop_ids_;
  const int32_t min_tokens_;
  int32_t num_output_ = 0;
};

class MaskMaker {
 public:
  // `num_threads` counts the caller's; 0: by the cores of the machine.
  MaskMaker(int32_t vocab_size, int32_t num_threads);

  // A row's constraint; null where any token will do. `written` is for what became of its mask:
  // after an Error any token may come.
  struct Row {
    ChoiceConstraint* constraint = nullptr;
    Result<void> written = {};
  };
  // One mask a row, until the next call.
  std::span<const uint32_t> make(std::span<Row> rows);

 private:
  void write(Row& row, std::span<uint32_t> mask) const;

  const int32_t vocab_size_;
  const int32_t num_threads_;
  std::vector<uint32_t> masks_;
  std::optional<ThreadPool> pool_;  // from the first batch on that is worth it
};

}  // namespace rudder::engine
