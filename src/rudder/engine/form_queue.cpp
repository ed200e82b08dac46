#include "rudder/engine/form_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rudder::engine {
namespace {

tl::unexpected<Error> too_many() {
  return fail(ErrorCode::kOverloaded, "too many grammars wait to be compiled");
}

tl::unexpected<Error> closing() {
  return fail(ErrorCode::kCancelled, "the server is shutting down");
}

}  // namespace

void FormQueue::compile(const constraint::GrammarSpec& spec, int32_t tenant, Done done) {
  if (const std::optional<constraint::CompiledGrammar> known = source_.find(spec)) {
    return done(*known);
  }
  std::vector<Done> late;
  enum class Turn : uint8_t { kNow, kBeside, kLater, kNever, kClosed };
  const Turn turn = [&] {
    const std::lock_guard lock(mutex_);
    if (closed_) return Turn::kClosed;
    take_late(&late);
    Line& line = lines_[tenant];
    // The source compiles it once for all who ask.
    if (std::ranges::find(line.running, spec) != line.running.end()) return Turn::kBeside;
    if (line.running.size() < kMaxRunning) {
      line.running.push_back(spec);
      return Turn::kNow;
    }
    const auto same = std::ranges::find(line.queued, spec, &Job::spec);
    if (same != line.queued.end()) {
      same->waiting.push_back(std::move(done));
      return Turn::kLater;
    }
    if (line.queued.size() >= kMaxQueued) return Turn::kNever;
    Job& job = line.queued.emplace_back(Job{spec, clock_.now_us() + kMaxWaitUs, {}});
    job.waiting.push_back(std::move(done));
    return Turn::kLater;
  }();
  for (const Done& waited : late) waited(too_many());
  switch (turn) {
    case Turn::kNow: {
      Job job{spec, 0, {}};
      job.waiting.push_back(std::move(done));
      return start(std::move(job), tenant);
    }
    case Turn::kBeside:
      return source_.compile(spec, std::move(done));
    case Turn::kLater:
      return;
    case Turn::kNever:
      return done(too_many());
    case Turn::kClosed:
      return done(closing());
  }
}

// It is among those that run. The first who waits gives its turn back.
void FormQueue::start(Job job, int32_t tenant) {
  const constraint::GrammarSpec spec = std::move(job.spec);
  source_.compile(spec, [this, spec, tenant, done = std::move(job.waiting.front())](
                            const constraint::CompiledGrammar& compiled) {
    finish(spec, tenant);
    done(compiled);
  });
  for (size_t i = 1; i < job.waiting.size(); ++i) {
    source_.compile(spec, std::move(job.waiting[i]));
  }
}

void FormQueue::finish(const constraint::GrammarSpec& spec, int32_t tenant) {
  std::vector<Done> late;
  std::vector<Job> next;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    take_late(&late);
    const auto line = lines_.find(tenant);
    std::vector<constraint::GrammarSpec>& running = line->second.running;
    running.erase(std::ranges::find(running, spec));
    std::deque<Job>& queued = line->second.queued;
    if (!queued.empty()) {
      next.push_back(std::move(queued.front()));
      queued.pop_front();
      running.push_back(next.back().spec);
    }
    if (running.empty()) lines_.erase(line);
  }
  for (const Done& waited : late) waited(too_many());
  for (Job& job : next) start(std::move(job), tenant);
}

// Lines are in order of their deadlines. A line with queued jobs has running ones.
void FormQueue::take_late(std::vector<Done>* late) {
  const int64_t now_us = clock_.now_us();
  for (auto& [tenant, line] : lines_) {
    while (!line.queued.empty() && line.queued.front().deadline_us <= now_us) {
      std::ranges::move(line.queued.front().waiting, std::back_inserter(*late));
      line.queued.pop_front();
    }
  }
}

void FormQueue::close() {
  std::unordered_map<int32_t, Line> lines;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    lines.swap(lines_);
  }
  for (auto& [tenant, line] : lines) {
    for (const Job& job : line.queued) {
      for (const Done& done : job.waiting) done(closing());
    }
  }
}

}  // namespace rudder::engine
