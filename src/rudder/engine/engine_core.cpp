#include "rudder/engine/engine_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/base/mutants.h"
#include "rudder/base/philox.h"
#include "rudder/engine/resolved_taps.h"
#include "rudder/engine/run_trials.h"
#include "rudder/engine/watched_rows.h"

namespace rudder::engine {
namespace {

sched::SchedSettings sched_settings(const EngineSettings& settings, const Commons& commons,
                                    int32_t depth, cache::BlockWatcher* watcher) {
  sched::SchedSettings out;
  out.max_num_seqs = settings.max_num_seqs;
  out.max_num_batched_tokens = settings.max_num_batched_tokens;
  out.max_wait_steps = settings.max_wait_steps;
  out.max_in_flight = depth;
  out.multi_step = settings.multi_step;
  out.num_cohorts = settings.num_cohorts;
  out.pace_drafts = settings.speculative_adaptive;
  out.max_itl_us =
      settings.max_itl_ms ? std::llround(*settings.max_itl_ms * 1000) : sched::kAutoItlBound;
  out.enable_prefix_caching = settings.enable_prefix_caching;
  out.model_identity = commons.model_identity;
  out.hash_key = commons.entropy.hash_key;
  out.hash_bits = commons.entropy.hash_bits;
  out.turn_ends = commons.turn_ends;
  out.block_watcher = watcher;
  out.store_uses = settings.kv_store_uses;
  out.weighs_fetches = settings.kv_fetch == "auto";
  return out;
}

RequestLimits request_limits(const step::Executor& executor, const sched::Scheduler& scheduler,
                             const EngineSettings& settings, std::vector<int32_t> eos_ids,
                             bool has_captures) {
  const step::Capacity& capacity = executor.capacity();
  RequestLimits limits;
  limits.takes_controls = !executor.has_fresh_starts();
  limits.max_seq_len = scheduler.max_len_limit();
  limits.vocab_size = capacity.vocab_size;
  limits.max_queued_tokens = settings.max_num_queued_tokens;
  limits.eos_ids = std::move(eos_ids);
  limits.geometry = capacity.geometry;
  limits.taps = capacity.taps;
  limits.adapters = capacity.adapters;
  if (!has_captures) limits.taps.num_capture_sets = 0;
  return limits;
}

Result<std::shared_ptr<const text::StopSet>> compile_stops(const RequestParams& params) {
  if (params.stop.empty()) return std::shared_ptr<const text::StopSet>();
  // Validation has bounded the strings one by one; the automaton's own limits are not narrower.
  text::StopLimits limits;
  limits.max_strings = params.stop.size();
  limits.max_bytes = 0;
  for (const std::string& stop : params.stop) limits.max_bytes += stop.size();
  return text::StopSet::compile(params.stop, limits);
}

Error displaced() {
  return {ErrorCode::kOverloaded, "the queue is full, and a request of higher priority came", ""};
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(Engine::Parts parts,
                                                       const EngineSettings& settings,
                                                       const Entropy& entropy) {
  RUDDER_TRY(std::shared_ptr<Commons> commons, Commons::make(parts, entropy));
  return of_replica(replica_parts(parts), std::move(commons), settings);
}

ReplicaParts replica_parts(Engine::Parts& parts) {
  return {.executor = std::move(parts.executor),
          .proposer = std::move(parts.proposer),
          .block_watcher = parts.block_watcher};
}

std::unique_ptr<EngineCore> EngineCore::of_replica(ReplicaParts parts,
                                                   std::shared_ptr<Commons> commons,
                                                   const EngineSettings& settings) {
  const step::Capacity capacity = parts.executor->capacity();
  return std::unique_ptr<EngineCore>(
      new EngineCore(std::move(parts), std::move(commons), settings, capacity));
}

EngineCore::EngineCore(ReplicaParts parts, std::shared_ptr<Commons> commons,
                       const EngineSettings& settings, const step::Capacity& capacity)
    : executor_(std::move(parts.executor)),
      proposer_(std::move(parts.proposer)),
      clock_(commons->clock),
      block_watcher_(parts.block_watcher),
      settings_(settings),
      depth_(settings.async_scheduling ? std::max(1, capacity.max_in_flight) : 1),
      queue_(settings.max_num_queued_reqs, settings.max_num_queued_tokens),
      commons_(std::move(commons)),
      scheduler_(capacity, sched_settings(settings, *commons_, depth_, parts.block_watcher),
                 proposer_.get()),
      limits_(request_limits(*executor_, scheduler_, settings, commons_->eos_ids,
                             commons_->captures != nullptr)),
      metrics_(limits_.max_seq_len, capacity.block_size),
      constraints_(capacity.vocab_size, settings.mask_threads),
      taps_(capacity.taps, capacity.adapters, settings.max_wait_steps),
      captures_(commons_->captures.get(), &mailbox_),
      delivery_({.clock = clock_.get(),
                 .eos_ids = &limits_.eos_ids,
                 .scheduler = &scheduler_,
                 .requests = &requests_,
                 .constraints = &constraints_,
                 .taps = &taps_,
                 .captures = &captures_,
                 .metrics = &metrics_}),
      starter_({.scheduler = &scheduler_,
                .requests = &requests_,
                .taps = &taps_,
                .captures = &captures_,
                .delivery = &delivery_}) {
  scheduler_.tiers().add_stored(executor_->take_stored());
  watch_.idle(clock_->now_us());
  publish_stats();
}

Result<RequestId> EngineCore::submit(Request request, EventSink sink) {
  const auto refuse = [&](Error error) {
    metrics_.note_rejected();
    return tl::unexpected(std::move(error));
  };
  if (auto open = mailbox_.open(); !open) return refuse(std::move(open.error()));
  RUDDER_TRY(auto stops, compile_stops(request.params()));
  auto constraints = commons_->forms.resolve(request.params().constraints);
  if (!constraints) return refuse(std::move(constraints.error()));
  auto taps = resolve_taps(request.params(), commons_->programs, captures_.dispatcher(), limits_);
  if (!taps) return refuse(std::move(taps.error()));
  const RequestId id(commons_->next_request.fetch_add(1, std::memory_order_relaxed));
  const PlaceAsk ask = within_deadline(place_ask(request));
  const int64_t now_us = clock_->now_us();
  auto taken = queue_.take(ask, id, now_us);
  if (!taken) return refuse(std::move(taken.error()));
  if (!taken->displaced.empty()) mailbox_.displace(taken->displaced);

  // Counted before it is posted: whoever has closed the mailbox and then sees none open is right.
  requests_.note_accepted();
  auto posted = mailbox_.submit({.id = id,
                                 .request = std::move(request),
                                 .stops = std::move(stops),
                                 .constraints = std::move(*constraints),
                                 .taps = std::move(*taps),
                                 .sink = std::move(sink),
                                 .place = std::move(taken->place),
                                 .arrival_us = now_us,
                                 .max_wait_us = ask.max_wait_us});
  if (!posted) {
    requests_.take_back();
    return refuse(std::move(posted.error()));
  }
  return id;
}

Result<void> EngineCore::pin(std::vector<steer::KeyedProgram> programs) {
  std::vector<tap::TapSegment> segments;
  segments.reserve(programs.size());
  for (const steer::KeyedProgram& keyed : programs) {
    segments.push_back({.content = keyed.key, .program = keyed.program});
  }
  RUDDER_TRY_VOID(steer::RowTable::could_ever_fit(limits_.taps, segments));
  mailbox_.pin(std::move(programs));
  return {};
}

Result<void> EngineCore::would_accept(const PlaceAsk& ask) const {
  RUDDER_TRY_VOID(mailbox_.open());
  return queue_.would_accept(within_deadline(ask), clock_->now_us());
}

PlaceAsk EngineCore::within_deadline(PlaceAsk ask) const {
  const int64_t most_us = std::llround(settings_.max_queue_seconds * 1e6);
  if (most_us > 0 && (ask.max_wait_us == 0 || ask.max_wait_us > most_us)) ask.max_wait_us = most_us;
  return ask;
}

int32_t EngineCore::retry_after_s() const {
  const int64_t wait_us = queue_.expected_wait_us(clock_->now_us());
  return engine::retry_after_s(wait_us, settings_.max_queue_seconds);
}

bool EngineCore::step() {
  const Result<bool> more = contain([&]() -> Result<bool> { return turn(); });
  if (more) return *more;
  give_up(more.error());
  return false;
}

bool EngineCore::turn() {
  watch_.busy(clock_->now_us(), "planning and launching a step");
  take_commands();
  const bool launched = !dead_ && starter_.rest().may_launch() && launch_next();
  if (awaits_masks()) {
    // Its forward pass runs; what is sampled next depends on the tokens of every step before it.
    while (in_flight_.size() > 1 && !RUDDER_MUTANT(kMasksBeforeTokens)) collect_oldest();
    if (awaits_masks()) supply_masks();
    delivery_.end_failed();
  }
  const bool is_full = scheduler_.iterations_in_flight() >= depth_;
  if (!in_flight_.empty() && (!launched || is_full)) collect_oldest();
  if (block_watcher_ != nullptr) block_watcher_->step_done();
  if (!dead_ && in_flight_.empty()) starter_.rest().settle();
  publish_stats();
  bool more = launched || !in_flight_.empty() || scheduler_.has_work() || taps_.size() > 0;
  if (starter_.rest().is_at_rest()) more = false;
  if (RUDDER_MUTANT(kSleepsWithWork)) more = launched;
  if (!more) watch_.idle(clock_->now_us());
  return more;
}

void EngineCore::run_trials() {
  if (executor_->has_fresh_starts()) return;  // they would be part of a recording
  const Result<void> ran = engine::run_trials(scheduler_, *executor_, depth_);
  if (!ran) die(ran.error());
}

void EngineCore::take_commands() {
  mailbox_.take(commands_);
  for (const steer::KeyedProgram& program : commands_.pins) taps_.tables().pin(program);
  for (const tap::ContentKey& key : commands_.unpins) taps_.tables().unpin(key);
  for (Submission& submission : commands_.submissions) admit(submission);
  for (const RequestId id : commands_.displaced) end_displaced(id);
  for (CaptureNews& news : commands_.captures) delivery_.deliver(std::move(news));
  for (const RequestId id : commands_.cancels) {
    delivery_.end_request(id, FinishReason::kCancelled, std::nullopt);
  }
  if (commands_.rest) starter_.follow(*commands_.rest);
  end_late();
  starter_.begin_waiting();
  if (commands_.reset_prefix_cache) scheduler_.reset_prefix_cache();
  commands_.pins.clear();
  commands_.unpins.clear();
  commands_.submissions.clear();
  commands_.displaced.clear();
  commands_.captures.clear();
  commands_.cancels.clear();
  commands_.reset_prefix_cache = false;
  commands_.rest.reset();
  delivery_.end_failed();
}

// What is made of the request itself is made first: where that throws, nothing knows the request.
void EngineCore::admit(Submission& submission) {
  if (!submission.place.is_held()) {
    metrics_.note_displaced();
    return refuse(submission, displaced());
  }
  const RequestParams& params = submission.request.params();
  std::vector<OpenChoice> choices;
  std::vector<ChoiceConstraint> constraints;
  const Result<void> made = contain([&] {
    for (int32_t i = 0; i < params.n; ++i) {
      choices.emplace_back(ChoiceOutput(commons_->tokenizer, submission.stops, params));
      if (!submission.constraints.empty()) constraints.emplace_back(params, submission.constraints);
    }
  });
  if (!made) {
    log_error("request {}: {}", submission.id.value, made.error().to_string());
    return refuse(submission, made.error());
  }
  const auto prompt_tokens = static_cast<int32_t>(params.prompt.size());
  auto owned = std::make_unique<OpenRequest>();
  OpenRequest& request = *owned;
  request.id = submission.id;
  requests_.add(std::move(owned));
  request.sink = std::move(submission.sink);
  request.place = std::move(submission.place);
  request.num_open = params.n;
  request.num_sequences = params.n;
  request.prompt_tokens = prompt_tokens;
  request.max_tokens = params.counts_output ? submission.request.max_len() - prompt_tokens : 0;
  request.min_tokens = params.sampling.min_tokens;
  request.ignore_eos = params.ignore_eos;
  request.tells_captures = params.capture_delivery.results;
  request.priority = params.priority;
  request.waiting_since = scheduler_.stats().steps;
  request.arrival_us = submission.arrival_us;

  request.seed = params.seed.value_or(philox_u64(commons_->entropy.seed_key, submission.id.value));
  for (OpenChoice& choice : choices) requests_.add_choice(request, std::move(choice));
  metrics_.note_admitted(request);
  constraints_.begin(request, std::move(constraints));
  if (submission.max_wait_us > 0) {
    deadlines_.add(request.id, request.arrival_us + submission.max_wait_us);
  }
  request.taps = std::move(submission.taps);
  request.unscheduled = std::move(submission.request);
  if (dead_) {  // the mailbox knows the reason
    delivery_.end_request(request.id, FinishReason::kError, mailbox_.open().error());
  } else {
    starter_.begin(request);
  }
}

// Ends a request that nothing knows yet but the count of accepted ones.
void EngineCore::refuse(Submission& submission, const Error& error) {
  delivery_.refuse(submission, error);
  submission.place.release();
  requests_.note_finished();
}

// One that has begun to run meanwhile goes on.
void EngineCore::end_displaced(RequestId id) {
  const OpenRequest* request = requests_.find(id);
  if (request == nullptr || request->first_planned_us || RUDDER_MUTANT(kDisplacedKept)) return;
  metrics_.note_displaced();
  delivery_.end_request(id, FinishReason::kError, displaced());
}

void EngineCore::end_late() {
  const int64_t now_us = clock_->now_us();
  while (const std::optional<RequestId> id = deadlines_.pop_missed(requests_, now_us)) {
    if (RUDDER_MUTANT(kDeadlineMissed)) continue;
    metrics_.note_expired();
    const auto waited_s = static_cast<double>(now_us - requests_.find(*id)->arrival_us) * 1e-6;
    delivery_.end_request(
        *id, FinishReason::kError,
        Error{ErrorCode::kOverloaded,
              fmt::format("the request has waited for {:.1f} s, as long as it may", waited_s), ""});
  }
}

// False while steps are in flight that were launched before.
bool EngineCore::start_afresh() {
  if (!in_flight_.empty()) return false;
  scheduler_.start_afresh();
  executor_->start_afresh();
  return true;
}

bool EngineCore::launch_next() {
  if (executor_->wants_fresh_start() && !start_afresh()) return false;
  const bool was_held = scheduler_.is_holding();
  const std::shared_ptr<const step::StepPlan> plan = scheduler_.plan(&taps_.edits());
  if (!plan) return false;
  if (was_held && in_flight_.empty()) scheduler_.note_idle(clock_->now_us() - collected_us_);
  const StepFacts facts = facts_of(*plan);
  auto ticket = executor_->launch(plan);
  if (!ticket) {
    die(ticket.error());
    return false;
  }
  in_flight_.push_back({*ticket, facts, facts.repeat});
  awaits_masks_ = !scheduler_.constrained().empty();
  metrics_.note_launched(facts.num_tokens, facts.repeat);
  if (!scheduler_.first_planned().empty()) note_first_planned(clock_->now_us());
  return true;
}

void EngineCore::supply_masks() {
  const std::vector<sched::ConstrainedSequence>& sequences = scheduler_.learn_drafts();
  if (!std::exchange(awaits_masks_, false) || RUDDER_MUTANT(kMasksForgotten)) return;
  const int64_t start_us = clock_->now_us();
  watch_.busy(start_us, "writing the masks of", in_flight_.back().facts);
  const std::span<const uint32_t> masks = constraints_.masks(sequences);
  for (const sched::SequenceId dear : constraints_.dear()) scheduler_.stop_drafting(dear);
  metrics_.note_masks(sequences.size(), clock_->now_us() - start_us);
  const Result<void> supplied = executor_->supply(in_flight_.back().ticket, masks);
  if (!supplied) die(supplied.error());
}

void EngineCore::collect_oldest() {
  Launched& oldest = in_flight_.front();
  watch_.busy(clock_->now_us(), "waiting for", oldest.facts);
  auto result = executor_->collect(oldest.ticket);
  if (!result) return die(result.error());
  collected_us_ = clock_->now_us();
  watch_.busy(collected_us_, "handing out what came of", oldest.facts);
  metrics_.note_collected(*result, oldest.facts.num_tokens == oldest.facts.num_seqs);
  if (--oldest.left == 0 || RUDDER_MUTANT(kRepeatStranded)) in_flight_.erase(in_flight_.begin());
  outputs_.clear();
  scheduler_.commit(*result, &outputs_);
  constraints_.advance(outputs_);
  // The device waits for masks; nobody waits for events that long.
  if (awaits_masks() && in_flight_.size() == 1) supply_masks();
  if (dead_) return;  // every request has ended: the outputs are nobody's
  if (result->captured != nullptr) {
    read_watched_rows(*result, scheduler_.captured_sequences(), requests_, watched_row_);
    captures_.push(*result, scheduler_.captured_sequences(), requests_);
  }
  const int64_t now_us = clock_->now_us();
  for (const sched::SequenceOutput& output : outputs_) delivery_.deliver(output, now_us);
  delivery_.end_failed();
}

void EngineCore::note_first_planned(int64_t now_us) {
  for (const sched::SequenceId id : scheduler_.first_planned()) {
    const RequestTable::Target* target = requests_.target(id);
    if (target == nullptr) continue;
    OpenRequest& request = *target->request;
    if (request.first_planned_us) continue;
    request.first_planned_us = now_us;
    request.place.start(now_us);
    metrics_.note_first_planned(request, now_us);
  }
}

void EngineCore::end_all() {
  mailbox_.close({ErrorCode::kUnavailable, "the engine has stopped", ""});
  const Result<void> ended = contain([&] {
    take_commands();
    delivery_.end_every_request(FinishReason::kCancelled, std::nullopt);
    // What is still copied to comes back when the copy is done.
    while (!in_flight_.empty() || (scheduler_.has_work() && launch_next())) collect_oldest();
    publish_stats();
  });
  if (!ended) give_up(ended.error());
}

// A turn threw. What one request can make fail is contained where it is done, so that this is about
// what all of them share, which may be half changed.
void EngineCore::give_up(const Error& cause) {
  die(cause);
  for (Submission& submission : commands_.submissions) {
    if (submission.sink) refuse(submission, mailbox_.open().error());
  }
  commands_ = {};
  publish_stats();
  watch_.idle(clock_->now_us());
}

void EngineCore::die(const Error& cause) {
  log_error("the engine is dead: {}", cause.to_string());
  dead_ = true;
  mailbox_.close({ErrorCode::kUnavailable, "the engine has failed and takes no requests", ""});
  in_flight_.clear();
  scheduler_.drop_all();
  // What went wrong is for the log; a client learns only that it was not its request.
  delivery_.end_every_request(
      FinishReason::kError,
      Error{ErrorCode::kInternal, "the engine failed while the request ran", ""});
}

Result<void> EngineCore::health() const {
  if (dead_) return fail(ErrorCode::kInternal, "the engine has failed");
  return watch_.health(clock_->now_us(), settings_.stuck_step_us);
}

EngineStats EngineCore::stats() const {
  EngineStats stats = metrics_.snapshot();
  stats.max_running = scheduler_.max_running();
  stats.queued_tokens = queue_.load().tokens;
  stats.expected_wait_us = queue_.expected_wait_us(clock_->now_us());
  return stats;
}

}  // namespace rudder::engine
