// FlightRecorder: an Executor that passes every call on to another and writes down what passed:
// plans, masks and results, in the order of the calls. Called by the engine thread, like any
// executor.
//
// What is kept is the end of the run, in a ring of files, each of which can be replayed alone: when
// a file is long enough the recorder asks for a fresh start (step::Executor) and begins the next
// one; the oldest goes. Normative text: docs/contracts/step.md, "Recordings".
//
// A recording that fails (a full disk) ends with an error in the log; the executor goes on.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "rudder/record/recording.h"
#include "rudder/step/executor.h"

namespace rudder::record {

class FlightRecorder final : public step::Executor {
 public:
  static constexpr int32_t kMaxFiles = 4;
  // A fresh start computes what runs again: no file asks for it before it has so many steps.
  static constexpr int64_t kLeastSteps = 256;

  // Of an executor that has not run a step yet: a replay starts from an empty KV cache. Creates the
  // folder where it is missing; files in it are named after the time, the process and their number.
  // All together have at most `max_bytes`. kIo.
  static Result<std::unique_ptr<FlightRecorder>> create(std::unique_ptr<step::Executor> executor,
                                                        const std::string& folder,
                                                        const std::string& model,
                                                        int64_t max_bytes);

  // Of the files that there are, oldest first; the last is being written.
  const std::deque<std::string>& paths() const { return paths_; }

  step::Capacity capacity() const override { return executor_->capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override;
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override;
  Result<step::StepResult> collect(step::Ticket ticket) override;
  bool ready(step::Ticket ticket) override { return executor_->ready(ticket); }
  bool wants_fresh_start() const override;
  bool has_fresh_starts() const override { return true; }
  void start_afresh() override;

 private:
  FlightRecorder(std::unique_ptr<step::Executor> executor, std::string prefix, std::string model,
                 int64_t max_bytes);

  Result<void> begin_file();
  void write_tables();
  void note_tables(const step::StepPlan& plan);
  void fail_with(const Error& error);
  template <typename T>
  void write(const T& record);

  const std::unique_ptr<step::Executor> executor_;
  const std::string prefix_;  // of the files' paths
  const RecordingHeader header_;
  const int64_t max_file_bytes_;
  std::deque<std::string> paths_;
  int32_t num_files_ = 0;                    // ever
  std::unique_ptr<RecordingWriter> writer_;  // null once the recording has failed
  bool is_cut_ = false;                      // steps of this file are missing at its end
  int64_t num_steps_ = 0;                    // of this file
  step::StepId last_step_ = 0;
  // The executor's tables, which outlive a fresh start: a file begins with an edit of each row.
  std::map<int32_t, step::TapEdit> rows_;
  std::map<int32_t, step::CaptureEdit> sets_;
};

}  // namespace rudder::record
