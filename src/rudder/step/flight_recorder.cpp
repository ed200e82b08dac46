#include "rudder/step/flight_recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <filesystem>
#include <utility>

#include "rudder/base/log.h"

namespace rudder::step {
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

Result<std::unique_ptr<FlightRecorder>> FlightRecorder::create(std::unique_ptr<Executor> executor,
                                                               const std::string& folder,
                                                               const std::string& model,
                                                               int64_t max_bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return fail(ErrorCode::kIo, fmt::format("the folder cannot be created: {}", error.message()),
                folder);
  }
  const std::string path = fmt::format("{}/{}-{}.steps", folder, utc_now(), ::getpid());
  RUDDER_TRY(auto writer, RecordingWriter::create(
                              path, {.model = model, .capacity = executor->capacity()}, max_bytes));
  return std::unique_ptr<FlightRecorder>(
      new FlightRecorder(std::move(executor), path, std::move(writer)));
}

template <typename T>
void FlightRecorder::write(const T& record) {
  if (writer_ == nullptr) return;
  const Result<void> written = writer_->write(record);
  if (!written) {
    log_error("the recording ends here: {}", written.error().to_string());
    writer_.reset();
  } else if (writer_->is_full()) {
    log_warn("the recording {} is as long as it may be and ends here", path_);
    writer_.reset();
  }
}

Result<Ticket> FlightRecorder::launch(std::shared_ptr<const StepPlan> plan) {
  write(*plan);
  return executor_->launch(std::move(plan));
}

Result<void> FlightRecorder::supply(Ticket ticket, std::span<const uint32_t> masks) {
  write(SuppliedMasks{ticket.id, {masks.begin(), masks.end()}});
  return executor_->supply(ticket, masks);
}

Result<StepResult> FlightRecorder::collect(Ticket ticket) {
  Result<StepResult> result = executor_->collect(ticket);
  if (result) write(*result);
  return result;
}

}  // namespace rudder::step
