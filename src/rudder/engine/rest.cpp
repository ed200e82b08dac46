#include "rudder/engine/rest.h"

#include <utility>

namespace rudder::engine {

std::vector<RequestId> Rest::end() {
  mode_.reset();
  is_at_rest_.store(false, std::memory_order_release);
  return std::exchange(held_, {});
}

}  // namespace rudder::engine
