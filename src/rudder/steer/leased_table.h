// LeasedTable: values that are known by a key for as long as somebody holds a lease on them. A
// lease is a pointer to the value; with the last one the entry goes. Any thread; leases may outlive
// the table.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace rudder::steer {

template <typename Key, typename Value, typename Hash = std::hash<Key>>
class LeasedTable {
 public:
  using Lease = std::shared_ptr<const Value>;

  // A lease on the value that is known by this key; `value` is, where none was.
  Lease keep(const Key& key, Lease value) {
    const Value* const raw = value.get();
    // Made before the lock is taken: what ends a lease takes it too.
    Lease lease(raw, End{entries_, key, std::move(value)});
    const std::lock_guard lock(entries_->mutex);
    std::weak_ptr<const Value>& entry = entries_->by_key[key];
    if (Lease known = entry.lock()) return known;
    entry = lease;
    return lease;
  }

  // Null: nothing is known by this key.
  Lease find(const Key& key) const {
    const std::lock_guard lock(entries_->mutex);
    const auto found = entries_->by_key.find(key);
    return found == entries_->by_key.end() ? nullptr : found->second.lock();
  }

  size_t size() const {
    const std::lock_guard lock(entries_->mutex);
    return entries_->by_key.size();
  }

 private:
  struct Entries {
    std::mutex mutex;
    std::unordered_map<Key, std::weak_ptr<const Value>, Hash> by_key;
  };
  // Ends a lease whose last pointer is gone. The entry may be another value's by then.
  struct End {
    std::shared_ptr<Entries> entries;
    Key key;
    Lease value;

    void operator()(const Value*) {
      {
        const std::lock_guard lock(entries->mutex);
        const auto found = entries->by_key.find(key);
        if (found != entries->by_key.end() && found->second.expired()) {
          entries->by_key.erase(found);
        }
      }
      value.reset();
    }
  };

  const std::shared_ptr<Entries> entries_ = std::make_shared<Entries>();
};

}  // namespace rudder::steer
