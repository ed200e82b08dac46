// Router: which replica of an engine a request goes to: one that has a long beginning of its prompt
// cached and little to do. Any thread. Decision: docs/adr/0047-replicas.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rudder/cache/block_watcher.h"
#include "rudder/cache/cached_keys.h"
#include "rudder/cache/prefix_chain.h"
#include "rudder/engine/event.h"
#include "rudder/engine/open_work.h"
#include "rudder/engine/request.h"
#include "rudder/step/kv_groups.h"

namespace rudder::engine {

// A replica as the router weighs it, in tokens.
struct ReplicaLoad {
  int64_t open = 0;    // that it still has to do for its open requests (open_work.h)
  int64_t cached = 0;  // of the request's prompt, in its prefix cache
  bool takes = true;   // the request may go there
};

// To compute a token of a prompt costs as much as so many tokens of open requests do to it.
inline constexpr int64_t kCachedTokenWorth = 4;

// The one that takes the request with the least open - kCachedTokenWorth * cached; of equals the
// first from index `turn` on, round about. So a replica with a cached prefix is taken until it has
// kCachedTokenWorth tokens more to do for each cached one than another. At least one takes it.
size_t choose_replica(std::span<const ReplicaLoad> replicas, size_t turn);

// A request's share of a replica's load, from when it is placed until nobody holds it: what is left
// to do for it.
class LoadCharge {
 public:
  LoadCharge(std::shared_ptr<std::atomic<int64_t>> load, OpenWork work)
      : load_(std::move(load)), work_(std::move(work)) {
    load_->fetch_add(work_.tokens(), std::memory_order_relaxed);
  }
  ~LoadCharge() { load_->fetch_sub(work_.tokens(), std::memory_order_relaxed); }
  LoadCharge(const LoadCharge&) = delete;
  LoadCharge& operator=(const LoadCharge&) = delete;

  // On one thread at a time.
  void note(const Event& event) {
    const int64_t before = work_.tokens();
    work_.note(event);
    load_->fetch_add(work_.tokens() - before, std::memory_order_relaxed);
  }

 private:
  const std::shared_ptr<std::atomic<int64_t>> load_;
  OpenWork work_;
};

class Router {
 public:
  // `keys`: as the replicas' caches have them. `watchers`: of each replica, told what its cache
  // says; null: nobody is.
  Router(const cache::KeyOptions& keys, const step::KvGroups& groups,
         std::span<cache::BlockWatcher* const> watchers);

  // Follows the cache of a replica.
  cache::BlockWatcher* watcher(size_t replica) { return keys_[replica].get(); }

  struct Placement {
    size_t replica = 0;
    std::shared_ptr<LoadCharge> charge;
  };
  // `takes`: one a replica; at least one is true.
  Placement place(const RequestParams& params, const std::vector<bool>& takes);
  // Keys are those of caches of that model from now on.
  void rename_model(std::string identity);
  // Tokens at the beginning of the prompt that each replica has cached.
  std::vector<int64_t> cached_tokens(const RequestParams& params) const;
  int64_t load(size_t replica) const { return loads_[replica]->load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<const cache::ChainHasher> hasher() const;

  cache::KeyOptions key_options_;
  std::shared_ptr<const cache::ChainHasher> hasher_;          // of key_options_
  std::vector<std::unique_ptr<cache::CachedKeys>> keys_;      // by replica
  std::vector<std::shared_ptr<std::atomic<int64_t>>> loads_;  // likewise, in tokens
  mutable std::mutex mutex_;                                  // one request is placed at a time
  size_t turn_ = 0;
};

// The same sink; what passes is done, and what is left counts as load while somebody holds it.
EventSink charged(EventSink sink, std::shared_ptr<LoadCharge> charge);

}  // namespace rudder::engine
