// How a command tells a person that it failed, and the exit status that goes with it.
#pragma once

#include "rudder/base/result.h"

namespace rudder::apps {

int report_bad_arguments(const Error& error);  // returns 2
int report_failure(const Error& error);        // returns 1

}  // namespace rudder::apps
