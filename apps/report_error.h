// Prints the error of a command for a person, and gives the exit status for it.
#pragma once

#include "rudder/base/result.h"

namespace rudder::apps {

int report_bad_arguments(const Error& error);  // returns 2
int report_failure(const Error& error);        // returns 1

}  // namespace rudder::apps
