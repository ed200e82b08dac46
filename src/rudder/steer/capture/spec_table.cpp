#include "rudder/steer/capture/spec_table.h"

#include <utility>

namespace rudder::steer::capture {

std::shared_ptr<const CaptureSpec> SpecTable::keep(CaptureSpec spec) {
  const SpecId id(next_id_.fetch_add(1, std::memory_order_relaxed));
  spec.id = id;
  spec.set = share(std::move(spec.set));
  return specs_.keep(id, std::make_shared<const CaptureSpec>(std::move(spec)));
}

// The set with these points and patterns that others use already, or this one.
std::shared_ptr<const tap::CaptureSet> SpecTable::share(
    std::shared_ptr<const tap::CaptureSet> set) {
  const std::lock_guard lock(mutex_);
  std::erase_if(sets_, [](const auto& known) { return known.expired(); });
  for (const std::weak_ptr<const tap::CaptureSet>& weak : sets_) {
    std::shared_ptr<const tap::CaptureSet> known = weak.lock();
    if (known != nullptr && *known == *set) return known;
  }
  sets_.push_back(set);
  return set;
}

}  // namespace rudder::steer::capture
