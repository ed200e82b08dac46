// Which bytes of a file are there: the file in ranges that several connections fetch side by side,
// each from its beginning on. Written to text beside an incomplete file, so that a later process
// goes on where this one was cut. Plain value; whoever shares it holds a lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::hub {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t done = 0;  // bytes from `begin` on that are there

  int64_t next() const { return begin + done; }
  bool is_complete() const { return next() == end; }
};

class Ranges {
 public:
  // All but the last have `range_bytes` (> 0). A file without bytes has no range.
  Ranges(int64_t size, int64_t range_bytes);

  // As to_text wrote it for a file of this size; anything else is nullopt, and the file begins
  // anew.
  static std::optional<Ranges> from_text(std::string_view text, int64_t size);
  std::string to_text() const;

  // One range over all, of which the bytes at the beginning stay: for a server that knows no
  // ranges.
  void join();

  std::vector<Range>& all() { return ranges_; }
  const std::vector<Range>& all() const { return ranges_; }
  int64_t size() const { return size_; }
  int64_t bytes_done() const;
  bool is_complete() const { return bytes_done() == size_; }

 private:
  int64_t size_ = 0;
  int64_t range_bytes_ = 0;
  std::vector<Range> ranges_;
};

// What a server says that it sends.
struct ContentRange {
  int64_t first = 0;
  int64_t last = 0;
  std::optional<int64_t> total;  // nullopt: it does not know
};

// "bytes 0-99/1234" or "bytes 0-99/*"; nullopt where it is no such thing.
std::optional<ContentRange> parse_content_range(std::string_view text);

}  // namespace rudder::hub
