// NarrowGraphs: graphs that tap few macro-ops. Those that every step with taps can run (wide ones)
// tap the macro-ops of a kind in all layers, because nobody knows at their capture where programs
// will be; and a macro-op that is tapped for no token takes longer than a plain one. So steps that
// go on using the same few macro-ops get a graph that taps these.
//
// A graph that taps more than a step uses gives it the same bits (tap.T1): which one runs is a
// matter of time alone. A step takes the narrowest that taps what it uses. A new one is captured
// when its steps have come back often, when it would be clearly narrower than what they run, and a
// while behind the one before; where there is no room, only in the place of one that nobody runs
// any more. So programs that come and go cost few captures, and steps whose taps are part of what
// others tapped need none. That follows from the steps alone, not from a clock: ranks of a group,
// and stages, capture in the same steps.
//
// Used by the executor's worker thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "rudder/base/result.h"
#include "rudder/ops/ops.h"
#include "rudder/tap/passage.h"

namespace rudder::exec {

struct NarrowRules {
  int64_t least_steps = 32;   // that used the macro-ops, before a graph is captured of them
  int64_t spacing = 64;       // steps with taps from one capture to the next
  size_t most_graphs = 64;    // the one used longest ago goes first,
  int64_t idle_steps = 1024;  // and not before so many steps with taps went by without it
  size_t most_counted = 256;  // steps that differ, likewise the oldest
};

// Kind: what tells graphs apart beside the macro-ops that they tap; ordered. Value: a graph, or
// several of one step.
template <typename Kind, typename Value>
class NarrowGraphs {
 public:
  struct Key {
    Kind kind;
    tap::PassageSet tapped;
    auto operator<=>(const Key&) const = default;
  };
  // The key stays where it is as long as the value.
  struct Found {
    const Key* key = nullptr;  // null: none
    Value* value = nullptr;
    explicit operator bool() const { return key != nullptr; }
  };

  explicit NarrowGraphs(const NarrowRules& rules) : rules_(rules), last_capture_(-rules.spacing) {}

  // A step with taps, once.
  void note(const Key& key) {
    ++num_steps_;
    Count& count = counts_[key];
    ++count.steps;
    count.last_use = num_steps_;
    if (counts_.size() > rules_.most_counted) counts_.erase(oldest_of(counts_));
  }

  // The narrowest that taps what the step uses, of those that serves(value) says can run it.
  template <typename Serves>
  Found find(const Key& key, Serves serves) {
    Found found;
    Graph* used = nullptr;
    for (auto& [other, graph] : graphs_) {
      const bool is_wide_enough = other.kind == key.kind && other.tapped.contains(key.tapped);
      if (!is_wide_enough || !serves(graph.value)) continue;
      if (found && other.tapped.size() >= found.key->tapped.size()) continue;
      found = {&other, &graph.value};
      used = &graph;
    }
    if (used != nullptr) used->last_use = num_steps_;
    return found;
  }

  // Whether the step gets a graph of its own, where what it would run taps `num_tapped` macro-ops.
  bool is_due(const Key& key, int32_t num_tapped) const {
    if (num_tapped == 0 || 4 * key.tapped.size() > 3 * num_tapped) return false;
    if (num_steps_ - last_capture_ < rules_.spacing) return false;
    const auto count = counts_.find(key);
    if (count == counts_.end() || count->second.steps < rules_.least_steps) return false;
    const bool has_room = graphs_.size() < rules_.most_graphs || graphs_.contains(key);
    return has_room || num_steps_ - oldest_of(graphs_)->second.last_use > rules_.idle_steps;
  }
  // It, to be filled. What goes for it may be running: the device is waited for, whose Error this
  // returns.
  Result<Found> make(const Key& key, ops::Ops& ops) {
    last_capture_ = num_steps_;
    if (graphs_.size() >= rules_.most_graphs && !graphs_.contains(key)) {
      const std::unique_ptr<ops::Event> done = ops.make_event();
      ops.record(*done);
      RUDDER_TRY_VOID(done->wait());
      const auto oldest = oldest_of(graphs_);
      counts_.erase(oldest->first);  // it has to come back as often as any other
      graphs_.erase(oldest);
    }
    auto& [kept, graph] = *graphs_.try_emplace(key).first;
    graph.last_use = num_steps_;
    return Found{&kept, &graph.value};
  }

 private:
  struct Count {
    int64_t steps = 0;
    int64_t last_use = 0;
  };
  struct Graph {
    Value value;
    int64_t last_use = 0;
  };

  template <typename Map>
  static auto oldest_of(const Map& map) {
    return std::ranges::min_element(map, {},
                                    [](const auto& entry) { return entry.second.last_use; });
  }

  const NarrowRules rules_;
  std::map<Key, Count> counts_;
  std::map<Key, Graph> graphs_;
  int64_t num_steps_ = 0;
  int64_t last_capture_;  // the step of it
};

}  // namespace rudder::exec
