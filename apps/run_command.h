// Runs a command of a program: what both programs, rudder and rudder-bench, do around one.
#pragma once

namespace rudder::apps {

// A command parses its own flags, prints its own errors to standard error and returns the process's
// exit status: 0, 1 (failed) or 2 (bad arguments). argv[0] is its name ("serve").
using RunCommand = int (*)(int argc, char** argv);

// The status of `run`. What it throws is told, with the limit of ulimit that it met if it met one:
// status 1.
int run_command(RunCommand run, int argc, char** argv);

}  // namespace rudder::apps
