#include "rudder/base/thread_stacks.h"

#include <dirent.h>
#include <fmt/format.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <mutex>
#include <string_view>
#include <vector>

#include "rudder/base/program_symbols.h"

namespace rudder {
namespace {

constexpr size_t kMaxFrames = 40;

// One question at a time. The handler answers only the thread that is asked, and only while it is
// asked: one that comes late finds another state and writes nothing.
enum class Asked : uint8_t { kNobody, kAsked, kAnswering };
struct Question {
  std::atomic<Asked> state{Asked::kNobody};
  std::atomic<pid_t> thread{0};
  std::array<void*, kMaxFrames> frames = {};
  size_t num_frames = 0;
  sem_t answered;

  Question() { sem_init(&answered, 0, 0); }
};

Question& question() {
  static Question asked;
  return asked;
}

pid_t own_id() {
  return static_cast<pid_t>(syscall(SYS_gettid));
}

_Unwind_Reason_Code note_frame(_Unwind_Context* context, void* to) {
  auto& asked = *static_cast<Question*>(to);
  if (asked.num_frames == asked.frames.size()) return _URC_END_OF_STACK;
  int is_before = 0;
  uintptr_t at = _Unwind_GetIPInfo(context, &is_before);
  if (at == 0) return _URC_END_OF_STACK;
  if (is_before == 0) --at;  // of a call, not of what it returns to
  asked.frames[asked.num_frames++] = reinterpret_cast<void*>(at);
  return _URC_NO_REASON;
}

void answer(int /*signal*/) {
  const int kept_errno = errno;
  Question& asked = question();
  Asked expected = Asked::kAsked;
  if (asked.thread == own_id() &&
      asked.state.compare_exchange_strong(expected, Asked::kAnswering)) {
    asked.num_frames = 0;
    _Unwind_Backtrace(note_frame, &asked);
    asked.state = Asked::kNobody;
    sem_post(&asked.answered);
  }
  errno = kept_errno;
}

bool wait_for(sem_t& semaphore, int milliseconds) {
  timespec until = {};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += int64_t{milliseconds} * 1'000'000;
  until.tv_sec += until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  while (sem_timedwait(&semaphore, &until) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

// False: it does not answer.
bool ask(pid_t thread) {
  Question& asked = question();
  if (asked.state != Asked::kNobody)
    return false;  // an earlier one began to answer and never ended
  asked.thread = thread;
  asked.state = Asked::kAsked;
  if (syscall(SYS_tgkill, getpid(), thread, SIGURG) != 0) {
    asked.state = Asked::kNobody;
    return false;
  }
  if (wait_for(asked.answered, kThreadAnswerMs)) return true;
  Asked expected = Asked::kAsked;
  if (asked.state.compare_exchange_strong(expected, Asked::kNobody)) return false;
  return wait_for(asked.answered, kThreadAnswerMs);  // it has begun meanwhile
}

std::string text_of(pid_t thread, const char* file) {
  std::ifstream in(fmt::format("/proc/self/task/{}/{}", thread, file));
  std::string text;
  std::getline(in, text);
  return text;
}

// "sleeping" and the like, from the letter behind the name in /proc/.../stat.
std::string_view state_of(pid_t thread) {
  const std::string stat = text_of(thread, "stat");
  const size_t end = stat.rfind(')');
  switch (end == std::string::npos || end + 2 >= stat.size() ? '?' : stat[end + 2]) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "in the kernel, which no signal ends";
    case 't':
    case 'T':
      return "stopped";
    default:
      return "state unknown";
  }
}

std::vector<pid_t> thread_ids() {
  std::vector<pid_t> ids;
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return ids;
  while (const dirent* entry = readdir(tasks)) {
    if (const auto id = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10)); id > 0) {
      ids.push_back(id);
    }
  }
  closedir(tasks);
  std::ranges::sort(ids);
  return ids;
}

// What the thread that has answered was in. In front are the handler and what called it.
std::string functions_of(const Question& told, const ProgramSymbols& symbols) {
  std::string out;
  bool is_own = true;
  for (size_t i = 0; i < told.num_frames; ++i) {
    const std::string name = symbols.name_of(told.frames[i]);
    is_own = is_own && (i == 0 || (i < 3 && (name.find("restore_rt") != std::string::npos ||
                                             name.find("::answer(") != std::string::npos)));
    if (!is_own) out += (out.empty() ? "" : " < ") + name;
  }
  return out;
}

}  // namespace

std::vector<std::string> describe_threads() {
  static std::mutex turn;
  const std::lock_guard lock(turn);
  static const bool handles = [] {
    question();  // made before a handler may want it
    struct sigaction action = {};
    action.sa_handler = answer;
    action.sa_flags = SA_RESTART;
    return sigaction(SIGURG, &action, nullptr) == 0;
  }();
  const ProgramSymbols symbols = ProgramSymbols::read();
  std::vector<std::string> out;
  for (const pid_t id : thread_ids()) {
    if (id == own_id()) continue;
    const std::string where =
        handles && ask(id)
            ? functions_of(question(), symbols)
            : fmt::format("it does not answer; the kernel has it in {}", text_of(id, "wchan"));
    out.push_back(fmt::format("{} ({}, {}): {}", text_of(id, "comm"), id, state_of(id), where));
  }
  return out;
}

}  // namespace rudder
