// rudder bench: starts rudder-bench, a program of its own that lies beside this one.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "commands.h"
#include "report_error.h"

namespace rudder::apps {

int run_bench(int /*argc*/, char** argv) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string program = (self.parent_path() / "rudder-bench").string();
  argv[0] = program.data();
  ::execv(program.c_str(), argv);
  return report_failure(
      {ErrorCode::kIo,
       fmt::format("the measurements are a program of their own, which does not start: {}",
                   std::error_code(errno, std::generic_category()).message()),
       program});
}

}  // namespace rudder::apps
