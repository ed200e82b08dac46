#include "rudder/server/steering/steered_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace rudder::server {
namespace {

// What `segments` steer of the positions [begin, end).
void append_steered(const std::vector<tap::SegmentSpec>& segments, int32_t begin, int32_t end,
                    std::vector<tap::PositionRange>& ranges) {
  for (size_t i = 0; i < segments.size(); ++i) {
    const int32_t next = i + 1 < segments.size() ? segments[i + 1].begin : tap::kNoEnd;
    const int32_t from = std::max(begin, segments[i].begin);
    const int32_t to = std::min(end, next);
    if (from >= to || segments[i].content.none()) continue;
    if (!ranges.empty() && ranges.back().end == from) {
      ranges.back().end = to;
    } else {
      ranges.push_back({from, to});
    }
  }
}

}  // namespace

SteeredTokens::SteeredTokens(tap::TapsSpec taps, int32_t prompt_len)
    : taps_(std::move(taps)), prompt_len_(prompt_len), is_settled_(!taps_.thoughts) {}

// As sched/tap_work.h decides it.
void SteeredTokens::note(int32_t token) {
  const int32_t position = prompt_len_ + num_tokens_++;
  if (is_settled_) return;
  const tap::ThoughtsSpec& thoughts = *taps_.thoughts;
  const bool is_first = position == prompt_len_;
  if (is_first && token == thoughts.begin_token) {
    thoughts_begin_ = position + 1;
    return;
  }
  if (is_first && !thoughts.open) {
    is_settled_ = true;
    return;
  }
  if (is_first) thoughts_begin_ = position;
  if (token != thoughts.end_token) return;
  is_settled_ = true;
  thoughts_end_ = position;
}

std::vector<tap::PositionRange> SteeredTokens::ranges() const {
  const int32_t end = prompt_len_ + std::max(0, num_tokens_ - 1);
  const int32_t thoughts_begin = std::min(thoughts_begin_, end);
  const int32_t thoughts_end = std::min(thoughts_end_, end);
  std::vector<tap::PositionRange> ranges;
  append_steered(taps_.segments, 0, thoughts_begin, ranges);
  if (taps_.thoughts) {
    append_steered(taps_.thoughts->segments, thoughts_begin, thoughts_end, ranges);
  }
  append_steered(taps_.segments, thoughts_end, end, ranges);
  return ranges;
}

std::string to_json(const std::vector<tap::PositionRange>& ranges) {
  std::string out = "[";
  for (const tap::PositionRange& range : ranges) {
    if (out.size() > 1) out.push_back(',');
    fmt::format_to(std::back_inserter(out), "[{},{}]", range.begin, range.end);
  }
  out.push_back(']');
  return out;
}

}  // namespace rudder::server
