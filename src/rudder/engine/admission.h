// Admission: the bounded queue, as a count of requests and of prompt tokens. A request takes a
// place before it is posted and gives it back once, when its first choice starts to run or when it
// ends waiting. Any thread. EngineCore owns it; it outlives every Place.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "rudder/base/result.h"

namespace rudder::engine {

class Admission {
 public:
  struct Load {
    int64_t requests = 0;
    int64_t tokens = 0;  // of the prompts, each choice counted
  };

  // A taken place; gives itself back when destroyed.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { *this = std::move(other); }
    Place& operator=(Place&& other) noexcept;
    ~Place();

    void release();  // no effect after the first

   private:
    friend class Admission;
    Place(Admission* owner, int64_t tokens) : owner_(owner), tokens_(tokens) {}

    Admission* owner_ = nullptr;
    int64_t tokens_ = 0;
  };

  Admission(int64_t max_requests, int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  // Both bounds are checked and taken as one. kOverloaded when either is passed.
  Result<Place> take(int64_t tokens);
  // The verdict take() would give now.
  Result<void> would_accept(int64_t tokens) const;
  Load load() const;

 private:
  Result<void> check(int64_t tokens) const;

  const int64_t max_requests_;
  const int64_t max_tokens_;
  mutable std::mutex mutex_;
  Load load_;
};

}  // namespace rudder::engine
