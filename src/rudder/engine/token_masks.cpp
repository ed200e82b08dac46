#include "rudder/engine/token_masks.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/mutants.h"
#include "rudder/base/token_mask.h"

namespace rudder::engine {
namespace {

// Fewer rows are done before helpers have woken.
constexpr size_t kMinRowsToShare = 4;
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

void ChoiceConstraint::ban_stop_ids(int32_t vocab_size, std::span<uint32_t> mask) const {
  // End-of-sequence ids come from a file and may be no token of this model.
  const auto is_allowed = [&](int32_t token) {
    return token >= 0 && token < vocab_size && is_in_mask(mask, token);
  };
  std::vector<int32_t> banned;
  for (const int32_t token : stop_ids_) {
    if (!is_allowed(token)) continue;
    clear_in_mask(mask, token);
    banned.push_back(token);
  }
  if (!is_mask_empty(mask) || RUDDER_MUTANT(kMinTokensOverConstraints)) return;
  for (const int32_t token : banned) set_in_mask(mask, token);
}

Result<void> ChoiceConstraint::advance(int32_t token) {
  ++num_output_;
  for (const auto& matcher : matchers_) RUDDER_TRY_VOID(matcher->advance(token));
  return {};
}

MaskMaker::MaskMaker(int32_t vocab_size, int32_t num_threads)
    : vocab_size_(vocab_size), num_threads_(num_threads > 0 ? num_threads : threads_of_machine()) {}

std::span<const uint32_t> MaskMaker::make(std::span<Row> rows) {
  const size_t words = mask_words(vocab_size_);
  if (masks_.size() < rows.size() * words) masks_.resize(rows.size() * words);
  const std::span<uint32_t> masks = std::span(masks_).first(rows.size() * words);
  const auto write_row = [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    write(rows[index], masks.subspan(index * words, words));
  };
  if (num_threads_ > 1 && rows.size() >= kMinRowsToShare) {
    if (!pool_) pool_.emplace(num_threads_);
    pool_->parallel_for(std::ssize(rows), write_row);
  } else {
    for (int64_t i = 0; i < std::ssize(rows); ++i) write_row(i);
  }
  return masks;
}

void MaskMaker::write(Row& row, std::span<uint32_t> mask) const {
  row.written = {};
  if (row.constraint != nullptr) {
    row.written = contain([&] { return row.constraint->write_mask(vocab_size_, mask); });
  }
  if (row.constraint == nullptr || !row.written) fill_mask(mask, vocab_size_);
}

}  // namespace rudder::engine
