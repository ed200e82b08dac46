#include "rudder/constraint/text_counts.h"

#include <algorithm>
#include <cstddef>

namespace rudder::constraint {

std::vector<int32_t> text_counts(const ByteAutomaton& automaton, bool quoted) {
  const size_t size = automaton.boundary.size();
  const auto width = static_cast<size_t>(automaton.num_classes);
  std::vector<int64_t> bytes_of(width);
  for (const uint8_t one : automaton.classes) ++bytes_of[one];
  const auto next = [&](size_t state, size_t one) { return automaton.next[state * width + one]; };
  // From the end: a state is known when all that it leads to are. Those of a loop never are, and
  // have texts without end.
  std::vector<std::vector<int32_t>> from(size);
  std::vector<size_t> unknown(size, 0);
  for (size_t state = 0; state < size; ++state) {
    for (size_t one = 0; one < width; ++one) {
      const int32_t to = next(state, one);
      if (to == ByteAutomaton::kDead || bytes_of[one] == 0) continue;
      from[static_cast<size_t>(to)].push_back(static_cast<int32_t>(state));
      ++unknown[state];
    }
  }
  std::vector<int32_t> counts(size, kManyTexts);
  std::vector<size_t> open;
  for (size_t state = 0; state < size; ++state) {
    if (unknown[state] == 0) open.push_back(state);
  }
  while (!open.empty()) {
    const size_t state = open.back();
    open.pop_back();
    const bool is_end = quoted ? state == ByteAutomaton::kClosed : bool{automaton.accepting[state]};
    int64_t count = is_end ? 1 : 0;
    for (size_t one = 0; one < width && count < kManyTexts; ++one) {
      const int32_t to = next(state, one);
      if (to != ByteAutomaton::kDead) count += bytes_of[one] * counts[static_cast<size_t>(to)];
    }
    counts[state] = static_cast<int32_t>(std::min<int64_t>(count, kManyTexts));
    for (const int32_t before : from[state]) {
      if (--unknown[static_cast<size_t>(before)] == 0) open.push_back(static_cast<size_t>(before));
    }
  }
  return counts;
}

int32_t text_count(int64_t choices, int32_t min, int32_t max, int32_t chars) {
  if (chars > max) return 0;
  if (choices == 1) {
    const int64_t count = int64_t{max} - std::max(min, chars) + 1;
    return static_cast<int32_t>(std::min<int64_t>(count, kManyTexts));
  }
  int64_t count = 0;
  int64_t of_length = 1;
  for (int32_t length = chars; length <= max; ++length) {
    if (length >= min) count += of_length;
    of_length *= choices;
    // There is a longer one, or one of the least length.
    if (count >= kManyTexts || (of_length >= kManyTexts && length < max)) return kManyTexts;
  }
  return static_cast<int32_t>(count);
}

bool always_goes_on(const ByteAutomaton& automaton, const std::vector<int32_t>& counts) {
  for (size_t state = 0; state < counts.size(); ++state) {
    const bool is_live = automaton.missing[state] != ByteAutomaton::kNever;
    if (is_live && state != ByteAutomaton::kClosed && counts[state] < kManyTexts) return false;
  }
  return true;
}

}  // namespace rudder::constraint
