#include "rudder/sched/tap_work.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::sched {

TapWork::TapWork(std::shared_ptr<const tap::SequenceTaps> taps, TapLease lease, int32_t prompt_len,
                 int64_t record_elements)
    : taps_(std::move(taps)),
      lease_(std::move(lease)),
      prompt_len_(prompt_len),
      record_elements_(record_elements) {
  noted_len_ = prompt_len;
  if (taps_ == nullptr) return;
  const size_t num_rows =
      taps_->segments.size() + (taps_->thoughts ? taps_->thoughts->segments.size() : 0);
  RUDDER_CHECK(lease_.rows.size() == num_rows, "{} rows for {} segments", lease_.rows.size(),
               num_rows);
  RUDDER_CHECK(taps_->segments.empty() || taps_->segments.front().begin == 0,
               "the first segment begins at {}", taps_->segments.front().begin);
  RUDDER_CHECK((taps_->capture == nullptr) == (lease_.capture_set < 0), "capture set {}",
               lease_.capture_set);
  if (taps_->thoughts) stage_ = Stage::kFirstToken;
  cut_runs();
}

// The runs of `segments`, whose rows begin at `first_row` of the lease, at positions [begin, end).
void TapWork::add_runs(std::span<const tap::TapSegment> segments, size_t first_row, int32_t begin,
                       int32_t end) {
  for (size_t i = 0; i < segments.size() && begin < end; ++i) {
    const int32_t next = i + 1 < segments.size() ? segments[i + 1].begin : tap::kNoEnd;
    if (next <= begin) continue;
    if (segments[i].begin >= end) return;
    runs_.push_back({.begin = std::max(begin, segments[i].begin),
                     .row = lease_.rows[first_row + i],
                     .segment = &segments[i]});
  }
}

void TapWork::cut_runs() {
  runs_.clear();
  const int32_t begin = RUDDER_MUTANT(kThoughtsUnsteered) ? tap::kNoEnd : thoughts_begin_;
  add_runs(taps_->segments, 0, 0, begin);
  if (begin == tap::kNoEnd) return;
  add_runs(taps_->thoughts->segments, taps_->segments.size(), begin, thoughts_end_);
  add_runs(taps_->segments, 0, thoughts_end_, tap::kNoEnd);
}

bool TapWork::note_tokens(std::span<const int32_t> tokens) {
  bool changed = false;
  while (stage_ != Stage::kSettled && noted_len_ < std::ssize(tokens)) {
    const int32_t token = tokens[static_cast<size_t>(noted_len_)];
    changed = note_token(noted_len_++, token) || changed;
  }
  if (changed) cut_runs();
  return changed;
}

bool TapWork::note_token(int32_t position, int32_t token) {
  const tap::Thoughts& thoughts = *taps_->thoughts;
  const bool is_first = stage_ == Stage::kFirstToken;
  if (is_first && token == thoughts.begin_token) {
    stage_ = Stage::kThoughts;
    thoughts_begin_ = position + 1;
    return true;
  }
  if (is_first && !thoughts.open) {
    stage_ = Stage::kSettled;
    return false;
  }
  if (is_first) thoughts_begin_ = position;
  stage_ = token == thoughts.end_token ? Stage::kSettled : Stage::kThoughts;
  if (stage_ == Stage::kSettled) thoughts_end_ = position;
  return is_first || stage_ == Stage::kSettled;
}

std::vector<cache::ContentRun> TapWork::content_runs() const {
  std::vector<cache::ContentRun> runs;
  for (size_t i = 0; i < runs_.size(); ++i) {
    const tap::TapSegment& segment = *runs_[i].segment;
    if (segment.program == nullptr) continue;
    runs.push_back({.begin = runs_[i].begin,
                    .end = i + 1 < runs_.size() ? runs_[i + 1].begin : tap::kNoEnd,
                    .content = {segment.content.low, segment.content.high}});
  }
  return runs;
}

int32_t TapWork::max_reused() const {
  if (taps_ == nullptr) return tap::kNoEnd;
  if (taps_->needs_whole_prompt && !RUDDER_MUTANT(kLatchAfterPrefix)) return 0;
  // The prompt's last token leaves the first reading, each generated one the next.
  const bool is_read = taps_->is_controlled && !RUDDER_MUTANT(kReadingAfterPrefix);
  const int32_t most = is_read ? prompt_len_ - 1 : tap::kNoEnd;
  if (taps_->capture == nullptr || RUDDER_MUTANT(kCaptureAfterPrefix)) return most;
  for (const tap::PositionRange& range : taps_->captured) {
    if (range.end > captured_len_) return std::min(most, std::max(range.begin, captured_len_));
  }
  return most;
}

int32_t TapWork::fit(int32_t begin, int32_t q_len, int64_t elements) const {
  if (taps_ == nullptr) return q_len;
  const bool has_latches = taps_->needs_whole_prompt || taps_->is_controlled;
  if (has_latches && begin < prompt_len_ && !RUDDER_MUTANT(kStepPassesPrompt)) {
    q_len = std::min(q_len, prompt_len_ - begin);
  }
  if (taps_->is_controlled && begin >= prompt_len_ && !RUDDER_MUTANT(kControlledChunk)) {
    q_len = std::min(q_len, 1);
  }
  if (taps_->capture == nullptr) return q_len;
  int64_t tokens_left = elements / record_elements_;
  if (RUDDER_MUTANT(kCaptureOverflow)) tokens_left = q_len;
  for (const tap::PositionRange& range : taps_->captured) {
    const int32_t first = std::max({range.begin, begin, captured_len_});
    const int32_t end = std::min(range.end, begin + q_len);
    if (first >= end) continue;
    if (end - first > tokens_left) return first + static_cast<int32_t>(tokens_left) - begin;
    tokens_left -= end - first;
  }
  return q_len;
}

int64_t TapWork::captured_elements(int32_t begin, int32_t q_len) const {
  if (taps_ == nullptr || taps_->capture == nullptr) return 0;
  int64_t num_captured = 0;
  for (const tap::PositionRange& range : taps_->captured) {
    const int32_t first = std::max({range.begin, begin, captured_len_});
    num_captured += std::max(0, std::min(range.end, begin + q_len) - first);
  }
  return num_captured * record_elements_;
}

int32_t TapWork::row_at(int32_t position) const {
  if (runs_.empty()) return 0;
  return std::prev(std::ranges::upper_bound(runs_, position, {}, &Run::begin))->row;
}

int32_t TapWork::uniform_len(int32_t begin, int32_t most) const {
  if (taps_ == nullptr) return most;
  if (needs_known_tokens()) most = std::min(most, 1);
  int32_t end = begin + most;
  const int32_t row = row_at(begin);
  for (const Run& run : runs_) {
    if (run.begin > begin && run.begin < end && run.row != row) end = run.begin;
  }
  return uncaptured_len(begin, end - begin);
}

int32_t TapWork::uncaptured_len(int32_t begin, int32_t most) const {
  if (taps_ == nullptr || taps_->capture == nullptr) return most;
  int32_t end = begin + most;
  for (const tap::PositionRange& range : taps_->captured) {
    const int32_t first = std::max({range.begin, begin, captured_len_});
    if (first < range.end) end = std::min(end, first);
  }
  return end - begin;
}

int64_t TapWork::write(step::SeqWork& work) const {
  work.adapter_row = lease_.adapter_row;
  if (taps_ == nullptr) return 0;
  const int32_t begin = work.kv_len;
  const int32_t end = begin + work.q_len - work.num_draft + work.most_accepted();
  work.tap_row = row_at(begin);
  int32_t row = work.tap_row;
  auto next = std::ranges::upper_bound(runs_, begin, {}, &Run::begin);
  for (; next != runs_.end() && next->begin < end; ++next) {
    if (next->row == row || RUDDER_MUTANT(kOneRowForAChunk)) continue;
    work.tap_spans.push_back({.q_begin = next->begin - begin, .tap_row = next->row});
    row = next->row;
  }
  if (taps_->capture == nullptr) return 0;
  int64_t num_captured = 0;
  for (const tap::PositionRange& range : taps_->captured) {
    const int32_t first = std::max({range.begin, begin, captured_len_});
    const int32_t last = std::min(range.end, end);
    if (first >= last) continue;
    work.captures.push_back({.q_begin = first - begin, .q_len = last - first});
    num_captured += last - first;
  }
  if (num_captured > 0) work.capture_set = lease_.capture_set;
  return num_captured * record_elements_;
}

bool TapWork::takes_drafts() const {
  const bool is_controlled = taps_ != nullptr && taps_->is_controlled;
  return !needs_known_tokens() && (!is_controlled || RUDDER_MUTANT(kControlledDrafts));
}

void TapWork::note_computed(int32_t len) {
  if (!RUDDER_MUTANT(kCapturedTwice)) captured_len_ = std::max(captured_len_, len);
}

}  // namespace rudder::sched
