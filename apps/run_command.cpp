#include "run_command.h"

#include <fmt/format.h>

#include <utility>

#include "report_error.h"
#include "rudder/base/contain.h"

namespace rudder::apps {

int run_command(RunCommand run, int argc, char** argv) {
  const Result<int> status = contain([&]() -> Result<int> { return run(argc, argv); });
  if (status) return *status;
  Error error = status.error();
  error.message =
      fmt::format("{}: the system gives no more memory or threads (ulimit -v, -u)", error.message);
  return report_failure(error);
}

}  // namespace rudder::apps
