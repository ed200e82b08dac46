#include "rudder/constraint/grammar_compiler.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "rudder/base/log.h"
#include "rudder/constraint/form_engine.h"

namespace rudder::constraint {
namespace {

using Clock = std::chrono::steady_clock;
using Done = std::function<void(const CompiledGrammar&)>;

constexpr size_t kMaxQueued = 256;
// Schemas, grammars and expressions are walked by recursion, of bounded depth.
constexpr size_t kStackBytes = size_t{16} << 20;  // of address space
constexpr size_t kFailureBytes = 1024;            // what a remembered failure counts as
constexpr std::chrono::seconds kExitGrace{2};

std::string cache_key(const GrammarSpec& spec) {
  std::string key;
  key.push_back(static_cast<char>('0' + static_cast<int>(spec.kind)));
  key.push_back(static_cast<char>('0' + static_cast<int>(spec.space)));
  return key + spec.text;
}

// Least recently used first out; bounded in bytes, but for the newest entry.
class Cache {
 public:
  explicit Cache(size_t max_bytes) : max_bytes_(max_bytes) {}

  const CompiledGrammar* find(const std::string& key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->result;
  }

  void put(const std::string& key, CompiledGrammar result, size_t bytes) {
    if (const auto found = index_.find(key); found != index_.end()) remove(found->second);
    bytes += 2 * key.size();
    entries_.push_front({.key = key, .result = std::move(result), .bytes = bytes});
    index_.emplace(key, entries_.begin());
    bytes_ += bytes;
    while (bytes_ > max_bytes_ && entries_.size() > 1) remove(std::prev(entries_.end()));
  }

  size_t bytes() const { return bytes_; }
  size_t entries() const { return entries_.size(); }

 private:
  struct Entry {
    std::string key;
    CompiledGrammar result;
    size_t bytes = 0;
  };

  void remove(std::list<Entry>::iterator entry) {
    bytes_ -= entry->bytes;
    index_.erase(entry->key);
    entries_.erase(entry);
  }

  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::list<Entry> entries_;
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
};

struct Job {
  GrammarSpec spec;
  std::string key;
  Clock::time_point deadline;
  std::vector<Done> waiting;  // empty once it is answered
  bool running = false;
  std::atomic<bool> cancelled = false;  // nobody waits for it any longer
};

CompiledGrammar too_complex(double seconds) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("is too complex: it is not compiled within {} s", seconds));
}

}  // namespace

struct GrammarCompiler::Impl : std::enable_shared_from_this<GrammarCompiler::Impl> {
  Impl(std::unique_ptr<FormEngine> with_engine, const GrammarSettings& with)
      : settings(with),
        engine(std::move(with_engine)),
        cache(static_cast<size_t>(settings.form_bytes())) {}

  // Starts a thread that keeps this object alive.
  // False: the system has no room for it.
  bool start_thread(void (Impl::*body)(), size_t stack_bytes);
  void stop();
  void work();
  void watch();
  // Runs without the mutex. Bytes in `bytes`.
  CompiledGrammar build(const Job& job, size_t* bytes) const;
  // What the job's waiters are to be told, taken with the mutex and told without it.
  void finish(const std::shared_ptr<Job>& job, const CompiledGrammar& result,
              std::unique_lock<std::mutex>& lock);

  const GrammarSettings settings;
  const std::unique_ptr<FormEngine> engine;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> queue;
  std::unordered_map<std::string, std::shared_ptr<Job>> jobs;  // queued and running, by key
  Cache cache;
  GrammarStats stats;
  int num_threads = 0;
  bool stopping = false;
};

bool GrammarCompiler::Impl::start_thread(void (Impl::*body)(), size_t stack_bytes) {
  struct Start {
    std::shared_ptr<Impl> impl;
    void (Impl::*body)();
  };
  auto start = std::make_unique<Start>(Start{shared_from_this(), body});
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  const auto run = [](void* argument) -> void* {
    const std::unique_ptr<Start> self(static_cast<Start*>(argument));
    pthread_setname_np(pthread_self(), "rudder-grammar");
    (self->impl.get()->*self->body)();
    const std::lock_guard lock(self->impl->mutex);
    --self->impl->num_threads;
    self->impl->changed.notify_all();
    return nullptr;
  };
  pthread_t thread = {};
  const bool started = pthread_create(&thread, &attributes, run, start.get()) == 0;
  if (started) {
    static_cast<void>(start.release());  // the thread owns it
    ++num_threads;
  }
  pthread_attr_destroy(&attributes);
  return started;
}

CompiledGrammar GrammarCompiler::Impl::build(const Job& job, size_t* bytes) const {
  try {
    Fuel fuel(Fuel::kWork, Fuel::kBytes, &job.cancelled);
    Result<CompiledConstraint> compiled = engine->compile(job.spec, fuel);
    if (!compiled) return tl::unexpected(compiled.error());
    *bytes = compiled->bytes;
    return std::move(compiled->constraint);
  } catch (const std::exception& exception) {  // out of memory
    log_error("compiling a grammar: {}", exception.what());
    return fail(ErrorCode::kInvalidArgument, "is too complex");
  }
}

void GrammarCompiler::Impl::finish(const std::shared_ptr<Job>& job, const CompiledGrammar& result,
                                   std::unique_lock<std::mutex>& lock) {
  const std::vector<Done> waiting = std::exchange(job->waiting, {});
  lock.unlock();
  for (const Done& done : waiting) done(result);
  lock.lock();
}

void GrammarCompiler::Impl::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stopping || !queue.empty(); });
    if (stopping) return;
    const std::shared_ptr<Job> job = queue.front();
    queue.pop_front();
    job->running = true;
    lock.unlock();
    size_t bytes = 0;
    const Clock::time_point start = Clock::now();
    const CompiledGrammar result = build(*job, &bytes);
    const std::chrono::duration<double> took = Clock::now() - start;
    lock.lock();
    stats.compile_seconds += took.count();
    jobs.erase(job->key);
    if (job->cancelled) continue;  // its waiters were told, and the cache knows
    if (!result) ++stats.failures;
    cache.put(job->key, result, result ? bytes : kFailureBytes);
    finish(job, result, lock);
  }
}

// Answers jobs whose deadline is over, and stops those that run: the cache says that they are too
// complex.
void GrammarCompiler::Impl::watch() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    Clock::time_point next = Clock::now() + std::chrono::hours(1);
    std::shared_ptr<Job> late;
    for (const auto& [key, job] : jobs) {
      if (job->waiting.empty()) continue;
      if (job->deadline <= Clock::now()) late = job;
      next = std::min(next, job->deadline);
    }
    if (late == nullptr) {
      changed.wait_until(lock, next);
      continue;
    }
    if (late->running) {
      ++stats.timeouts;
      late->cancelled = true;
      const CompiledGrammar result = too_complex(settings.grammar_timeout);
      cache.put(late->key, result, kFailureBytes);
      finish(late, result, lock);
      continue;
    }
    std::erase(queue, late);
    jobs.erase(late->key);
    finish(late, fail(ErrorCode::kOverloaded, "too many grammars wait to be compiled"), lock);
  }
}

void GrammarCompiler::Impl::stop() {
  std::unique_lock lock(mutex);
  stopping = true;
  changed.notify_all();
  const auto open = std::exchange(jobs, {});
  queue.clear();
  for (const auto& [key, job] : open) {
    job->cancelled = true;
    finish(job, fail(ErrorCode::kCancelled, "the server is shutting down"), lock);
  }
  // Cancelled compiles end within milliseconds; one that does not keeps its state alive by itself.
  changed.wait_for(lock, kExitGrace, [&] { return num_threads == 0; });
}

GrammarCompiler::GrammarCompiler(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrammarCompiler::~GrammarCompiler() {
  impl_->stop();
}

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::create(const text::Tokenizer& tokenizer,
                                                                 int32_t vocab_size,
                                                                 std::vector<int32_t> stop_ids,
                                                                 const GrammarSettings& settings) {
  std::erase_if(stop_ids, [&](int32_t id) { return id < 0 || id >= vocab_size; });
  if (stop_ids.empty()) {
    return fail(ErrorCode::kUnsupported,
                "the model has no end-of-sequence token, which an output with a grammar ends with");
  }
  Vocabulary vocabulary;
  vocabulary.size = vocab_size;
  vocabulary.stop_ids = std::move(stop_ids);
  const int32_t num_tokens = std::min(vocab_size, tokenizer.vocab_size());
  vocabulary.token_bytes.resize(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < num_tokens; ++id) {
    if (std::ranges::find(vocabulary.stop_ids, id) != vocabulary.stop_ids.end()) continue;
    vocabulary.token_bytes[static_cast<size_t>(id)] =
        tokenizer.is_special(id) ? special_token_bytes(id) : std::string(tokenizer.token_bytes(id));
  }
  auto engine = std::make_unique<FormEngine>(std::move(vocabulary), settings.memo_bytes());
  auto impl = std::make_shared<Impl>(std::move(engine), settings);
  bool started = false;
  {
    const std::lock_guard lock(impl->mutex);
    started = impl->start_thread(&Impl::watch, size_t{1} << 20);
    for (int32_t i = 0; started && i < settings.grammar_threads; ++i) {
      started = impl->start_thread(&Impl::work, kStackBytes);
    }
  }
  std::unique_ptr<GrammarCompiler> compiler(new GrammarCompiler(std::move(impl)));
  if (started) return compiler;
  return fail(ErrorCode::kOverloaded,
              fmt::format("there is no room for {} threads of {} MiB of stack to compile in",
                          settings.grammar_threads, kStackBytes >> 20),
              "grammar-threads");
}

std::optional<CompiledGrammar> GrammarCompiler::find(const GrammarSpec& spec) {
  if (std::cmp_greater(spec.text.size(), impl_->settings.max_grammar)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("has {} bytes; the limit is {}", spec.text.size(),
                            impl_->settings.max_grammar));
  }
  const std::lock_guard lock(impl_->mutex);
  const CompiledGrammar* cached = impl_->cache.find(cache_key(spec));
  if (cached == nullptr) return std::nullopt;
  ++impl_->stats.hits;
  return *cached;
}

void GrammarCompiler::compile(const GrammarSpec& spec, Done done) {
  if (const std::optional<CompiledGrammar> cached = find(spec)) return done(*cached);
  {
    const std::lock_guard lock(impl_->mutex);
    std::string key = cache_key(spec);
    const auto found = impl_->jobs.find(key);
    if (found != impl_->jobs.end()) {
      ++impl_->stats.hits;
      found->second->waiting.push_back(std::move(done));
      impl_->changed.notify_all();  // its deadline may be over
      return;
    }
    if (!impl_->stopping && impl_->queue.size() < kMaxQueued) {
      ++impl_->stats.misses;
      const auto wait = std::chrono::duration<double>(impl_->settings.grammar_timeout);
      auto job = std::make_shared<Job>();
      job->spec = spec;
      job->key = key;
      job->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
      job->waiting.push_back(std::move(done));
      impl_->jobs.emplace(std::move(key), job);
      impl_->queue.push_back(std::move(job));
      impl_->changed.notify_all();
      return;
    }
  }
  done(fail(ErrorCode::kOverloaded, "too many grammars wait to be compiled"));
}

CompiledGrammar GrammarCompiler::compile(const GrammarSpec& spec) {
  auto promise = std::make_shared<std::promise<CompiledGrammar>>();
  std::future<CompiledGrammar> result = promise->get_future();
  compile(spec, [promise](const CompiledGrammar& compiled) { promise->set_value(compiled); });
  return result.get();
}

GrammarStats GrammarCompiler::stats() const {
  const std::lock_guard lock(impl_->mutex);
  GrammarStats stats = impl_->stats;
  stats.cache_bytes = impl_->cache.bytes();
  stats.cache_entries = impl_->cache.entries();
  stats.masks = impl_->engine->memo_stats();
  return stats;
}

void GrammarSettings::declare(SettingsTable& table) {
  table.section("constraint");
  table.add_bytes("grammar-cache", &grammar_cache,
                  "Memory for compiled grammars and schemas, and for their masks.");
  table.add(
      "grammar-timeout", &grammar_timeout, 0.1, 600,
      "Seconds that a request waits for its grammar; past them it is refused as too complex.");
  table.add("grammar-threads", &grammar_threads, 1, 64, "Grammars compiled at a time.");
  table.add_bytes("max-grammar", &max_grammar,
                  "Largest schema, grammar or expression; past it 400.");
}

}  // namespace rudder::constraint
