// The other half of SimEpisode: what must hold at every event and after every step.
#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "rudder/testing/sim_episode.h"
#include "rudder/testing/sim_reference.h"

namespace rudder::testing {

using engine::FinishReason;

namespace {
constexpr uint64_t kMaxOvertaken = 48;          // in max_wait_steps; healthy runs stay below 26
constexpr uint64_t kMaxOvertakenByOthers = 40;  // healthy runs stay below 20
}  // namespace

void SimEpisode::require(bool holds, const char* what) const {
  if (!holds) [[unlikely]]
    throw SimViolation{what};
}

void SimEpisode::on_event(Client& client, engine::Event&& event) {
  require(event.id == client.id, "an event goes to its own request");
  require(event.choice >= 0 && event.choice < client.params.n, "an event names a choice");
  Choice& choice = client.choices[static_cast<size_t>(event.choice)];
  require(!choice.finished, "nothing follows a choice's last event");
  for (const engine::OutputToken& token : event.tokens) {
    choice.tokens.push_back(token.token);
    trace_hash_ = mix64(trace_hash_ ^ static_cast<uint64_t>(token.token));
  }
  std::ranges::copy(event.prompt_logprobs, std::back_inserter(choice.scores));
  choice.text += event.text;
  client.last_progress = planned_steps();
  require(std::cmp_less_equal(event.tokens.size(), 1 + config_.fake.capacity.drafts.max_draft),
          "each token is handed out at its own iteration");
  check_tokens(client, event);

  coverage_->tokens += event.tokens.size();
  trace_hash_ = mix64(trace_hash_ ^ event.id.value * 8 ^ static_cast<uint64_t>(event.choice));
  note(NoteKind::kTokens, event.id, event.choice, static_cast<int64_t>(choice.tokens.size()));
  if (!event.finish) return;

  trace_hash_ = mix64(trace_hash_ ^ static_cast<uint64_t>(*event.finish) ^ step_ << 8);
  note(NoteKind::kFinish, event.id, event.choice, static_cast<int64_t>(*event.finish));
  check_finish(client, event);
  choice.finished = true;
  client.num_open -= 1;
}

void SimEpisode::check_tokens(const Client& client, const engine::Event& event) const {
  const Choice& choice = client.choices[static_cast<size_t>(event.choice)];
  require(event.usage.prompt_tokens == std::ssize(client.params.prompt), "usage: prompt tokens");
  require(event.usage.completion_tokens == std::ssize(choice.tokens), "usage: completion tokens");
  const int32_t cached = event.usage.cached_tokens;
  require(cached >= 0 && cached < event.usage.prompt_tokens, "usage: cached tokens");
  const int32_t behind = event.usage.cached_host_tokens + event.usage.cached_disk_tokens;
  require(behind <= cached && (behind == 0 || !config_.fake.capacity.tiers.empty()),
          "usage: cached tokens by tier");
  require(cached % config_.fake.capacity.block_size == 0, "whole blocks are cached");
  require(cached == 0 || config_.settings.enable_prefix_caching, "nothing is cached when off");
  require(cached == 0 || !client.fresh_salt || client.params.n > 1,
          "nothing is cached under a salt never used before");
  require(cached == 0 || client.taps == nullptr || !client.taps->needs_whole_prompt,
          "a latch needs every token of the prompt");
  require(cached == 0 || client.params.sampling.num_prompt_logprobs < 0 || event.choice > 0,
          "a prompt that is scored is computed");
  require(event.captures.empty() || client.params.capture_delivery.events,
          "events come when asked for");
  const int32_t wanted = client.params.sampling.num_logprobs;
  for (const engine::OutputToken& token : event.tokens) {
    require(token.has_logprobs == (wanted >= 0), "logprobs come when asked for");
    require(!token.has_logprobs || std::ssize(token.top) == wanted, "as many logprobs as asked");
  }
}

// Now and then later prompts begin with this prompt and its answer, as those of a next turn do.
void SimEpisode::continue_later(const Client& client, const Choice& choice) {
  if (!random_.one_in(3)) return;
  std::vector<int32_t>& family = config_.families[random_.next() % config_.families.size()];
  std::vector<int32_t> turn = client.params.prompt;
  turn.insert(turn.end(), choice.tokens.begin(), choice.tokens.end());
  std::copy_n(turn.begin(), std::min(turn.size(), family.size()), family.begin());
}

void SimEpisode::check_finish(const Client& client, const engine::Event& event) {
  const Choice& choice = client.choices[static_cast<size_t>(event.choice)];
  const SimExpected expected = expected_output(
      client.params, client.taps.get(), captures_->find(client.params.capture).get(),
      client.constraint_seeds, client.max_len, event.choice, config_.fake);
  const FinishReason reason = *event.finish;
  coverage_->cached_tokens += static_cast<uint64_t>(event.usage.cached_tokens);
  require(event.error.has_value() == (reason == FinishReason::kError), "an error has a cause");

  const bool ran_out = reason == FinishReason::kStop || reason == FinishReason::kLength;
  const bool turned_away = is_turned_away(client, event);
  const bool has_own_error =
      reason == FinishReason::kError && event.error->code != ErrorCode::kInternal && !turned_away;
  if (ran_out || has_own_error) {
    require(choice.tokens == expected.tokens, "tokens are those of a lone request");
    require(reason == expected.reason, "the finish reason is that of a lone request");
    continue_later(client, choice);
    require(event.stop_reason == expected.stop_reason, "the stop string is the first to end");
    coverage_->stop_strings += event.stop_reason.empty() || expected.stopped_by_row ? 0 : 1;
    coverage_->stop_rows += expected.stopped_by_row ? 1 : 0;
    coverage_->stop_ids += reason == FinishReason::kStop && event.stop_reason.empty() ? 1 : 0;
    require(!has_own_error ||
                expected.constraint_failed == (event.error->code != ErrorCode::kNumerical),
            "an error is what went wrong");
    coverage_->numerical += has_own_error && !expected.constraint_failed ? 1 : 0;
    coverage_->constraint_failures += expected.constraint_failed ? 1 : 0;
  } else {
    require(reason != FinishReason::kCancelled || client.cancelled || closing_,
            "only a cancel or a stop cancels");
    require(std::cmp_less_equal(choice.tokens.size(), expected.tokens.size()) &&
                std::equal(choice.tokens.begin(), choice.tokens.end(), expected.tokens.begin()),
            "tokens so far are those of a lone request");
    if (turned_away) {
      require(!client.started && choice.tokens.empty(), "only who waits is turned away");
      const bool is_late = client.deadline_us > 0 && client.deadline_us <= clock_->now_us();
      require(is_late || client.outranked, "who is turned away is late or outranked");
      (is_late ? coverage_->expired : coverage_->displaced) += 1;
    } else if (reason == FinishReason::kError) {
      require(config_.ending == SimEnding::kExecutorDies, "the engine dies with its executor only");
      dead_ = true;
    }
  }
  check_scores(client, event, expected);
  check_captures(client, event, expected);
  if (ran_out) {
    require(choice.text == expected.text, "the text is that of a lone request");
  } else {
    require(expected.text.starts_with(choice.text), "the text so far is that of a lone request");
  }
}

bool SimEpisode::is_turned_away(const Client& client, const engine::Event& event) const {
  return event.finish == FinishReason::kError && event.error->code == ErrorCode::kOverloaded &&
         (client.outranked || client.deadline_us > 0);
}

// `since_us`: before the last step. Who has begun by then may go on.
void SimEpisode::check_deadlines(int64_t since_us) const {
  for (const auto& client : clients_) {
    const bool is_late = client->deadline_us > 0 && client->deadline_us <= since_us;
    require(!is_late || client->started, "nobody waits past its deadline");
  }
}

// The first choice tells how likely each token of the prompt but the first was, once, before what
// is sampled.
void SimEpisode::check_scores(const Client& client, const engine::Event& event,
                              const SimExpected& expected) const {
  const Choice& choice = client.choices[static_cast<size_t>(event.choice)];
  const step::SamplingParams& sampling = client.params.sampling;
  const bool wanted = sampling.num_prompt_logprobs >= 0 && event.choice == 0;
  const size_t num_scored = wanted ? client.params.prompt.size() - 1 : 0;
  require(choice.tokens.empty() ? choice.scores.size() <= num_scored
                                : choice.scores.size() == num_scored,
          "each token of the prompt is scored before what is sampled");
  for (size_t i = 0; i < choice.scores.size(); ++i) {
    const engine::OutputToken& told = choice.scores[i];
    const step::TokenLogprobs score =
        score_token(client.params.prompt[i + 1], expected.hashes[i], sampling.num_prompt_logprobs,
                    config_.fake.capacity.vocab_size);
    require(told.token == client.params.prompt[i + 1] && told.logprob == score.logprob &&
                told.top.size() == score.top.size(),
            "scores are those of the prompt's own tokens");
  }
  coverage_->scored += choice.scores.size();
}

// A choice that ran to its end has captured every token that it asked for and ran, and no other.
void SimEpisode::check_captures(const Client& client, const engine::Event& event,
                                const SimExpected& expected) {
  const bool ran =
      *event.finish != FinishReason::kCancelled && !dead_ && !is_turned_away(client, event);
  if (ran && client.taps && !client.taps->segments.empty()) coverage_->steered += 1;
  if (client.params.capture.value == 0) {
    require(!event.capture_results, "results of captures come when asked for");
    return;
  }
  const FakeCaptures::Records records = captures_->take(client.params.client_id, event.choice);
  require(captures_->violations().empty(),
          captures_->violations().empty() ? "" : captures_->violations().front().c_str());
  if (!ran) return;
  require(!event.capture_results || client.params.capture_delivery.results,
          "results of captures come when asked for");
  if (!event.capture_results && client.params.capture_delivery.results) {
    require(client.cancelled || closing_ || config_.ending == SimEnding::kExecutorDies,
            "the last event brings the results of its captures");
  }
  const auto num_prompt = static_cast<int32_t>(client.params.prompt.size());
  const Choice& choice = client.choices[static_cast<size_t>(event.choice)];
  // The last token of a choice is sampled, not run; that of a NaN is not even sampled. One that
  // ran when the constraint failed is late.
  const bool numerical = *event.finish == FinishReason::kError && !expected.constraint_failed;
  const bool ran_out = *event.finish == FinishReason::kStop;
  // One whose own row ended the choice was run.
  const bool ran_last = numerical || (expected.stopped_by_row && ran_out);
  const int32_t num_run =
      num_prompt + static_cast<int32_t>(choice.tokens.size()) - (ran_last ? 0 : 1);
  size_t wanted = 0;
  for (const tap::PositionRange& range : client.taps->captured) {
    for (int32_t at = range.begin; at < std::min(range.end, num_run); ++at, ++wanted) {
      const auto found = records.find(at);
      require(found != records.end(), "every token that was asked for is captured");
      for (size_t i = 0; i < found->second.size(); ++i) {
        require(found->second[i] == captured_word(expected.hashes[static_cast<size_t>(at)],
                                                  *client.taps->capture, i),
                "captured rows are those of the choice's own tokens");
      }
    }
  }
  require(records.size() == wanted, "no other token is captured");
  coverage_->captured += wanted;
}

std::span<const int32_t> SimEpisode::whole_of(sched::SequenceId id) {
  std::vector<int32_t>& whole = wholes_[id];
  const Client* client = by_sequence_[id.value - 1];
  if (!whole.empty() || client == nullptr) return whole;
  const auto choice = static_cast<int32_t>(id.value - client->first_sequence);
  const SimExpected expected = expected_output(
      client->params, client->taps.get(), captures_->find(client->params.capture).get(),
      client->constraint_seeds, client->max_len, choice, config_.fake);
  whole = client->params.prompt;
  whole.insert(whole.end(), expected.tokens.begin(), expected.tokens.end());
  return whole;
}

bool SimEpisode::waits_for_captures() const {
  return std::ranges::any_of(clients_, [](const auto& c) { return c->params.capture.value != 0; });
}

void SimEpisode::note_started() {
  for (const sched::SequenceId id : core_->scheduler().first_planned()) {
    Client* client = by_sequence_[id.value - 1];
    if (client == nullptr || client->started) continue;
    client->started = true;
    client->last_progress = planned_steps();
    note_overtaken(*client);
  }
}

// Requests that came earlier, are no less urgent and still wait. A few may be passed over: those
// that wait for a prefix that another is computing, and those whose prompts are longer.
void SimEpisode::note_overtaken(const Client& started) {
  for (const auto& client : clients_) {
    if (client->started || client->id.value > started.id.value) continue;
    const bool is_own = client->params.tenant == started.params.tenant;
    if (is_own && client->params.priority > started.params.priority) continue;
    if (!is_own && !is_first_of_tenant(*client)) continue;
    // Who waits for rows of the tap table, or for room to capture, does not keep others waiting.
    // Among those that wait for it urgency decides, whoever they belong to.
    const bool is_more_urgent = started.params.priority < client->params.priority;
    if (client->taps != nullptr && (started.taps == nullptr || is_more_urgent)) continue;
    if (!is_own) {
      client->times_overtaken_by_others += 1;
      coverage_->most_overtaken_by_others =
          std::max(coverage_->most_overtaken_by_others, client->times_overtaken_by_others);
      require(client->times_overtaken_by_others <= kMaxOvertakenByOthers, "tenants take turns");
      continue;
    }
    client->times_overtaken += 1;
    coverage_->most_overtaken = std::max(coverage_->most_overtaken, client->times_overtaken);
    require(client->times_overtaken <= kMaxOvertaken, "the first to come is the first to run");
  }
}

// Of those that wait.
bool SimEpisode::is_first_of_tenant(const Client& client) const {
  return std::ranges::none_of(clients_, [&](const auto& other) {
    if (other->started || other->params.tenant != client.params.tenant) return false;
    if (other->params.priority != client.params.priority) {
      return other->params.priority < client.params.priority;
    }
    return other->id.value < client.id.value;
  });
}

void SimEpisode::check_step(bool more) {
  for (const FakeExecutor* rank : ranks_) {
    require(rank->violations().empty(),
            rank->violations().empty() ? "" : rank->violations().front().c_str());
  }
  if (auto ok = core_->scheduler().check_integrity(); !ok) throw SimViolation{ok.error().message};
  note_started();
  const sched::SchedStats sched = core_->scheduler().stats();
  check_devices(sched);
  if (auto ok = core_->tap_tables().rows().check_integrity(); !ok) {
    throw SimViolation{ok.error().message};
  }
  coverage_->waited_for_copies += sched.states.copies_in_flight > 0 ? 1 : 0;
  coverage_->waited_for_taps += core_->num_waiting_for_taps() > 0 ? 1 : 0;
  check_clients();
  check_gauges(sched);
  require(more || clients_.empty() || rests_ || (sched.num_running == 0 && waits_for_captures()),
          "a loop that goes to sleep leaves no request behind");
  require(more || sched.steps_in_flight == 0, "nor a step");
  require(!core_->is_at_rest() || rest_keeps_ || sched.blocks_in_use + sched.blocks_cached == 0,
          "at rest no block holds anything");
  // A step of nothing but edits holds no block.
  const bool copies =
      sched.states.copies_in_flight > 0;  // which plans of nothing see to their ends
  if (!clients_.empty() || copies || (sched.blocks_in_use == 0 && sched.num_retiring == 0)) {
    idle_lag_ = 0;
  } else {
    const step::Capacity& capacity = config_.fake.capacity;
    require(++idle_lag_ < capacity.max_in_flight + capacity.max_repeat + config_.fake.copy_steps,
            "ended requests free their blocks");
  }
}

// Ranks of a group, and cohorts of a pipeline.
void SimEpisode::check_devices(const sched::SchedStats& sched) {
  const bool has_differed = std::ranges::any_of(ranks_, &FakeExecutor::has_differed);
  require(!has_differed || !core_->health(), "ranks that sample other tokens end the group");
  if (has_differed) dead_ = true;  // also where no request is left to be told
  const int64_t cohorts = config_.settings.num_cohorts;
  const int64_t decodes = executor_->take_most_decodes();
  if (cohorts == 1) return;
  const int64_t running = std::max<int64_t>(num_running_, sched.num_running);
  require(decodes <= (running + cohorts - 1) / cohorts, "a step decodes one cohort at most");
  coverage_->cohorts_beside += decodes > 0 && sched.steps_in_flight > 1 ? 1 : 0;
}

void SimEpisode::check_gauges(const sched::SchedStats& sched) const {
  int64_t choices = 0, scheduled = 0, queued = 0, queued_tokens = 0;
  for (const auto& client : clients_) {
    choices += client->num_open;
    // Others may wait for rows, or for what became of their captures.
    if (client->taps == nullptr) scheduled += client->num_open;
    if (client->started) continue;
    queued += 1;
    queued_tokens += client->params.n * std::ssize(client->params.prompt);
  }
  require(core_->num_open() == std::ssize(clients_), "gauge: open requests");
  const engine::QueueLoad load = core_->queue_load();
  require(load.requests == queued, "gauge: queued requests");
  require(load.tokens == queued_tokens, "gauge: queued tokens");
  require(load.requests <= config_.settings.max_num_queued_reqs, "the queue is bounded");
  require(load.tokens <= config_.settings.max_num_queued_tokens, "the queue is bounded in tokens");

  const int64_t live = int64_t{sched.num_running} + sched.num_waiting;
  require(live <= choices && (rests_ || scheduled <= live + sched.num_retiring),
          "gauge: running and waiting");
  require(sched.num_retiring == 0 || sched.steps_in_flight > 0 || sched.states.copies_in_flight > 0,
          "only a step or a copy in flight holds back");
  require(sched.num_running <= config_.settings.max_num_seqs, "max_num_seqs holds");
  require(sched.blocks_in_use + sched.blocks_cached + sched.blocks_free == sched.num_blocks,
          "blocks in use, cached and free are all blocks");
  if (step_ % 64 != 0) return;
  const engine::EngineStats stats = core_->stats();
  require(stats.num_running == sched.num_running && stats.num_waiting == sched.num_waiting &&
              stats.blocks_in_use == sched.blocks_in_use && stats.steps == sched.steps &&
              stats.queued_tokens == queued_tokens,
          "the published gauges are the scheduler's");
}

void SimEpisode::check_clients() {
  // In planned steps, by which the scheduler counts who has waited too long; a turn of the loop may
  // plan none. Starved sequences go first, one after another; each may have to wait for room to
  // run.
  const auto bound = static_cast<uint64_t>(config_.settings.max_wait_steps) +
                     static_cast<uint64_t>(config_.max_open) * 3 *
                         static_cast<uint64_t>(config_.fake.capacity.max_seq_len);
  for (const auto& client : clients_) {
    require(!client->cancelled || client->num_open == 0, "a cancel ends every choice at once");
    const uint64_t silence = planned_steps() - client->last_progress;
    require(silence <= bound, "every request gets on");
    coverage_->longest_silence = std::max(coverage_->longest_silence, silence);
    if (client->num_open > 0) continue;
    last_ended_ = client->id;
    for (size_t i = 0; i < client->choices.size(); ++i) {
      by_sequence_[client->first_sequence - 1 + i] = nullptr;
    }
  }
  std::erase_if(clients_, [](const auto& client) { return client->num_open == 0; });
}

void SimEpisode::check_refused_when_closed() {
  SimRequest drawn = draw_request(config_, core_->limits().max_seq_len, ++serial_, random_);
  drawn.params.n = 1;
  drawn.params.prompt.resize(1);
  drawn.params.capture = {};
  auto request = engine::validate_request(std::move(drawn.params), core_->limits());
  require(request.has_value(), "a prompt of one token is valid");
  const auto id = core_->submit(std::move(*request), [](engine::Event&&) {});
  require(!id && id.error().code == ErrorCode::kUnavailable, "a closed engine refuses");
  if (dead_) require(!core_->health(), "a dead engine says so");
}

void SimEpisode::check_all_freed() {
  check_clients();
  require(clients_.empty(), "every choice gets its last event");
  require(core_->num_open() == 0, "no request is open at the end");
  require(core_->queue_load().requests == 0 && core_->queue_load().tokens == 0,
          "the queue is empty at the end");
  require(core_->scheduler().idle(), "the scheduler is idle at the end");
  require(core_->scheduler().stats().blocks_in_use == 0, "no block is held at the end");
  require(!core_->tap_tables().any_held(), "no row of the tap table is held at the end");
  require(captures_->num_open() == 0, "every capture is ended at the end");
  if (dead_) coverage_->executor_deaths += 1;
}

}  // namespace rudder::testing
