// contain: runs a piece of work and turns what it throws into an Error, so that an exception ends
// the one message or request that the work was for, and not the thread and the process with it.
// Every loop that serves others' work wraps each turn in it: I/O threads, the engine thread,
// executors' workers, dispatch and consumer threads. Any thread.
#pragma once

#include <type_traits>
#include <utility>

#include "rudder/base/result.h"

namespace rudder {

// Base of what contain() lets through: a test that throws to report its own failure throws one.
struct Uncontained {};

// What the exception in hand means: kOverloaded for want of memory, else kInternal with its text.
// Called in a catch block only.
Error error_in_hand() noexcept;

// The Result of `work`, a Result<void> where it gives nothing.
template <typename Work>
auto contain(Work&& work) {
  using Given = std::invoke_result_t<Work>;
  using Contained = std::conditional_t<std::is_void_v<Given>, Result<void>, Given>;
  try {
    if constexpr (std::is_void_v<Given>) {
      std::forward<Work>(work)();
      return Contained();
    } else {
      return Contained(std::forward<Work>(work)());
    }
  } catch (const Uncontained&) {
    throw;
  } catch (...) {
    return Contained(tl::unexpected<Error>(error_in_hand()));
  }
}

}  // namespace rudder
