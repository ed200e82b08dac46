#include "rudder/engine/thought_gate.h"

#include <algorithm>
#include <utility>

namespace rudder::engine {

ThoughtGate::State ThoughtGate::begun() const {
  if (thoughts_->open) return State::kThoughts;
  const size_t blanks = held_.find_first_not_of(" \n\t\r");
  if (blanks == std::string::npos) return State::kStart;
  const std::string_view text = std::string_view(held_).substr(blanks);
  if (text.starts_with(thoughts_->begin)) return State::kThoughts;
  return thoughts_->begin.starts_with(text) ? State::kStart : State::kRest;
}

std::string ThoughtGate::flush() {
  std::string held = std::exchange(held_, {});
  return state_ == State::kStart ? held : std::string();
}

ThoughtGate::Parts ThoughtGate::push(std::string_view delta) {
  if (!thoughts_ || state_ == State::kRest) return {{}, std::string(delta)};
  std::string all = std::exchange(held_, {});
  const size_t seen = state_ == State::kThoughts ? all.size() : 0;  // and given out
  all += delta;
  if (state_ == State::kStart) {
    held_ = all;
    state_ = begun();
    if (state_ == State::kStart) return {};
    held_.clear();
    if (state_ == State::kRest) return {{}, std::move(all)};
  }
  const size_t end = all.find(thoughts_->end);
  if (end != std::string::npos) {
    state_ = State::kRest;
    const size_t behind = end + thoughts_->end.size();
    return {all.substr(seen, behind - seen), all.substr(behind)};
  }
  // The mark may come in pieces.
  const size_t kept = std::min(all.size(), thoughts_->end.size() - 1);
  held_ = all.substr(all.size() - kept);
  return {all.substr(seen), {}};
}

}  // namespace rudder::engine
