#include "rudder/base/log.h"

#include <pthread.h>
#include <spdlog/details/log_msg.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rudder/base/terminal_text.h"

namespace rudder {
namespace {

constexpr size_t kMaxQueuedBytes = size_t{1} << 20;
constexpr size_t kLineBytes = 128;  // of a line beside its text
constexpr auto kFlushTimeout = std::chrono::seconds(1);

std::atomic<LogLevel> g_level{LogLevel::kInfo};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

// Writes to the descriptor of standard error. A FILE would not do: its lock is held while a write
// blocks, and exit() waits for it.
class StderrSink : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const std::string_view text(line.data(), line.size());
    if (!is_terminal_) return write_all(text);
    const size_t begin = message.color_range_start;
    const size_t end = message.color_range_end;
    std::string coloured(text.substr(0, begin));
    coloured.append(color_of(message.level)).append(text.substr(begin, end - begin));
    coloured.append("\033[m").append(text.substr(end));
    write_all(coloured);
  }
  void flush_() override {}

  static std::string_view color_of(spdlog::level::level_enum level) {
    switch (level) {
      case spdlog::level::info:
        return "\033[32m";
      case spdlog::level::warn:
        return "\033[33m\033[1m";
      case spdlog::level::err:
        return "\033[31m\033[1m";
      default:
        return "\033[36m";
    }
  }

  static void write_all(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
      if (written < 0 && errno != EINTR) return;  // nobody can be told
      if (written > 0) text.remove_prefix(static_cast<size_t>(written));
    }
  }

  const bool is_terminal_ = isatty(STDERR_FILENO) == 1;
};

// The lines that wait and the thread that writes them. Never destroyed: other threads may log until
// the process ends, and a write that blocks must not keep it from ending.
class LogWriter {
 public:
  LogWriter() {
    sink_.set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    // Signals are for the thread that waits for them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] {
      pthread_setname_np(pthread_self(), "rudder-log");
      run();
    }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void push(LogLevel level, std::string_view text) {
    Line line = {level, spdlog::log_clock::now(), terminal_text(text)};
    {
      const std::lock_guard lock(mutex_);
      if (is_forked_) return write(line);
      const size_t bytes = kLineBytes + text.size();
      if (queued_bytes_ + bytes > kMaxQueuedBytes) {
        ++num_dropped_;
        return;
      }
      queued_bytes_ += bytes;
      ++num_pushed_;
      queue_.push_back(std::move(line));
    }
    changed_.notify_one();
  }

  void flush() {
    std::unique_lock lock(mutex_);
    if (is_forked_) return;
    const uint64_t last = num_pushed_;
    written_.wait_for(lock, kFlushTimeout, [&] { return num_written_ >= last; });
  }

  uint64_t num_dropped() {
    const std::lock_guard lock(mutex_);
    return num_dropped_;
  }

  // A forked process has no thread that writes: it writes its lines itself.
  void before_fork() { mutex_.lock(); }
  void after_fork(bool is_child) {
    is_forked_ = is_forked_ || is_child;
    mutex_.unlock();
  }

 private:
  struct Line {
    LogLevel level;
    spdlog::log_clock::time_point at;
    std::string text;
  };

  void write(const Line& line) {
    sink_.log({line.at, {}, "rudder", to_spdlog(line.level), line.text});
    sink_.flush();
  }

  void run() {
    std::vector<Line> batch;
    uint64_t told_dropped = 0;
    while (true) {
      uint64_t dropped = 0;
      {
        std::unique_lock lock(mutex_);
        num_written_ += batch.size();
        batch.clear();
        written_.notify_all();
        changed_.wait(lock, [this] { return !queue_.empty(); });
        batch.swap(queue_);
        queued_bytes_ = 0;
        dropped = num_dropped_;
      }
      for (const Line& line : batch) write(line);
      if (dropped > told_dropped) {
        write({LogLevel::kWarn, spdlog::log_clock::now(),
               fmt::format("{} lines of this log were dropped: it is not read fast enough",
                           dropped - told_dropped)});
        told_dropped = dropped;
      }
    }
  }

  StderrSink sink_;   // the writing thread's
  std::mutex mutex_;  // of all below
  std::condition_variable changed_, written_;
  std::vector<Line> queue_;
  size_t queued_bytes_ = 0;
  uint64_t num_pushed_ = 0;
  uint64_t num_written_ = 0;
  uint64_t num_dropped_ = 0;
  bool is_forked_ = false;
};

LogWriter& writer() {
  static LogWriter* const instance = [] {
    auto* made = new LogWriter;
    pthread_atfork([] { writer().before_fork(); }, [] { writer().after_fork(false); },
                   [] { writer().after_fork(true); });
    std::atexit(flush_logs);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  g_level = level;
}

bool log_enabled(LogLevel level) {
  return level >= g_level.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view text) {
  if (log_enabled(level)) writer().push(level, text);
}

void flush_logs() {
  writer().flush();
}

uint64_t log_lines_dropped() {
  return writer().num_dropped();
}

}  // namespace rudder
