#include "rudder/engine/request_table.h"

#include <algorithm>
#include <utility>

namespace rudder::engine {

OpenRequest& RequestTable::add(std::unique_ptr<OpenRequest> request) {
  const RequestId id = request->id;
  return *requests_.emplace(id, std::move(request)).first->second;
}

void RequestTable::add_choice(OpenRequest& request, OpenChoice choice) {
  const sched::SequenceId sequence(next_sequence_++);
  targets_.emplace(sequence, Target{&request, static_cast<int32_t>(request.choices.size())});
  request.sequences.push_back(sequence);
  request.choices.push_back(std::move(choice));
}

OpenRequest* RequestTable::find(RequestId id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

const RequestTable::Target* RequestTable::target(sched::SequenceId sequence) const {
  const auto found = targets_.find(sequence);
  return found == targets_.end() ? nullptr : &found->second;
}

std::vector<RequestId> RequestTable::ids() const {
  std::vector<RequestId> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, request] : requests_) ids.push_back(id);
  std::ranges::sort(ids, {}, &RequestId::value);
  return ids;
}

void RequestTable::forget_if_finished(const OpenRequest& request) {
  if (request.num_open > 0) return;
  requests_.erase(request.id);
  note_finished();
}

}  // namespace rudder::engine
