#include "rudder/base/check.h"

#include <cstdlib>

#include "rudder/base/log.h"

namespace rudder {
namespace {
CheckHook g_hook = nullptr;
}  // namespace

void set_check_hook(CheckHook hook) {
  g_hook = hook;
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  const std::string text =
      fmt::format("{}:{}: check failed: {} {}", file, line, condition, message);
  if (g_hook != nullptr) g_hook(text);
  log_error("{}", text);
  flush_logs();
  std::abort();
}

}  // namespace rudder
