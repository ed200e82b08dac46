// BoundedQueue: the requests that wait to run, within bounds of their number and of their tokens. A
// request takes a place before it is posted and gives it back once, when its first choice starts to
// run or when it ends waiting. A full queue makes room for a
// request by displacing those of lower priority, the last to come first; they are the engine
// thread's to end. A request that would wait for longer than it may is refused. Any thread.
// EngineCore owns it; it outlives every Place.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/request.h"
#include "rudder/engine/service_rate.h"

namespace rudder::engine {

// What a request wants of the queue.
struct PlaceAsk {
  int64_t tokens = 0;  // of the prompts, each choice counted
  int32_t tenant = 0;
  int32_t priority = 0;     // lower runs first
  int64_t max_wait_us = 0;  // 0: it may wait for ever
};

// Of a request, as the client asks.
PlaceAsk place_ask(const Request& request);

class BoundedQueue {
 public:
  // A taken place; gives itself back when destroyed.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { *this = std::move(other); }
    Place& operator=(Place&& other) noexcept;
    ~Place();

    // No effect after the first of them, nor when it was displaced.
    void release();              // its request ended waiting
    void start(int64_t now_us);  // its request begins to run
    bool is_held() const;        // neither given back nor displaced

   private:
    friend class BoundedQueue;
    Place(BoundedQueue* owner, int32_t priority, uint64_t request, int64_t tokens)
        : owner_(owner), priority_(priority), request_(request), tokens_(tokens) {}
    void give_back(const int64_t* started_us);

    BoundedQueue* owner_ = nullptr;
    int32_t priority_ = 0;
    uint64_t request_ = 0;
    int64_t tokens_ = 0;
  };

  struct Taken {
    Place place;
    std::vector<RequestId> displaced;  // have lost theirs
  };

  BoundedQueue(int64_t max_requests, int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  // Every bound is checked and taken as one; a request that is refused displaces none. kOverloaded
  // when one is passed. Ids are never used again.
  Result<Taken> take(const PlaceAsk& ask, RequestId id, int64_t now_us);
  // The verdict take() would give now.
  Result<void> would_accept(const PlaceAsk& ask, int64_t now_us) const;
  QueueLoad load() const;
  // How long what waits now takes to begin, as it was served lately; 0 while that is not known.
  int64_t expected_wait_us(int64_t now_us) const;

 private:
  // The last of them is the first to be displaced.
  struct Rank {
    int32_t priority = 0;
    uint64_t request = 0;
    bool operator==(const Rank&) const = default;
    auto operator<=>(const Rank& other) const {
      return std::tie(priority, request) <=> std::tie(other.priority, other.request);
    }
  };
  struct Waiting {
    int64_t tokens = 0;
    int32_t tenant = 0;
  };

  Result<void> check(const PlaceAsk& ask, int64_t now_us) const;
  bool fits(const QueueLoad& load, int64_t tokens) const;
  QueueLoad without_lower(const PlaceAsk& ask) const;
  QueueLoad ahead_of(const PlaceAsk& ask) const;
  void count(const Rank& rank, const Waiting& waiting, int sign);

  const int64_t max_requests_;
  const int64_t max_tokens_;
  mutable std::mutex mutex_;
  std::map<Rank, Waiting> waiting_;
  std::map<int32_t, std::map<int32_t, QueueLoad>> loads_;  // by tenant and priority; none is empty
  QueueLoad load_;
  ServiceRate rate_;
};

}  // namespace rudder::engine
