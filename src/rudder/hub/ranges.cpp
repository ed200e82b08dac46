#include "rudder/hub/ranges.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "rudder/base/check.h"

namespace rudder::hub {
namespace {

constexpr std::string_view kMark = "rudder-ranges-1 ";
constexpr int64_t kMinRangeBytes = int64_t{1} << 16;  // of a text: it bounds what is read of one

// The number at the beginning of `text`, which it takes off together with the one character behind
// it, `mark`; at the end of the text there need be none.
std::optional<int64_t> take_number(std::string_view& text, char mark) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || text.starts_with('-')) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.empty()) return value;
  if (text.front() != mark) return std::nullopt;
  text.remove_prefix(1);
  return value;
}

}  // namespace

Ranges::Ranges(int64_t size, int64_t range_bytes) : size_(size), range_bytes_(range_bytes) {
  RUDDER_CHECK(size >= 0 && range_bytes > 0);
  for (int64_t begin = 0; begin < size; begin += range_bytes) {
    ranges_.push_back({.begin = begin, .end = begin + std::min(range_bytes, size - begin)});
  }
}

std::string Ranges::to_text() const {
  std::string text = fmt::format("{}{} {}", kMark, size_, range_bytes_);
  for (const Range& range : ranges_) text += fmt::format(" {}", range.done);
  return text;
}

std::optional<Ranges> Ranges::from_text(std::string_view text, int64_t size) {
  const std::string_view whole = text;
  if (!text.starts_with(kMark)) return std::nullopt;
  text.remove_prefix(kMark.size());
  const std::optional<int64_t> written_size = take_number(text, ' ');
  if (!written_size || *written_size != size) return std::nullopt;
  const std::optional<int64_t> range_bytes = take_number(text, ' ');
  if (!range_bytes || *range_bytes < std::min(kMinRangeBytes, std::max<int64_t>(size, 1))) {
    return std::nullopt;
  }
  Ranges ranges(size, *range_bytes);
  for (Range& range : ranges.ranges_) {
    const std::optional<int64_t> done = take_number(text, ' ');
    if (!done || *done > range.end - range.begin) return std::nullopt;
    range.done = *done;
  }
  if (ranges.to_text() != whole) return std::nullopt;  // one way to write it
  return ranges;
}

void Ranges::join() {
  if (ranges_.size() < 2) return;
  const int64_t done = ranges_.front().done;
  ranges_.assign(1, {.begin = 0, .end = size_, .done = done});
  range_bytes_ = size_;
}

int64_t Ranges::bytes_done() const {
  int64_t total = 0;
  for (const Range& range : ranges_) total += range.done;
  return total;
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text.remove_prefix(kUnit.size());
  const std::optional<int64_t> first = take_number(text, '-');
  const std::optional<int64_t> last = first ? take_number(text, '/') : std::nullopt;
  if (!last || *last < *first || text.empty()) return std::nullopt;
  if (text == "*") return ContentRange{*first, *last, std::nullopt};
  const std::optional<int64_t> total = take_number(text, ' ');
  if (!total || !text.empty() || *total <= *last) return std::nullopt;
  return ContentRange{*first, *last, total};
}

}  // namespace rudder::hub
