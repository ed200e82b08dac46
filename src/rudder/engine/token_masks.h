// The masks of constrained choices. ChoiceConstraint holds one choice's matchers; MaskMaker writes
// the masks of a step's constrained sequences. EngineCore owns both; the engine thread calls them
// while the device runs the forward pass of the step that the masks are for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/mutants.h"
#include "rudder/base/result.h"
#include "rudder/base/thread_pool.h"
#include "rudder/constraint/constraint.h"
#include "rudder/engine/request.h"
#include "rudder/step/draft_tree.h"

namespace rudder::engine {

class ChoiceConstraint {
 public:
  // Of a sequence of a step. Row 0 is its last token, row i the i-th draft.
  struct Drafts {
    std::span<const int32_t> tokens = {};
    step::DraftTree tree = {};  // which of them follow which; empty: each the one before it

    bool follows(size_t row, size_t parent) const {
      if (tree.empty() || RUDDER_MUTANT(kMasksOfRowBefore)) return row == parent + 1;
      return std::cmp_equal(tree.parent(static_cast<int32_t>(row)), parent);
    }
  };

  // `params`: of the request, validated; `constraints`: one for each spec that it has, at least
  // one.
  ChoiceConstraint(const RequestParams& params,
                   std::vector<std::shared_ptr<const constraint::Constraint>> constraints);

  // The mask of the next token: what every constraint allows, without the stop ids before
  // min_tokens. Where the constraints allow nothing but stop ids they may come all the same: the
  // text is complete. kInvalidArgument where they allow nothing at all, else a matcher's own error.
  Result<void> write_mask(int32_t vocab_size, std::span<uint32_t> mask);
  // The masks of the next token and of the one behind each token of `drafts`, side by side; each
  // follows from the tokens on the way to it. An Error is write_mask()'s, of the first mask. Where
  // the constraints fail behind a draft, no token may come there (failed_behind). What no right
  // draft leads to may be anything; a token below 0 is none.
  Result<void> write_masks(int32_t vocab_size, const Drafts& drafts, std::span<uint32_t> masks);
  // Why no token may come behind these of the last drafts, a path of them; null where some may.
  const Error* failed_behind(std::span<const int32_t> path) const;
  // The masks behind drafts take too long.
  bool is_dear() const;
  // The token that was sampled under the last mask, unless it has ended the choice.
  Result<void> advance(int32_t token);

 private:
  struct FailedBehind {
    std::vector<int32_t> path;
    Error error;
  };

  void write_masks_behind(int32_t vocab_size, const Drafts& drafts, size_t row,
                          std::span<uint32_t> masks);
  Result<void> write_mask_behind(int32_t vocab_size, int32_t draft, std::span<uint32_t> mask);
  bool is_stop_id(int32_t token) const;
  void ban_stop_ids(int32_t vocab_size, std::span<uint32_t> mask);

  std::vector<std::shared_ptr<const constraint::Constraint>> constraints_;  // outlive matchers
  std::vector<std::unique_ptr<constraint::Matcher>> matchers_;
  std::vector<int32_t> stop_ids_;
  int32_t min_tokens_;
  int32_t num_output_ = 0;
  std::vector<int32_t> banned_;  // scratch
  std::vector<int32_t> path_;    // of the drafts that are tried
  std::vector<FailedBehind> failed_behind_;
};

class MaskMaker {
 public:
  // `num_threads` counts the caller's; 0: by the cores of the machine.
  MaskMaker(int32_t vocab_size, int32_t num_threads);

  // What is to be written for one sequence: its constraint; null where any token will do. `written`
  // is for what became of its masks: after an Error any token may come.
  struct Job {
    ChoiceConstraint* constraint = nullptr;
    ChoiceConstraint::Drafts drafts = {};
    Result<void> written = {};

    size_t num_masks() const { return 1 + drafts.tokens.size(); }
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
