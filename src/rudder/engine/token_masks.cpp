#include "rudder/engine/token_masks.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/mutants.h"
#include "rudder/base/token_mask.h"

namespace rudder::engine {
namespace {

// Fewer jobs are done before helpers have woken.
constexpr size_t kMinJobsToShare = 4;
constexpr int32_t kMaxThreads = 8;

// A quarter of the cores: the others have a model, requests or a client to serve.
int32_t threads_of_machine() {
  const auto cores = static_cast<int32_t>(std::thread::hardware_concurrency());
  return std::clamp(cores / 4, 1, kMaxThreads);
}

}  // namespace

ChoiceConstraint::ChoiceConstraint(
    const RequestParams& params,
    std::vector<std::shared_ptr<const constraint::Constraint>> constraints)
    : constraints_(std::move(constraints)),
      stop_ids_(params.sampling.stop_ids),
      min_tokens_(params.sampling.min_tokens) {
  matchers_.reserve(constraints_.size());
  for (const auto& constraint : constraints_) matchers_.push_back(constraint->start());
}

Result<void> ChoiceConstraint::write_mask(int32_t vocab_size, std::span<uint32_t> mask) {
  fill_mask(mask, vocab_size);
  for (const auto& matcher : matchers_) RUDDER_TRY_VOID(matcher->restrict(mask));
  if (is_mask_empty(mask)) {
    return fail(ErrorCode::kInvalidArgument,
                "no token may come next: the constraints of the request exclude each other");
  }
  if (num_output_ < min_tokens_) ban_stop_ids(vocab_size, mask);
  return {};
}

Result<void> ChoiceConstraint::write_masks(int32_t vocab_size, const Drafts& drafts,
                                           std::span<uint32_t> masks) {
  const size_t words = mask_words(vocab_size);
  failed_behind_.clear();
  RUDDER_TRY_VOID(write_mask(vocab_size, masks.first(words)));
  if (drafts.tokens.empty()) return {};
  for (size_t row = 1; row <= drafts.tokens.size(); ++row) {
    fill_mask(masks.subspan(row * words, words), vocab_size);
  }
  path_.clear();
  write_masks_behind(vocab_size, drafts, 0, masks);
  return {};
}

// Of `masks` that of the row is written; goes along each branch until a draft that cannot be
// sampled or ends the choice. The matchers try a draft and take it back before they try the one
// beside it.
void ChoiceConstraint::write_masks_behind(int32_t vocab_size, const Drafts& drafts, size_t row,
                                          std::span<uint32_t> masks) {
  const size_t words = mask_words(vocab_size);
  const auto mask = masks.subspan(row * words, words);
  for (size_t next = row + 1; next <= drafts.tokens.size(); ++next) {
    const int32_t draft = drafts.tokens[next - 1];
    const bool may_follow = drafts.follows(next, row) && draft >= 0 && is_in_mask(mask, draft);
    if (!may_follow || is_stop_id(draft)) continue;
    const int32_t num_output = num_output_;
    for (const auto& matcher : matchers_) matcher->begin_trial();
    path_.push_back(draft);
    const auto behind = masks.subspan(next * words, words);
    if (Result<void> written = write_mask_behind(vocab_size, draft, behind)) {
      write_masks_behind(vocab_size, drafts, next, masks);
    } else {
      std::ranges::fill(behind, 0);
      failed_behind_.push_back({path_, std::move(written.error())});
    }
    path_.pop_back();
    for (const auto& matcher : matchers_) matcher->end_trial();
    num_output_ = num_output;
  }
}

Result<void> ChoiceConstraint::write_mask_behind(int32_t vocab_size, int32_t draft,
                                                 std::span<uint32_t> mask) {
  RUDDER_TRY_VOID(advance(draft));
  return write_mask(vocab_size, mask);
}

const Error* ChoiceConstraint::failed_behind(std::span<const int32_t> path) const {
  const auto found = std::ranges::find_if(failed_behind_, [&](const FailedBehind& failed) {
    return std::ranges::equal(failed.path, path);
  });
  return found == failed_behind_.end() ? nullptr : &found->error;
}

bool ChoiceConstraint::is_dear() const {
  return std::ranges::any_of(matchers_, [](const auto& matcher) { return matcher->is_dear(); });
}

bool ChoiceConstraint::is_stop_id(int32_t token) const {
  return std::ranges::find(stop_ids_, token) != stop_ids_.end();
}

void ChoiceConstraint::ban_stop_ids(int32_t vocab_size, std::span<uint32_t> mask) {
  // End-of-sequence ids come from a file and may be no token of this model.
  const auto is_allowed = [&](int32_t token) {
    return token >= 0 && token < vocab_size && is_in_mask(mask, token);
  };
  banned_.clear();
  for (const int32_t token : stop_ids_) {
    if (!is_allowed(token)) continue;
    clear_in_mask(mask, token);
    banned_.push_back(token);
  }
  if (!is_mask_empty(mask) || RUDDER_MUTANT(kMinTokensOverConstraints)) return;
  for (const int32_t token : banned_) set_in_mask(mask, token);
}

Result<void> ChoiceConstraint::advance(int32_t token) {
  ++num_output_;
  for (const auto& matcher : matchers_) RUDDER_TRY_VOID(matcher->advance(token));
  return {};
}

MaskMaker::MaskMaker(int32_t vocab_size, int32_t num_threads)
    : vocab_size_(vocab_size), num_threads_(num_threads > 0 ? num_threads : threads_of_machine()) {}

std::span<const uint32_t> MaskMaker::make(std::span<Job> jobs) {
  const size_t words = mask_words(vocab_size_);
  first_masks_.clear();
  size_t num_masks = 0;
  for (const Job& job : jobs) {
    first_masks_.push_back(num_masks);
    num_masks += job.num_masks();
  }
  if (masks_.size() < num_masks * words) masks_.resize(num_masks * words);
  const std::span<uint32_t> masks = std::span(masks_).first(num_masks * words);
  const auto write_job = [&](int64_t i) {
    Job& job = jobs[static_cast<size_t>(i)];
    const size_t first = first_masks_[static_cast<size_t>(i)];
    write(job, masks.subspan(first * words, job.num_masks() * words));
  };
  if (num_threads_ > 1 && jobs.size() >= kMinJobsToShare) {
    if (!pool_) pool_.emplace(num_threads_);
    pool_->parallel_for(std::ssize(jobs), write_job);
  } else {
    for (int64_t i = 0; i < std::ssize(jobs); ++i) write_job(i);
  }
  return masks;
}

void MaskMaker::write(Job& job, std::span<uint32_t> masks) const {
  const size_t words = mask_words(vocab_size_);
  job.written = {};
  if (job.constraint != nullptr) {
    job.written =
        contain([&] { return job.constraint->write_masks(vocab_size_, job.drafts, masks); });
    if (job.written && !RUDDER_MUTANT(kDraftMasksOfFirst)) return;
  }
  for (size_t i = 0; i < job.num_masks(); ++i) {
    const auto mask = masks.subspan(i * words, words);
    if (job.constraint == nullptr || !job.written) {
      fill_mask(mask, vocab_size_);
    } else {
      std::ranges::copy(masks.first(words), mask.begin());
    }
  }
}

}  // namespace rudder::engine
