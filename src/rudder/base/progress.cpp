#include "rudder/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "rudder/base/clock.h"

namespace rudder {
namespace {

constexpr int64_t kTerminalIntervalUs = 100'000;
constexpr int64_t kLineIntervalUs = 5'000'000;
constexpr int kBarWidth = 30;

int64_t now_us() {
  return SteadyClock().now_us();
}

}  // namespace

Progress::Progress(std::string label, bool unit_is_bytes)
    : label_(std::move(label)),
      unit_is_bytes_(unit_is_bytes),
      is_terminal_(isatty(STDERR_FILENO) != 0),
      start_us_(now_us()),
      last_draw_us_(start_us_) {}

Progress::~Progress() {
  if (is_terminal_ && total_ > 0 && !drawn_complete_) std::fputc('\n', stderr);
}

void Progress::update(int64_t done, int64_t total) {
  done_ = done;
  total_ = total;
  const int64_t now = now_us();
  const int64_t interval = is_terminal_ ? kTerminalIntervalUs : kLineIntervalUs;
  const bool complete = done >= total;
  if (drawn_complete_ || (!complete && now - last_draw_us_ < interval)) return;
  drawn_complete_ = complete;
  last_draw_us_ = now;
  draw(static_cast<double>(now - start_us_) * 1e-6);
}

void Progress::draw(double seconds) {
  const double fraction =
      total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 0.0;
  constexpr double kMiB = 1024.0 * 1024.0;
  const double scale = unit_is_bytes_ ? 1.0 / kMiB : 1.0;
  const double done = static_cast<double>(done_) * scale;
  const double rate = seconds > 0 ? done / seconds : 0.0;
  const char* unit = unit_is_bytes_ ? " MiB" : "";
  const std::string figures =
      fmt::format("{:3.0f}% {:.0f}/{:.0f}{} {:.1f}{}/s {:.1f}s", fraction * 100, done,
                  static_cast<double>(total_) * scale, unit, rate, unit, seconds);
  if (!is_terminal_) {
    fmt::print(stderr, "{}: {}\n", label_, figures);
    return;
  }
  const int filled = static_cast<int>(fraction * kBarWidth);
  fmt::print(stderr, "\r{} [{}{}] {}", label_, std::string(filled, '#'),
             std::string(kBarWidth - filled, '.'), figures);
  if (drawn_complete_) std::fputc('\n', stderr);
  std::fflush(stderr);
}

}  // namespace rudder
