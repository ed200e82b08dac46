#include "rudder/testing/sim_episode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "rudder/testing/sim_constraint.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/wrap/group_executor.h"

namespace rudder::testing {
namespace {

constexpr size_t kMaxNotes = 48;
constexpr uint64_t kMaxEndingSteps = 200'000;  // of a drain: generous, it only has to end

SimConfig config_of(SimRandom& random) {
  return draw_config(random);
}

}  // namespace

SimEpisode::SimEpisode(uint64_t seed, SimCoverage* coverage)
    : random_(seed),
      config_(config_of(random_)),
      coverage_(coverage),
      fake_(config_.fake),
      rest_random_(mix64(seed)) {
  fake_.clock = clock_.get();
  auto executor = make_executor();
  executor_ = ranks_.front();
  auto captures = std::make_unique<FakeCaptures>(fake_.capacity.geometry);
  captures_ = captures.get();
  for (const auto& spec : config_.taps.captures) captures_->add(spec);
  auto proposer = std::make_unique<RandomProposer>(
      config_.fake.seed, fake_.capacity.vocab_size,
      [this](sched::SequenceId id) { return whole_of(id); }, random_drafts(fake_.capacity));
  auto core = engine::EngineCore::create({.executor = std::move(executor),
                                          .tokenizer = tiny_tokenizer(),
                                          .clock = clock_,
                                          .model_identity = "simulated",
                                          .eos_ids = {kTinyEos},
                                          .captures = std::move(captures),
                                          .grammars = std::make_unique<SimGrammars>(),
                                          .proposer = std::move(proposer)},
                                         config_.settings, config_.entropy);
  if (!core) throw SimViolation{core.error().to_string()};
  core_ = std::move(*core);
}

std::unique_ptr<step::Executor> SimEpisode::make_executor() {
  std::vector<std::unique_ptr<step::Executor>> ranks;
  for (int32_t i = 0; i < config_.num_ranks; ++i) {
    FakeOptions options = fake_;
    options.moments = static_cast<uint64_t>(i);
    if (i != config_.failing_rank) {
      options.fail_launch_at = 0;
      options.fail_collect_at = 0;
      options.differ_at = 0;
    }
    auto rank = std::make_unique<FakeExecutor>(std::move(options));
    ranks_.push_back(rank.get());
    ranks.push_back(std::move(rank));
  }
  return wrap::GroupExecutor::of(std::move(ranks));
}

void SimEpisode::run() {
  while (step_ < config_.num_steps && !dead_) turn();
  note(NoteKind::kEnding, {}, static_cast<int64_t>(config_.ending), 0);
  if (config_.ending == SimEnding::kStop && !dead_) {
    end_by_stop();
  } else {
    end_by_drain();
  }
  check_refused_when_closed();
  check_all_freed();
  const auto stats = core_->scheduler().stats();
  coverage_->preemptions += stats.preemptions;
  coverage_->overtakes += stats.overtakes;
  coverage_->evictions += stats.cached.evictions;
  coverage_->host_hits += stats.cached.tiers.host_hits;
  coverage_->disk_hits += stats.cached.tiers.disk_hits;
  coverage_->bad_records += stats.cached.tiers.bad_records;
  coverage_->failed_loads += stats.cached.tiers.failed_loads;
  coverage_->windowed_hits += executor_->windowed_hits();
  coverage_->late_results += stats.late_results;
  coverage_->differing_ranks += std::ranges::any_of(ranks_, &FakeExecutor::has_differed) ? 1 : 0;
  coverage_->constrained_sequences += core_->stats().constrained_sequences;
  coverage_->repeats += stats.iterations - stats.steps;
  coverage_->drafts += stats.draft_tokens;
  coverage_->accepted_drafts += stats.accepted_tokens;
  coverage_->tap_evictions += static_cast<uint64_t>(core_->tap_tables().rows().stats().evictions);
}

void SimEpisode::turn() {
  if (std::cmp_less(clients_.size(), config_.max_open) &&
      (clients_.empty() || random_.one_in(config_.arrival_one_in))) {
    arrive();
  }
  if (random_.one_in(config_.cancel_one_in)) cancel_one();
  if (random_.one_in(2000)) {
    note(NoteKind::kReset, {}, 0, 0);
    core_->reset_prefix_cache();
  }
  if (config_.taps.enabled && random_.one_in(100)) pin_some();
  rest_now_and_then();
  advance();
}

// As for new weights: what goes on does so under another name of the model. Every third rest keeps
// what is cached, and every sixth goes on with that.
void SimEpisode::rest_now_and_then() {
  if (!rests_) {
    if (!rest_random_.one_in(1200)) return;
    rests_ = true;
    const auto mode = rest_random_.one_in(2) ? engine::RestMode::kKeep : engine::RestMode::kWait;
    note(NoteKind::kRest, {}, static_cast<int64_t>(mode), 1);
    rest_keeps_ = num_rests_ % 3 == 1;
    core_->rest({.ask = engine::RestAsk{.mode = mode, .refusal = {}, .keeps_cache = rest_keeps_},
                 .identity = {}});
  } else if (core_->is_at_rest() && rest_random_.one_in(4)) {
    go_on();
  }
}

void SimEpisode::go_on() {
  note(NoteKind::kRest, {}, 0, 0);
  ++num_rests_;
  std::optional<std::string> identity;
  if (!rest_keeps_ || num_rests_ % 2 == 0) identity = fmt::format("sim {}", num_rests_);
  core_->rest({.ask = {}, .identity = std::move(identity)});
  rests_ = false;
  coverage_->rests += 1;
}

void SimEpisode::arrive() {
  SimRequest drawn = draw_request(config_, core_->limits().max_seq_len, ++serial_, random_);
  std::shared_ptr<const tap::SequenceTaps> lease;  // until it is submitted
  if (drawn.taps != nullptr) {
    auto kept = core_->programs().keep(*drawn.taps);
    if (!kept) {  // more than the tap table can ever hold
      require(kept.error().where == "steering", "drawn steering is valid");
      return;
    }
    lease = std::move(*kept);
    drawn.params.taps = tap::spec_of(*lease);
  }
  auto request = engine::validate_request(std::move(drawn.params), core_->limits());
  if (!request) {  // more than the queue can ever hold
    require(request.error().where == "n", "a drawn request is valid");
    return;
  }
  auto client = std::make_unique<Client>();
  client->params = request->params();
  client->max_len = request->max_len();
  client->taps = std::move(drawn.taps);
  client->fresh_salt = drawn.fresh_salt;
  client->constraint_seeds = std::move(drawn.constraint_seeds);
  client->num_open = client->params.n;
  client->choices.resize(static_cast<size_t>(client->params.n));
  client->last_progress = planned_steps();
  client->first_sequence = by_sequence_.size() + 1;

  const engine::PlaceAsk ask = engine::place_ask(*request);
  const int64_t most_us = std::llround(config_.settings.max_queue_seconds * 1e6);
  client->arrival_us = clock_->now_us();
  const int64_t max_wait_us = ask.max_wait_us == 0 || most_us == 0
                                  ? ask.max_wait_us + most_us
                                  : std::min(ask.max_wait_us, most_us);
  if (max_wait_us > 0) client->deadline_us = client->arrival_us + max_wait_us;
  const bool would_accept = core_->would_accept(ask).has_value();
  const auto id = core_->submit(std::move(*request), [this, c = client.get()](engine::Event&& e) {
    on_event(*c, std::move(e));
  });
  if (!id && id.error().code == ErrorCode::kInvalidArgument) {
    require(id.error().where == "capture",
            "only what the capture buffer can never hold is refused");
    return;
  }
  require(id.has_value() == would_accept, "would_accept gives the verdict of submit");
  if (!id) {
    require(id.error().code == ErrorCode::kOverloaded, "a full queue says overloaded");
    note(NoteKind::kRefused, {}, 0, 0);
    coverage_->rejections += 1;
    return;
  }
  client->id = *id;
  for (const auto& other : clients_) {
    if (!other->started && other->params.priority > ask.priority) other->outranked = true;
  }
  note(NoteKind::kSubmit, *id, client->params.n,
       static_cast<int64_t>(client->params.prompt.size()));
  coverage_->requests += 1;
  by_sequence_.insert(by_sequence_.end(), client->choices.size(), client.get());
  clients_.push_back(std::move(client));
}

void SimEpisode::cancel_one() {
  if (clients_.empty()) return;
  Client& client = *clients_[random_.next() % clients_.size()];
  client.cancelled = true;
  core_->cancel(client.id);
  if (random_.one_in(4)) core_->cancel(client.id);    // idempotent
  if (random_.one_in(4)) core_->cancel(last_ended_);  // nothing any more
  note(NoteKind::kCancel, client.id, 0, 0);
  coverage_->cancels += 1;
}

void SimEpisode::pin_some() {
  if (!pinned_.empty() && random_.one_in(2)) {
    core_->unpin(std::exchange(pinned_, {}));
    return;
  }
  const auto& programs = config_.taps.programs;
  const steer::KeyedProgram& program = programs[random_.next() % programs.size()];
  if (core_->pin({program})) pinned_.push_back(program.key);
}

bool SimEpisode::advance() {
  step_ += 1;
  if (random_.one_in(2)) captures_->answer_one();
  if (random_.one_in(4)) clock_->advance(random_.in(1, 3000));
  const int64_t before_us = clock_->now_us();
  num_running_ = core_->scheduler().stats().num_running;
  const bool more = core_->step();
  check_step(more);
  check_deadlines(before_us);
  return more;
}

void SimEpisode::end_by_drain() {
  if (rests_) go_on();
  closing_ = true;
  core_->close({ErrorCode::kUnavailable, "draining", ""});
  const uint64_t limit = step_ + kMaxEndingSteps;
  while (advance() || waits_for_captures()) require(step_ < limit, "a drain comes to its end");
}

void SimEpisode::end_by_stop() {
  closing_ = true;
  core_->end_all();
  require(clients_.empty() || core_->num_open() == 0, "a stop ends every request");
}

void SimEpisode::note(NoteKind kind, engine::RequestId id, int64_t a, int64_t b) {
  if (notes_.size() == kMaxNotes) notes_.pop_front();
  notes_.push_back({step_, kind, id.value, a, b});
}

std::vector<std::string> SimEpisode::last_notes() const {
  std::vector<std::string> lines;
  for (const Note& n : notes_) {
    static constexpr const char* kNames[] = {"submit", "refused", "cancel", "tokens",
                                             "finish", "reset",   "rest",   "ending"};
    lines.push_back(fmt::format("step {} {} request {} ({}, {})", n.step,
                                kNames[static_cast<size_t>(n.kind)], n.request, n.a, n.b));
  }
  return lines;
}

}  // namespace rudder::testing
