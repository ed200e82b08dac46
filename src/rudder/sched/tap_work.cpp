#include "rudder/sched/tap_work.h"

#include <algorithm>
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
  if (taps_ == nullptr) return;
  RUDDER_CHECK(lease_.rows.size() == taps_->segments.size(), "{} rows for {} segments",
               lease_.rows.size(), taps_->segments.size());
  RUDDER_CHECK(taps_->segments.empty() || taps_->segments.front().begin == 0,
               "the first segment begins at {}", taps_->segments.front().begin);
  RUDDER_CHECK((taps_->capture == nullptr) == (lease_.capture_set < 0), "capture set {}",
               lease_.capture_set);
}

std::vector<kv::ContentRun> TapWork::content_runs() const {
  std::vector<kv::ContentRun> runs;
  if (taps_ == nullptr) return runs;
  const auto& segments = taps_->segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].program == nullptr) continue;
    runs.push_back({.begin = segments[i].begin,
                    .end = i + 1 < segments.size() ? segments[i + 1].begin : tap::kNoEnd,
                    .content = {segments[i].content.low, segments[i].content.high}});
  }
  return runs;
}

int32_t TapWork::max_reused() const {
  if (taps_ == nullptr) return tap::kNoEnd;
  if (taps_->needs_whole_prompt && !RUDDER_MUTANT(kLatchAfterPrefix)) return 0;
  if (taps_->capture == nullptr || RUDDER_MUTANT(kCaptureAfterPrefix)) return tap::kNoEnd;
  for (const tap::PositionRange& range : taps_->captured) {
    if (range.end > captured_len_) return std::max(range.begin, captured_len_);
  }
  return tap::kNoEnd;
}

int32_t TapWork::fit(int32_t begin, int32_t q_len, int64_t elements) const {
  if (taps_ == nullptr) return q_len;
  const bool fills_latches = taps_->needs_whole_prompt && begin < prompt_len_;
  if (fills_latches && !RUDDER_MUTANT(kStepPassesPrompt)) {
    q_len = std::min(q_len, prompt_len_ - begin);
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

int32_t TapWork::row_at(int32_t position) const {
  const auto& segments = taps_->segments;
  if (segments.empty()) return 0;
  const auto next =
      std::ranges::upper_bound(segments, position, {}, &tap::TapSegment::begin) - segments.begin();
  return lease_.rows[static_cast<size_t>(next) - 1];
}

int32_t TapWork::uniform_len(int32_t begin, int32_t most) const {
  if (taps_ == nullptr) return most;
  int32_t end = begin + most;
  const int32_t row = row_at(begin);
  for (const tap::TapSegment& segment : taps_->segments) {
    if (segment.begin > begin && segment.begin < end && row_at(segment.begin) != row) {
      end = segment.begin;
    }
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
  if (taps_ == nullptr) return 0;
  const int32_t begin = work.kv_len;
  const int32_t end = begin + work.q_len;
  work.tap_row = row_at(begin);
  int32_t row = work.tap_row;
  const auto& segments = taps_->segments;
  auto next = std::ranges::upper_bound(segments, begin, {}, &tap::TapSegment::begin);
  for (; next != segments.end() && next->begin < end; ++next) {
    const int32_t next_row = lease_.rows[static_cast<size_t>(next - segments.begin())];
    if (next_row == row || RUDDER_MUTANT(kOneRowForAChunk)) continue;
    work.tap_spans.push_back({.q_begin = next->begin - begin, .tap_row = next_row});
    row = next_row;
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

void TapWork::note_computed(int32_t len) {
  if (!RUDDER_MUTANT(kCapturedTwice)) captured_len_ = std::max(captured_len_, len);
}

}  // namespace rudder::sched
