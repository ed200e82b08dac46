#include "report_error.h"

#include <fmt/format.h>

#include <cstdio>

namespace rudder::apps {

int report_bad_arguments(const Error& error) {
  fmt::print(stderr, "rudder: {}\n", error.message);
  return 2;
}

int report_failure(const Error& error) {
  fmt::print(stderr, "rudder: {}\n", error.to_string());
  return 1;
}

}  // namespace rudder::apps
