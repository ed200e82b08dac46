// FakeCaptures: a capture dispatcher without threads or consumers, for tests of the engine. It
// keeps the rows that it gets, and reports results when a test tells it to. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rudder/steer/capture/dispatcher.h"
#include "rudder/testing/fake_taps.h"

namespace rudder::testing {

class FakeCaptures final : public steer::capture::Dispatcher {
 public:
  // By position, the words of a token's record (fake_taps.h).
  using Records = std::map<int32_t, std::vector<uint64_t>>;

  explicit FakeCaptures(const tap::Geometry& geometry) : geometry_(geometry) {}

  Result<std::shared_ptr<const steer::capture::CaptureSpec>> spec(
      const boost::json::value* field, std::optional<steer::capture::StopWhen> stop_when) override;
  std::shared_ptr<const steer::capture::CaptureSpec> find(steer::capture::SpecId id) const override;
  steer::capture::CaptureId begin(steer::capture::CaptureRequest request) override;
  void push(std::shared_ptr<const tap::CapturedRows> rows,
            std::span<const steer::capture::CaptureId> by_seq) override;
  void end(steer::capture::CaptureId id) override { close(id, false); }
  void cancel(steer::capture::CaptureId id) override { close(id, true); }
  steer::capture::CaptureStats stats() const override { return {}; }

  // Requests may name the spec by its number from now on.
  void add(std::shared_ptr<const steer::capture::CaptureSpec> spec);
  // Answers one request that has ended; false when none has.
  bool answer_one();
  size_t num_open() const { return open_.size(); }
  // Of a choice, and forgets it.
  Records take(const std::string& request_id, int32_t choice);
  // What broke the contract, in words.
  const std::vector<std::string>& violations() const { return violations_; }

 private:
  void close(steer::capture::CaptureId id, bool cancelled);

  const tap::Geometry geometry_;
  uint64_t next_id_ = 1;
  std::map<steer::capture::SpecId, std::shared_ptr<const steer::capture::CaptureSpec>> specs_;
  std::map<steer::capture::CaptureId, steer::capture::CaptureRequest> open_;
  std::deque<steer::capture::CaptureRequest> ended_;
  std::map<std::pair<std::string, int32_t>, Records> records_;
  std::vector<std::string> violations_;
};

}  // namespace rudder::testing
