#include "rudder/remote/open_requests.h"

#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"

namespace rudder::remote {

void deliver(std::vector<DueEvents> due) {
  for (DueEvents& one : due) {
    for (engine::Event& event : one.events) {
      const Result<void> told = contain([&] { one.request->sink(std::move(event)); });
      if (!told) log_error("who waited for an event threw: {}", told.error().to_string());
    }
  }
}

void OpenRequests::add(std::shared_ptr<OpenRequest> request) {
  work_ += request->work.tokens();
  ++num_waiting_;
  waiting_tokens_ += request->tokens;
  const uint64_t id = request->id;
  requests_.emplace(id, std::move(request));
}

bool OpenRequests::cancel(uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  found->second->is_cancelled = true;
  return true;
}

void OpenRequests::note_begin(OpenRequest& request) {
  if (request.has_begun()) return;
  request.frame = {};
  --num_waiting_;
  waiting_tokens_ -= request.tokens;
}

DueEvents OpenRequests::take(uint64_t id, std::vector<engine::Event> events) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return {};
  DueEvents due{.request = found->second, .events = {}};
  OpenRequest& request = *due.request;
  due.events.reserve(events.size());
  for (engine::Event& event : events) {
    const auto choice = static_cast<size_t>(event.choice);
    if (choice >= request.finished.size() || request.finished[choice]) continue;
    if (event.finish) {
      request.finished[choice] = true;
      ++request.num_finished;
    }
    work_ -= request.work.tokens();
    request.work.note(event);
    work_ += request.work.tokens();
    event.id = engine::RequestId(id);
    due.events.push_back(std::move(event));
  }
  if (!due.events.empty()) note_begin(request);
  if (request.num_finished == static_cast<int32_t>(request.finished.size())) {
    requests_.erase(found);
  }
  return due;
}

DueEvents OpenRequests::end(const std::shared_ptr<OpenRequest>& request,
                            engine::FinishReason reason, const Error& error) {
  std::vector<engine::Event> events;
  for (size_t choice = 0; choice < request->finished.size(); ++choice) {
    if (request->finished[choice]) continue;
    engine::Event& event = events.emplace_back();
    event.choice = static_cast<int32_t>(choice);
    event.finish = reason;
    event.error = error;
  }
  return take(request->id, std::move(events));
}

DueEvents OpenRequests::end(uint64_t id, engine::FinishReason reason, const Error& error) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? DueEvents{} : end(found->second, reason, error);
}

std::vector<DueEvents> OpenRequests::end_those(
    const std::function<const Error*(const OpenRequest&)>& is_due, engine::FinishReason reason) {
  std::vector<std::pair<std::shared_ptr<OpenRequest>, const Error*>> ended;
  for (const auto& [id, request] : requests_) {
    if (const Error* error = is_due(*request)) ended.emplace_back(request, error);
  }
  std::vector<DueEvents> due;
  due.reserve(ended.size());
  for (const auto& [request, error] : ended) due.push_back(end(request, reason, *error));
  return due;
}

void OpenRequests::each(const std::function<void(OpenRequest&)>& visit) {
  for (const auto& [id, request] : requests_) visit(*request);
}

}  // namespace rudder::remote
