// ReadAhead: what was read of a session's batches before the session takes them, in their order.
// The consumer's thread uses it.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "rudder/base/result.h"
#include "rudder/steer/capture/consumer.h"

namespace rudder::steer::capture {

template <typename Told>
class ReadAhead {
 public:
  void push(const RowBatch& batch, Result<Told> told) {
    read_.push_back({batch.chunk.get(), std::move(told)});
  }
  // Empty when the next batch that was read is another: then none of them is of use any more.
  std::optional<Result<Told>> take(const RowBatch& batch) {
    if (read_.empty() || read_.front().chunk != batch.chunk.get()) {
      read_.clear();
      return {};
    }
    Result<Told> told = std::move(read_.front().told);
    read_.pop_front();
    return told;
  }

 private:
  struct Read {
    const Chunk* chunk = nullptr;  // of the batch
    Result<Told> told;
  };

  std::deque<Read> read_;
};

}  // namespace rudder::steer::capture
