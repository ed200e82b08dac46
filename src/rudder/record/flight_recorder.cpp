#include "rudder/record/flight_recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <filesystem>
#include <set>
#include <utility>

#include "rudder/base/log.h"

namespace rudder::record {
namespace {

// As 20250131T235959.
std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text = {};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%S", &parts)};
}

}  // namespace

Result<std::unique_ptr<FlightRecorder>> FlightRecorder::create(
    std::unique_ptr<step::Executor> executor, const std::string& folder, const std::string& model,
    int64_t max_bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return fail(ErrorCode::kIo, fmt::format("the folder cannot be created: {}", error.message()),
                folder);
  }
  const std::string prefix = fmt::format("{}/{}-{}", folder, utc_now(), ::getpid());
  std::unique_ptr<FlightRecorder> recorder(
      new FlightRecorder(std::move(executor), prefix, model, max_bytes));
  RUDDER_TRY_VOID(recorder->begin_file());
  return recorder;
}

FlightRecorder::FlightRecorder(std::unique_ptr<step::Executor> executor, std::string prefix,
                               std::string model, int64_t max_bytes)
    : executor_(std::move(executor)),
      prefix_(std::move(prefix)),
      header_{.model = std::move(model), .capacity = executor_->capacity()},
      max_file_bytes_(max_bytes / kMaxFiles) {}

// In place of the oldest, where there are as many as there may be.
Result<void> FlightRecorder::begin_file() {
  writer_.reset();
  if (std::ssize(paths_) == kMaxFiles) {
    std::error_code ignored;  // somebody has taken it away: as well
    std::filesystem::remove(paths_.front(), ignored);
    paths_.pop_front();
  }
  const std::string path = fmt::format("{}-{:04}.steps", prefix_, ++num_files_);
  RUDDER_TRY(writer_, RecordingWriter::create(path, header_, max_file_bytes_));
  paths_.push_back(path);
  is_cut_ = false;
  num_steps_ = 0;
  return {};
}

// The rest of a file, an eighth of it, is for the steps that are in flight when it is to end.
bool FlightRecorder::wants_fresh_start() const {
  if (writer_ == nullptr || num_steps_ < kLeastSteps) return false;
  return is_cut_ || writer_->num_bytes() > max_file_bytes_ / 8 * 7;
}

void FlightRecorder::start_afresh() {
  if (const Result<void> begun = begin_file(); !begun) return fail_with(begun.error());
  write_tables();
}

// As a step of nothing but edits.
void FlightRecorder::write_tables() {
  if (rows_.empty() && sets_.empty()) return;
  step::StepPlan plan;
  plan.id = last_step_;
  std::set<int64_t> written;  // of dictionaries, each of which several rows may use
  for (const auto& [row, edit] : rows_) {
    for (step::TableDictionary& dictionary : plan.tap_edits.emplace_back(edit).dictionaries) {
      dictionary.is_new = written.insert(dictionary.first_float).second;
    }
  }
  for (const auto& [set, edit] : sets_) plan.capture_edits.push_back(edit);
  write(plan);
  step::StepResult result;
  result.id = plan.id;
  write(result);
}

void FlightRecorder::note_tables(const step::StepPlan& plan) {
  for (const step::TapEdit& edit : plan.tap_edits) {
    if (edit.program == nullptr) {
      rows_.erase(edit.tap_row);
    } else {
      rows_[edit.tap_row] = edit;
    }
  }
  for (const step::CaptureEdit& edit : plan.capture_edits) {
    if (edit.set == nullptr) {
      sets_.erase(edit.capture_set);
    } else {
      sets_[edit.capture_set] = edit;
    }
  }
}

void FlightRecorder::fail_with(const Error& error) {
  log_error("the recording ends here: {}", error.to_string());
  writer_.reset();
}

template <typename T>
void FlightRecorder::write(const T& record) {
  if (writer_ == nullptr || is_cut_) return;
  if (const Result<void> written = writer_->write(record); !written) {
    return fail_with(written.error());
  }
  if (!writer_->is_full()) return;
  log_warn("the recording {} is as long as it may be: steps are missing behind it", paths_.back());
  is_cut_ = true;
}

Result<step::Ticket> FlightRecorder::launch(std::shared_ptr<const step::StepPlan> plan) {
  last_step_ = plan->id;
  ++num_steps_;
  note_tables(*plan);
  write(*plan);
  return executor_->launch(std::move(plan));
}

Result<void> FlightRecorder::supply(step::Ticket ticket, std::span<const uint32_t> masks) {
  write(SuppliedMasks{ticket.id, {masks.begin(), masks.end()}});
  return executor_->supply(ticket, masks);
}

Result<step::StepResult> FlightRecorder::collect(step::Ticket ticket) {
  Result<step::StepResult> result = executor_->collect(ticket);
  if (result) write(*result);
  return result;
}

}  // namespace rudder::record
