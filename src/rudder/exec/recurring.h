// Recurring: what is made for steps of a kind once such a step comes for the second time, and
// forgotten when many others were used since. The executor's worker thread uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "rudder/base/result.h"
#include "rudder/ops/ops.h"

namespace rudder::exec {

template <typename Key, typename Value>
class Recurring {
 public:
  explicit Recurring(size_t most) : most_(most) {}

  // Whether a step of this kind came before; it is known from now on.
  bool was_seen(const Key& key) {
    const auto [entry, is_new] = entries_.try_emplace(key);
    entry->second.last_use = ++num_uses_;
    return !is_new;
  }

  // Of a kind that was seen, with its key, which stays where it is as long as the value.
  std::pair<const Key&, Value&> find(const Key& key) {
    auto& [kept, entry] = *entries_.find(key);
    return {kept, entry.value};
  }
  const Value& at(const Key& key) const { return entries_.at(key).value; }

  // What is made from now on may have been made before.
  bool has_forgotten() const { return has_forgotten_; }

  // Forgets what was used longest ago, where there is too much. It may be running: the device is
  // waited for, whose Error this returns.
  Result<void> make_room(ops::Ops& ops) {
    if (entries_.size() <= most_) return {};
    const std::unique_ptr<ops::Event> done = ops.make_event();
    ops.record(*done);
    RUDDER_TRY_VOID(done->wait());
    has_forgotten_ = true;
    while (entries_.size() > most_) {
      entries_.erase(std::ranges::min_element(
          entries_, {}, [](const auto& entry) { return entry.second.last_use; }));
    }
    return {};
  }

 private:
  struct Entry {
    Value value;
    int64_t last_use = 0;
  };

  const size_t most_;
  std::map<Key, Entry> entries_;
  int64_t num_uses_ = 0;
  bool has_forgotten_ = false;
};

}  // namespace rudder::exec
