// Where the threads of this process are: for the log of one that makes no progress, while it still
// stands as it stands. Each thread is sent SIGURG, whose handler walks the thread's stack; one that
// does not answer (it is stopped, or is in a system call that no signal ends) is told with what the
// kernel says of it. Any thread may ask; two that ask at once take turns.
#pragma once

#include <string>
#include <vector>

namespace rudder {

// One line a thread, but for the one that asks: "rudder-engine (123, sleeping): f() < g() < main",
// the innermost function first. Takes up to twice kThreadAnswerMs for each that does not answer.
std::vector<std::string> describe_threads();

inline constexpr int kThreadAnswerMs = 100;

}  // namespace rudder
