#include "report_error.h"

#include <fmt/format.h>

#include <cstdio>

#include "rudder/base/terminal_text.h"

namespace rudder::apps {

int report_bad_arguments(const Error& error) {
  fmt::print(stderr, "rudder: {}\n", terminal_text(error.message));
  return 2;
}

int report_failure(const Error& error) {
  fmt::print(stderr, "rudder: {}\n", terminal_text(error.to_string()));
  return 1;
}

}  // namespace rudder::apps
