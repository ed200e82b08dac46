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
  // The masks of the next token and of the one behind each token of `draft`, side by side. An Error
  // is write_mask()'s, of the first mask. Where the constraints fail behind a draft, no token may
  // come there (failed_behind). What no right draft leads to may be anything; a token below 0 is
  // none.
  Result<void> write_masks(int32_t vocab_size, std::span<const int32_t> draft,
                           std::span<uint32_t> masks);
  // Why no token may come behind the first `num_drafts` of the last draft; null where some may.
  const Error* failed_behind(size_t num_drafts) const;
  // The token that was sampled under the last mask, unless it has ended the choice.
  Result<void> advance(int32_t token);

 private:
  struct FailedBehind {
    size_t num_drafts = 0;
    Error error;
  };

  Result<void> write_masks_behind(int32_t vocab_size, std::span<const int32_t> draft,
                                  std::span<uint32_t> masks, size_t* num_written);
  bool is_stop_id(int32_t token) const;
  void ban_stop_ids(int32_t vocab_size, std::span<uint32_t> mask);

  std::vector<std::shared_ptr<const constraint::Constraint>> constraints_;  // outlive matchers
  std::vector<std::unique_ptr<constraint::Matcher>> matchers_;
  std::vector<int32_t> stop_ids_;
  int32_t min_tokens_;
  int32_t num_output_ = 0;
  std::vector<int32_t> banned_;  // scratch
  std::optional<FailedBehind> failed_behind_;
};

class MaskMaker {
 public:
  // `num_threads` counts the caller's; 0: by the cores of the machine.
  MaskMaker(int32_t vocab_size, int32_t num_threads);

  // What is to be written for one sequence: its constraint; null where any token will do. `written`
  // is for what became of its masks: after an Error any token may come.
  struct Job {
    ChoiceConstraint* constraint = nullptr;
    std::span<const int32_t> draft = {};
    Result<void> written = {};

    size_t num_masks() const { return 1 + draft.size(); }
  };
  // The masks of each job, a sequence (ChoiceConstraint::write_masks), one job behind another,
  // until the next call.
  std::span<const uint32_t> make(std::span<Job> jobs);

 private:
  void write(Job& job, std::span<uint32_t> masks) const;

  const int32_t vocab_size_;
  const int32_t num_threads_;
  std::vector<uint32_t> masks_;
  std::vector<size_t> first_masks_;  // by job
  std::optional<ThreadPool> pool_;   // from the first batch on that is worth it
};

}  // namespace rudder::engine
