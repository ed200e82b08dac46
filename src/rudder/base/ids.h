// Strong integer ids: the compiler refuses a SlotId where a function takes a BlockId. Plain values;
// any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace rudder {

template <typename Tag, typename Int>
struct StrongId {
  using Value = Int;
  Int value = 0;

  constexpr StrongId() = default;
  constexpr explicit StrongId(Int v) : value(v) {}
  constexpr auto operator<=>(const StrongId&) const = default;  // NOLINT(modernize-use-nullptr)
};

}  // namespace rudder

template <typename Tag, typename Int>
struct std::hash<rudder::StrongId<Tag, Int>> {
  size_t operator()(const rudder::StrongId<Tag, Int>& id) const noexcept {
    return std::hash<Int>{}(id.value);
  }
};
