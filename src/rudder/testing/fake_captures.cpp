#include "rudder/testing/fake_captures.h"

#include <fmt/format.h>

#include <utility>

namespace rudder::testing {

using steer::capture::CaptureId;
using steer::capture::CaptureRequest;

Result<std::shared_ptr<const steer::capture::CaptureSpec>> FakeCaptures::spec(
    const boost::json::value*, std::optional<steer::capture::StopWhen>) {
  return fail(ErrorCode::kInvalidArgument, "tests make their specs themselves", "capture");
}

std::shared_ptr<const steer::capture::CaptureSpec> FakeCaptures::find(
    steer::capture::SpecId id) const {
  const auto found = specs_.find(id);
  return found == specs_.end() ? nullptr : found->second;
}

void FakeCaptures::add(std::shared_ptr<const steer::capture::CaptureSpec> spec) {
  const steer::capture::SpecId id = spec->id;
  specs_[id] = std::move(spec);
}

CaptureId FakeCaptures::begin(CaptureRequest request) {
  const CaptureId id(next_id_++);
  open_.emplace(id, std::move(request));
  return id;
}

void FakeCaptures::push(std::shared_ptr<const tap::CapturedRows> rows,
                        std::span<const CaptureId> by_seq) {
  for (const tap::CapturedToken& token : rows->tokens) {
    const CaptureId id = by_seq[static_cast<size_t>(token.seq)];
    if (id.value == 0) continue;
    const auto found = open_.find(id);
    if (found == open_.end()) {
      violations_.push_back(fmt::format("rows for capture {}, which has ended", id.value));
      continue;
    }
    const CaptureRequest& request = found->second;
    Records& records = records_[{request.request_id, request.choice}];
    if (!records.empty() && records.rbegin()->first >= token.position) {
      violations_.push_back(
          fmt::format("position {} is captured after {}", token.position, records.rbegin()->first));
    }
    records[token.position] = captured_words(*rows, token, *request.spec->set, geometry_);
    if (request.on_event) {
      request.on_event(
          {.consumer = "fake", .choice = request.choice, .position = token.position, .values = {}});
    }
  }
}

void FakeCaptures::close(CaptureId id, bool cancelled) {
  const auto found = open_.find(id);
  if (found == open_.end()) {
    violations_.push_back(fmt::format("capture {} ends twice", id.value));
    return;
  }
  ended_.push_back(std::move(found->second));
  if (cancelled) records_.erase({ended_.back().request_id, ended_.back().choice});
  open_.erase(found);
}

bool FakeCaptures::answer_one() {
  if (ended_.empty()) return false;
  const CaptureRequest request = std::move(ended_.front());
  ended_.pop_front();
  steer::capture::ConsumerResult result;
  result.consumer = "fake";
  request.on_results({result});
  return true;
}

FakeCaptures::Records FakeCaptures::take(const std::string& request_id, int32_t choice) {
  const auto found = records_.find({request_id, choice});
  if (found == records_.end()) return {};
  Records records = std::move(found->second);
  records_.erase(found);
  return records;
}

}  // namespace rudder::testing
