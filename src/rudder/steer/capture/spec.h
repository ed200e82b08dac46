// The request field `capture`, checked: which rows of which tokens go to which consumer. All
// consumers of a request share one tap::CaptureSet, so that a row is gathered once however many
// want it; each has a mask of it. Made on a server thread, then immutable; any thread.
//
//   {"filesystem": {"sites": {"resid_post": [10, 12] | "all" | {"ranges": [[8, 12]]}},
//                   "positions": "last_prompt" | "all_prompt" | "all_generated" | "all" | [0, -1]
//                                | {"from": 3},
//                   "point": "pre" | "post", "stream": 0 | "all", <options of the consumer>}}
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/ids.h"
#include "rudder/base/result.h"
#include "rudder/steer/capture/watch.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/sequence_taps.h"

namespace rudder::steer::capture {

enum class Positions : uint8_t { kLastPrompt, kAllPrompt, kAllGenerated, kAll, kFrom, kListed };

inline constexpr size_t kMaxListedPositions = 65536;

// What a consumer made of its own fields of a request.
class ConsumerOptions {
 public:
  virtual ~ConsumerOptions() = default;
};

// What one consumer gets of a request.
struct Ask {
  int32_t consumer = 0;                            // its number in the dispatcher
  std::vector<int32_t> points;                     // into the spec's set, ascending
  std::vector<tap::CapturePattern> patterns = {};  // by layer ascending; the set has no fewer heads
  // Of a residual that has several: rows at residual points are of this stream alone. None: whole.
  std::optional<int32_t> stream = {};
  Positions positions = Positions::kLastPrompt;
  // For kListed; of kFrom the first one. Below 0: from the end of the prompt.
  std::vector<int32_t> listed;
  std::string path;  // of the field, for errors that need the prompt's length
  std::shared_ptr<const ConsumerOptions> options;
  bool by_operator = false;  // not of the request: a capture of every request
};

// By it a request names its capture: the dispatcher knows the spec of this number while somebody
// holds it. 0: none. It is a number, not a key of the content: names of vectors lead to what they
// named when the spec was made.
using SpecId = StrongId<struct SpecTag, uint64_t>;

struct CaptureSpec {
  SpecId id = {};                              // given by the dispatcher
  std::shared_ptr<const tap::CaptureSet> set;  // requests with equal points share it
  // Of the set's rows in a record, then of its patterns, in elements.
  std::vector<int64_t> offsets;
  std::vector<Ask> asks;
  // What the engine reads of the record of each generated token; no consumer gets it for that.
  std::optional<StopWhen> stop_when = {};
  int64_t stop_offset = 0;                          // of its row in a record, in elements
  int32_t stop_width = 0;                           // of that row
  tensor::DType stop_dtype = tensor::DType::kBF16;  // likewise

  bool is_for_engine_alone() const { return asks.empty() && stop_when.has_value(); }
};

// Elements of the row at the point that the consumer gets.
int32_t asked_width(const Ask& ask, tap::Point point, const tap::Geometry& geometry);

// Positions of one consumer, ascending and disjoint, for a prompt of this length. kInvalidArgument
// when a listed position lies before the prompt.
Result<std::vector<tap::PositionRange>> asked_ranges(const Ask& ask, int32_t prompt_len);
// Those of all consumers and of the engine together: SequenceTaps.captured.
Result<std::vector<tap::PositionRange>> captured_ranges(const CaptureSpec& spec,
                                                        int32_t prompt_len);
// kInvalidArgument at `keys` of an ask whose patterns may be captured at a position that has more
// keys than its rows: of a sequence of at most max_len tokens, the last of which is never read.
Result<void> check_pattern_keys(const CaptureSpec& spec, int32_t prompt_len, int32_t max_len);
bool contains(const std::vector<tap::PositionRange>& ranges, int32_t position);

// The rows of a consumer's `sites`.
struct AskedRows {
  std::vector<tap::CapturePoint> points;  // ascending
  std::vector<int32_t> widths;            // by point: elements that the consumer gets
};

// The row of a vector that the operator or a client registered by name, at a point.
using VectorLookup =
    std::function<Result<std::vector<float>>(std::string_view name, tap::Point point)>;

// A consumer as the parser needs it.
class OptionsParser {
 public:
  virtual ~OptionsParser() = default;
  virtual std::string_view name() const = 0;
  // Points whose rows options of the consumer need beside those of `sites`, which may then be
  // absent: ascending. `after`: the request's `point`. Errors as of parse_options.
  virtual Result<std::vector<tap::CapturePoint>> option_points(
      const boost::json::object& /*fields*/, bool /*after*/, const std::string& /*path*/) const {
    return std::vector<tap::CapturePoint>();
  }
  // Attention patterns that options of the consumer ask for, by layer ascending; likewise instead
  // of `sites`. Refuses the field "patterns" where the consumer does not take them.
  virtual Result<std::vector<tap::CapturePattern>> option_patterns(
      const boost::json::object& fields, const std::string& path) const;
  // Of the fields that are not `sites`, `positions`, `point` and `stream`; refuses those it does
  // not know. `rows` are those of `sites`. Error.where is a path below `path`. Any thread.
  virtual Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const boost::json::object& fields, const AskedRows& rows, const std::string& path) const = 0;
};

struct SpecContext {
  tap::Geometry geometry;
  tap::Limits limits;
  std::vector<const OptionsParser*> consumers;  // by number
};

// An ask with its points by name: it has no set yet.
struct ParsedAsk {
  Ask ask;
  std::vector<tap::CapturePoint> points;  // ascending, no two alike
};

// `field` is the value of "capture" at `path`. Errors name the field by its JSON path:
// "capture.filesystem.sites.resid_post[1]".
Result<std::vector<ParsedAsk>> parse_asks(const boost::json::value& field, const std::string& path,
                                          const SpecContext& context);
// One set for all of them and for what the engine reads. kInvalidArgument when a token's record has
// no room in the executor's buffer.
Result<CaptureSpec> combine(std::vector<ParsedAsk> asks, std::optional<StopWhen> stop_when,
                            const SpecContext& context);

}  // namespace rudder::steer::capture
