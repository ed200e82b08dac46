// RUDDER_CHECK: asserts an invariant of our own code. A failed check logs the source line and the
// message, then aborts. Never use it on data that comes from a request or a file; such code returns
// a Result (result.h). Any thread.
#pragma once

#include <fmt/core.h>

#include <string>

namespace rudder {

// Called instead of abort when set: tests install a hook that throws. Not thread safe to change.
using CheckHook = void (*)(const std::string& message);
void set_check_hook(CheckHook hook);

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace rudder

#define RUDDER_CHECK(condition, ...)                                                         \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::rudder::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define RUDDER_DCHECK(condition, ...) \
  do {                                \
  } while (false && (condition))
#else
#define RUDDER_DCHECK(condition, ...) RUDDER_CHECK(condition, __VA_ARGS__)
#endif
