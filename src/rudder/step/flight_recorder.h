// FlightRecorder: an Executor that passes every call on to another and writes down what passed:
// plans, masks and results, in the order of the calls. Called by the engine thread, like any
// executor.
//
// A recording that fails (a full disk) ends with an error in the log, one that reaches its bound
// with a warning; the executor goes on either way.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rudder/step/executor.h"
#include "rudder/step/recording.h"

namespace rudder::step {

class FlightRecorder final : public Executor {
 public:
  // Of an executor that has not run a step yet: a replay starts from an empty KV cache. Creates the
  // folder where it is missing, and in it a new file named after the time and the process. kIo.
  static Result<std::unique_ptr<FlightRecorder>> create(std::unique_ptr<Executor> executor,
                                                        const std::string& folder,
                                                        const std::string& model,
                                                        int64_t max_bytes);

  const std::string& path() const { return path_; }

  Capacity capacity() const override { return executor_->capacity(); }
  Result<Ticket> launch(std::shared_ptr<const StepPlan> plan) override;
  Result<void> supply(Ticket ticket, std::span<const uint32_t> masks) override;
  Result<StepResult> collect(Ticket ticket) override;
  bool ready(Ticket ticket) override { return executor_->ready(ticket); }

 private:
  FlightRecorder(std::unique_ptr<Executor> executor, std::string path,
                 std::unique_ptr<RecordingWriter> writer)
      : executor_(std::move(executor)), path_(std::move(path)), writer_(std::move(writer)) {}

  template <typename T>
  void write(const T& record);

  const std::unique_ptr<Executor> executor_;
  const std::string path_;
  std::unique_ptr<RecordingWriter> writer_;  // null once the recording has ended
};

}  // namespace rudder::step
