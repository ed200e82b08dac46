// Shared by the tests of capture: a small model's geometry, rows of an executor that exists only
// here, a consumer that records, a temporary folder.
#pragma once

#include <gtest/gtest.h>

#include <boost/json/fwd.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/dispatcher.h"

namespace rudder::steer::capture {

// Four layers, 24 wide; mlp_act is 48 wide, 40 in layer 2; no resid_mid in layer 3.
tap::Geometry small_geometry();
// The same whose layers 1 and 3 have routers: of 70 experts 3 are chosen, of 9 two.
tap::Geometry routed_geometry();
tap::Limits small_limits();

// The value at each place of each row is a function of where it is, so that any row can be checked
// wherever it turns up.
uint16_t row_value(uint64_t sequence, int32_t position, const tap::CapturePoint& point, int32_t i);
// Likewise of a router's rows, which are f32 or numbers of experts.
float router_value(uint64_t sequence, int32_t position, const tap::CapturePoint& point, int32_t i);
// Likewise of an attention pattern; of a key behind the position, too, which nobody should read.
uint16_t pattern_value(int32_t position, int32_t layer, int32_t head, int32_t key);

// Tokens of sequences as an executor would give them, in one step.
class FakeStep {
 public:
  explicit FakeStep(const tap::Geometry& geometry) : geometry_(geometry) {}
  // Rows of sequence `sequence` at [begin, end).
  FakeStep& add(CaptureId id, uint64_t sequence, const CaptureSpec& spec, int32_t begin,
                int32_t end);
  void push_to(Dispatcher& dispatcher);
  // As push_to, but the executor had no buffer.
  void push_lost_to(Dispatcher& dispatcher);
  // Set when the rows' memory is given back.
  std::shared_ptr<bool> watch_lease();

 private:
  std::shared_ptr<tap::CapturedRows> rows();
  void put_router(uint64_t sequence, int32_t position, const tap::CapturePoint& point, size_t at);

  const tap::Geometry& geometry_;
  std::vector<CaptureId> by_seq_;
  std::vector<tap::CapturedToken> tokens_;
  std::vector<uint16_t> data_;
  std::shared_ptr<bool> is_given_back_;
};

// Results of requests, as they come.
class Inbound {
 public:
  std::function<void(CaptureResults&&)> results();
  std::function<void(CaptureEvent&&)> events();
  // Waits for the next results; fails the test after 20 s.
  CaptureResults wait();
  bool is_empty();
  std::vector<CaptureEvent> take_events();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<CaptureResults> results_;
  std::vector<CaptureEvent> events_;
};

std::shared_ptr<const CaptureSpec> make_spec(Dispatcher& dispatcher, const std::string& json);

// Remembers what it got, does what its hook says.
class TestConsumer : public Consumer {
 public:
  struct Row {
    std::string request;
    int32_t position = 0;
    tap::CapturePoint point;
    std::vector<std::byte> bytes;
  };

  explicit TestConsumer(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const boost::json::object& fields, const AskedRows& rows,
      const std::string& path) const override;
  Result<std::shared_ptr<Session>> open(SessionInfo info) override;

  std::vector<Row> rows();
  size_t num_rows();

  std::function<Result<void>(const SessionInfo&)> on_take;  // before the rows are remembered
  std::function<void(const SessionInfo&)> on_open;
  std::function<void(const SessionInfo&)> on_finish;

 private:
  friend class TestSession;
  const std::string name_;
  std::mutex mutex_;
  std::vector<Row> rows_;
};

class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string path() const { return path_.string(); }
  std::string read(const std::string& name) const;  // fails the test when there is none
  // Files below it, without .partial, sorted.
  std::vector<std::string> files() const;

 private:
  std::filesystem::path path_;
};

// Waits until it holds; fails the test and gives false after 20 s.
bool eventually(const std::function<bool()>& holds);

// A gate that threads wait at until it is opened, once. A thread that still leaves `wait` when the
// gate is destroyed (the lane of a consumer that stalled) holds what it waits on. A gate that
// nobody opens fails the test, and lets whoever waits go on.
class Gate {
 public:
  explicit Gate(std::chrono::milliseconds patience = std::chrono::seconds(60))
      : patience_(patience) {}
  void wait() const;
  void open() { open_.set_value(); }

 private:
  const std::chrono::milliseconds patience_;
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

}  // namespace rudder::steer::capture
