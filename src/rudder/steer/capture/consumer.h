// Consumer: an object that captured rows are handed to, for example one that writes files. For each
// choice of a request that captures to it, the dispatcher opens a session. The dispatcher calls
// parse_options on any thread and everything else on a thread that the consumer has for itself, so
// a consumer may take its time. A session that throws has failed; other sessions go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/capture/result.h"
#include "rudder/steer/capture/spec.h"
#include "rudder/tap/capture.h"
#include "rudder/tensor/dtype.h"

namespace rudder::steer::capture {

// One token's captured rows in a chunk.
struct Record {
  int32_t position = 0;
  size_t begin = 0;  // bytes, in Chunk.data
};

// Records of one request, in the order of their positions, copied out of the executor's memory.
// Immutable once shared: all consumers of the request read the same.
struct Chunk {
  std::vector<Record> records;
  std::unique_ptr<std::byte[]> data;
  size_t bytes = 0;
};

// A row of every record of a session.
struct RowLayout {
  tap::CapturePoint point;
  size_t offset = 0;  // bytes, from the record's begin
  size_t bytes = 0;
  int32_t width = 0;  // elements
  tensor::DType dtype = tensor::DType::kBF16;
  // Of a row of the residual: whose streams it has, all of them or one; of numbers that streams are
  // written by: all.
  std::optional<tap::ResidualForm> residual = {};
  std::optional<int32_t> stream = {};

  bool has_streams() const { return residual && residual->streams > 1 && !stream; }
};
// Of a whole row the part that is this stream; the row itself where it has no streams.
RowLayout stream_of(RowLayout whole, int32_t stream);

// What files and answers say of rows of a residual that has several streams:
// `"residual":{"kind":…,"streams":n,"stream":"all"|k,"names":[…],"layout":[…]}`. Empty of other
// rows.
std::string residual_json(const RowLayout& layout);

// Attention patterns of every record of a session: [heads, keys].
struct PatternLayout {
  tap::CapturePattern pattern;
  size_t offset = 0;  // bytes, from the record's begin
};

// Those that the ask names.
std::vector<RowLayout> row_layouts(const CaptureSpec& spec, const Ask& ask,
                                   const tap::Geometry& geometry);
std::vector<PatternLayout> pattern_layouts(const CaptureSpec& spec, const Ask& ask,
                                           const tap::Geometry& geometry);

struct SessionInfo {
  std::string request_id;
  int32_t tenant = 0;
  int32_t choice = 0;
  int32_t prompt_len = 0;
  bool stream = false;
  bool by_operator = false;
  tensor::DType dtype = tensor::DType::kBF16;  // of activations, and of patterns
  std::vector<RowLayout> rows;                 // by (layer, site)
  std::vector<PatternLayout> patterns = {};    // by layer
  std::shared_ptr<const ConsumerOptions> options;
  // Sends the values of the token at this position to the client.
  std::function<void(int32_t position, CapturedValues values)> emit;
};

// A session's part of a chunk.
struct RowBatch {
  std::shared_ptr<const Chunk> chunk;
  std::vector<Record> records;

  std::span<const std::byte> row(const Record& record, const RowLayout& layout) const {
    return {chunk->data.get() + record.begin + layout.offset, layout.bytes};
  }
  // The weights with which a head that the layout has reads the record's token: one a key, as many
  // as the position has.
  std::span<const std::byte> pattern(const Record& record, const PatternLayout& layout,
                                     int32_t head, size_t item_bytes) const;
};

// The consumer's name is filled in by the dispatcher.
using SessionDone = std::function<void(ConsumerResult)>;

class Session {
 public:
  virtual ~Session() = default;
  // May keep the batch: its memory counts against the consumer's queue until it is given back. An
  // Error ends the session: its result is that error, and finish(cancelled) follows.
  virtual Result<void> take(RowBatch batch) = 0;
  // No more rows come. Calls `done` once, at once or later, on any thread. Cancelled: what is not
  // yet published is dropped, and the result is of no interest. The dispatcher lets go of the
  // session after this call: one that calls `done` later keeps itself alive.
  virtual void finish(bool cancelled, SessionDone done) = 0;
};

class Consumer : public OptionsParser {
 public:
  // Rows that a session will take.
  struct Upcoming {
    Session* session = nullptr;
    const RowBatch* batch = nullptr;
  };

  virtual Result<std::shared_ptr<Session>> open(SessionInfo info) = 0;
  // How many records it works on at once, of whichever sessions; 0: each session for itself. What
  // waits for it is then shown to it before each session takes its own; a session may still get
  // rows that were not shown, and may end before it gets those that were.
  virtual size_t records_ahead() const { return 0; }
  virtual void read_ahead(std::span<const Upcoming> /*upcoming*/) {}
  // No more calls come: sessions that have finished deliver now what they hold back.
  virtual void drain() {}
};

// "bfloat16", "float16", "float32", "int16": as numpy and the packed form of vectors spell them.
std::string_view dtype_spelling(tensor::DType dtype);

// A row as floats: `out` has the row's width.
void decode_row(std::span<const std::byte> row, tensor::DType dtype, std::span<float> out);
// The row of `dtype` that begins at this element of `rows`, which have data.
void decode_row(const tap::CapturedRows& rows, int64_t begin, tensor::DType dtype,
                std::span<float> out);

}  // namespace rudder::steer::capture
