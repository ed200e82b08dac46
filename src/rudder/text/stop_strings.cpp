#include "rudder/text/stop_strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

namespace rudder::text {

Result<std::shared_ptr<const StopSet>> StopSet::compile(std::vector<std::string> strings,
                                                        const StopLimits& limits) {
  if (strings.size() > limits.max_strings) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("has {} strings, the limit is {}", strings.size(), limits.max_strings),
                "stop");
  }
  size_t bytes = 0;
  for (size_t i = 0; i < strings.size(); ++i) {
    bytes += strings[i].size();
    if (strings[i].empty()) {
      return fail(ErrorCode::kInvalidArgument, "must not be empty", fmt::format("stop[{}]", i));
    }
  }
  if (bytes > limits.max_bytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("strings have {} bytes, the limit is {}", bytes, limits.max_bytes),
                "stop");
  }
  auto set = std::make_shared<StopSet>();
  set->strings_ = std::move(strings);
  set->build();
  return std::shared_ptr<const StopSet>(std::move(set));
}

void StopSet::build() {
  nodes_.assign(1, Node{});
  for (size_t index = 0; index < strings_.size(); ++index) {
    int32_t state = 0;
    for (const char c : strings_[index]) {
      const auto byte = static_cast<uint8_t>(c);
      int32_t next = child(state, byte);
      if (next < 0) {
        next = static_cast<int32_t>(nodes_.size());
        auto& edges = nodes_[state].edges;
        edges.insert(std::lower_bound(edges.begin(), edges.end(), std::pair(byte, int32_t{0})),
                     {byte, next});
        const int32_t depth = nodes_[state].depth + 1;
        nodes_.push_back(Node{{}, 0, depth, -1});
      }
      state = next;
    }
    if (nodes_[state].match < 0) nodes_[state].match = static_cast<int32_t>(index);
  }
  // Breadth first, so that a node's fail state is complete before the node is.
  std::deque<int32_t> queue{0};
  while (!queue.empty()) {
    const int32_t state = queue.front();
    queue.pop_front();
    for (const auto& [byte, next] : nodes_[state].edges) {
      nodes_[next].fail = state == 0 ? 0 : step(nodes_[state].fail, byte);
      if (nodes_[next].match < 0) nodes_[next].match = nodes_[nodes_[next].fail].match;
      queue.push_back(next);
    }
  }
}

int32_t StopSet::child(int32_t state, uint8_t byte) const {
  const auto& edges = nodes_[state].edges;
  const auto it = std::lower_bound(edges.begin(), edges.end(), std::pair(byte, int32_t{0}));
  return it != edges.end() && it->first == byte ? it->second : -1;
}

int32_t StopSet::step(int32_t state, uint8_t byte) const {
  for (;;) {
    if (const int32_t next = child(state, byte); next >= 0) return next;
    if (state == 0) return 0;
    state = nodes_[state].fail;
  }
}

StopMatcher::StopMatcher(std::shared_ptr<const StopSet> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {}

std::string_view StopMatcher::push(std::string_view delta) {
  if (match_) return {};
  if (stops_ == nullptr || stops_->strings().empty()) {
    out_ = delta;
    return out_;
  }
  out_.swap(held_);
  held_.clear();
  for (size_t i = 0; i < delta.size(); ++i) {
    state_ = stops_->step(state_, static_cast<uint8_t>(delta[i]));
    const int32_t index = stops_->nodes_[state_].match;
    if (index < 0) continue;
    const size_t length = stops_->strings()[index].size();
    out_ += delta.substr(0, i + 1);
    match_ = StopMatch{static_cast<size_t>(index), consumed_ + i + 1 - length};
    if (!include_stop_) out_.resize(out_.size() - length);
    return out_;
  }
  consumed_ += delta.size();
  out_ += delta;
  const auto keep = static_cast<size_t>(stops_->nodes_[state_].depth);
  held_.assign(out_, out_.size() - keep);
  out_.resize(out_.size() - keep);
  return out_;
}

std::string_view StopMatcher::flush() {
  out_.swap(held_);
  held_.clear();
  return out_;
}

}  // namespace rudder::text
