#include "run_command.h"

#include <boost/system/system_error.hpp>
#include <cerrno>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "report_error.h"
#include "rudder/base/contain.h"

namespace rudder::apps {
namespace {

// What the system gives no more of, by the value of errno; and, behind it, the limit to raise.
constexpr std::string_view kMemory = ": the system gives no more memory (ulimit -v)";
constexpr std::string_view kThreads =
    ": the system gives no more memory or threads (ulimit -v, -u)";
constexpr std::string_view kDescriptors = ": the system gives no more file descriptors (ulimit -n)";

std::string_view what_is_lacking(int code) {
  if (code == EMFILE || code == ENFILE) return kDescriptors;
  if (code == ENOMEM) return kMemory;
  return code == EAGAIN ? kThreads : "";
}

}  // namespace

int run_command(RunCommand run, int argc, char** argv) {
  std::string_view lacking;
  const Result<int> status = contain([&]() -> Result<int> {
    try {
      return run(argc, argv);
    } catch (const std::bad_alloc&) {
      lacking = kMemory;
      throw;
    } catch (const boost::system::system_error& error) {  // of sockets
      lacking = what_is_lacking(error.code().value());
      throw;
    } catch (const std::system_error& error) {  // of threads
      lacking = what_is_lacking(error.code().value());
      throw;
    }
  });
  if (status) return *status;
  Error error = status.error();
  error.message += lacking;
  return report_failure(error);
}

}  // namespace rudder::apps
