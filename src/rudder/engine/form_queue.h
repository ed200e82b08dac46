// FormQueue: which grammar is compiled next, and whose. Each tenant has a line of its own and at
// most kMaxRunning of its grammars at the source, which takes them in turn: so tenants take turns,
// and one with many slow grammars keeps another's waiting for no more than those that run. Any
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/constraint/grammar_source.h"

namespace rudder::engine {

class FormQueue {
 public:
  using Done = std::function<void(const constraint::CompiledGrammar&)>;

  static constexpr size_t kMaxRunning = 2;  // grammars of one tenant at the source
  static constexpr size_t kMaxQueued = 64;  // grammars of one tenant that wait
  static constexpr int64_t kMaxWaitUs = 10'000'000;

  // Both outlive it, but for calls of `done`: close() comes before the source goes.
  FormQueue(constraint::GrammarSource& source, const Clock& clock)
      : source_(source), clock_(clock) {}

  // As GrammarSource::compile. kOverloaded: too many of the tenant's wait, or this one waited for
  // kMaxWaitUs.
  void compile(const constraint::GrammarSpec& spec, int32_t tenant, Done done);
  // Ends what waits with kCancelled, and so what comes.
  void close();

 private:
  struct Job {
    constraint::GrammarSpec spec;
    int64_t deadline_us = 0;
    std::vector<Done> waiting;
  };
  struct Line {
    std::deque<Job> queued;
    std::vector<constraint::GrammarSpec> running;
  };

  void start(Job job, int32_t tenant);
  void finish(const constraint::GrammarSpec& spec, int32_t tenant);
  void take_late(std::vector<Done>* late);

  constraint::GrammarSource& source_;
  const Clock& clock_;
  std::mutex mutex_;
  std::unordered_map<int32_t, Line> lines_;  // none is empty
  bool closed_ = false;
};

}  // namespace rudder::engine
