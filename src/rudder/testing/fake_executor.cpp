#include "rudder/testing/fake_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "rudder/base/mutants.h"
#include "rudder/base/philox.h"
#include "rudder/base/token_mask.h"

namespace rudder::testing {

namespace {

constexpr size_t kMaxViolations = 100;

}  // namespace

FakeExecutor::FakeExecutor(FakeOptions options)
    : options_(std::move(options)),
      memory_(static_cast<size_t>(options_.capacity.num_blocks) *
              static_cast<size_t>(options_.capacity.block_size)),
      slots_(static_cast<size_t>(options_.capacity.num_slots)),
      launched_(slots_.size()),
      block_uses_(static_cast<size_t>(options_.capacity.num_blocks)),
      states_(static_cast<size_t>(options_.capacity.states.count)),
      state_uses_(states_.size()),
      placements_(static_cast<size_t>(options_.capacity.tiers.plain_records +
                                      options_.capacity.tiers.stated_records)),
      files_(options_.files != nullptr ? options_.files : std::make_shared<FakeFiles>()),
      taps_(options_.capacity) {
  if (options_.capacity.drafts.guesses) {
    proposer_.emplace(options_.capacity, options_.seed, options_.guess_odds);
  }
}

void FakeExecutor::violation(std::string text) {
  if (violations_.size() < kMaxViolations) violations_.push_back(std::move(text));
}

bool FakeExecutor::draw() {
  return philox4x32(options_.seed ^ options_.moments, ++draws_)[0] % 2 == 0;
}

Result<step::Ticket> FakeExecutor::launch(std::shared_ptr<const step::StepPlan> plan) {
  const step::StepId id = plan->id;
  if (options_.fail_launch_at != 0 && id >= options_.fail_launch_at) dead_ = true;
  if (dead_) return fail(ErrorCode::kInternal, fmt::format("step {} cannot be launched", id));
  if (!check_launch(*plan)) {
    dead_ = true;
    return fail(ErrorCode::kInternal, fmt::format("step {} breaks the step contract", id));
  }
  const int64_t now = options_.clock != nullptr ? options_.clock->now_us() : 0;
  const int64_t device_us = options_.duration_us
                                ? options_.duration_us(*plan)
                                : options_.step_us + options_.token_us * plan->num_tokens();
  last_launched_ = id;
  InFlight& step = in_flight_.emplace_back();
  step.begins_at_us = std::max(now, busy_until_us_);
  step.device_us = device_us;
  time_guesses(*plan, step);
  busy_until_us_ = step.begins_at_us + plan->repeat * device_us + step.guess_us;
  step.results.reserve(static_cast<size_t>(plan->repeat));
  for (const step::SeqWork& work : plan->seqs) {
    step.unsure.push_back(drafts_in_flight(work.slot, work.generation));
  }
  if (options_.capacity.states.slow_copies) begin_slow_copies(*plan);
  begin_records(*plan);
  step.plan = std::move(plan);
  run_some();
  return step::Ticket{id};
}

Result<void> FakeExecutor::supply(step::Ticket ticket, std::span<const uint32_t> masks) {
  if (dead_) return fail(ErrorCode::kInternal, fmt::format("step {} is lost", ticket.id));
  const bool is_last = !in_flight_.empty() && in_flight_.back().plan->id == ticket.id;
  if (!is_last || !in_flight_.back().awaits_masks()) {
    violation(fmt::format("step {} gets masks that it does not wait for", ticket.id));
    return {};
  }
  InFlight& step = in_flight_.back();
  const size_t wanted =
      static_cast<size_t>(step.plan->num_masks()) * mask_words(options_.capacity.vocab_size);
  if (masks.size() != wanted) {
    violation(
        fmt::format("step {} gets {} words of masks, not {}", ticket.id, masks.size(), wanted));
  }
  step.masks.assign(masks.begin(), masks.end());
  step.masks.resize(wanted);
  run_some();
  return {};
}

Result<step::StepResult> FakeExecutor::collect(step::Ticket ticket) {
  if (options_.fail_collect_at != 0 && ticket.id >= options_.fail_collect_at) dead_ = true;
  if (dead_) return fail(ErrorCode::kInternal, fmt::format("step {} is lost", ticket.id));
  if (in_flight_.empty() || in_flight_.front().plan->id != ticket.id) {
    violation(fmt::format("step {} is collected out of order", ticket.id));
    dead_ = true;
    return fail(ErrorCode::kInternal, fmt::format("step {} is collected out of order", ticket.id));
  }
  if (in_flight_.front().awaits_masks()) {
    violation(fmt::format("step {} is collected without its masks", ticket.id));
    dead_ = true;
    return fail(ErrorCode::kInternal, fmt::format("step {} waits for its masks", ticket.id));
  }
  run_some();
  InFlight& step = in_flight_.front();
  if (std::ssize(step.results) == step.collected) run(step);
  if (options_.clock != nullptr) {
    options_.clock->advance_to(step.ends_at_us());
  } else if (options_.sleep_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(options_.sleep_us));
  }
  step::StepResult result = std::move(step.results[static_cast<size_t>(step.collected)]);
  copies_told_ = result.copies_done;
  for (const step::RecordDone& done : result.records_done) {
    count_record(untold_.at(done.id), -1);
    untold_.erase(done.id);
  }
  if (options_.differ_at != 0 && ticket.id >= options_.differ_at && !has_differed_) {
    const auto told = std::ranges::find_if(
        result.seqs, [](const step::SeqResult& seq) { return !seq.tokens.empty(); });
    if (told != result.seqs.end()) {
      told->tokens.front() ^= 1;
      has_differed_ = true;
    }
  }
  if (++step.collected == step.plan->repeat) {
    in_flight_.pop_front();
    last_collected_ = ticket.id;
  }
  return result;
}

bool FakeExecutor::ready(step::Ticket ticket) {
  if (ticket.id <= last_collected_) return true;
  run_some();
  if (options_.clock == nullptr) return options_.sleep_us == 0;
  const auto step = std::ranges::find_if(
      in_flight_, [&](const InFlight& other) { return other.plan->id == ticket.id; });
  return step != in_flight_.end() && step->ends_at_us() <= options_.clock->now_us();
}

void FakeExecutor::run_some() {
  for (InFlight& step : in_flight_) {
    while (std::ssize(step.results) < step.plan->repeat) {
      if (step.awaits_masks() || !draw()) return;
      run(step);
    }
  }
}

// What its sequences run. After the first iteration that is the token that each has sampled; and a
// sequence that was launched behind drafts begins where its slot ends.
step::StepPlan FakeExecutor::plan_of_iteration(const InFlight& step, int32_t iteration) const {
  step::StepPlan plan;
  plan.id = step.plan->id;
  plan.seqs = step.plan->seqs;
  plan.tokens = step.plan->tokens;
  // Of a guess that is shorter, the drafts behind it are no tokens.
  const auto take_guess = [&](step::SeqWork& work) {
    work.token_begin = static_cast<int32_t>(plan.tokens.size());
    std::vector<int32_t> guess = slots_[static_cast<size_t>(work.slot.value)].guess;
    guess.resize(static_cast<size_t>(work.num_draft), RUDDER_MUTANT(kShortGuessFilled) ? 0 : -1);
    plan.tokens.insert(plan.tokens.end(), guess.begin(), guess.end());
  };
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    step::SeqWork& work = plan.seqs[i];
    const int32_t back = work.kv_len - slots_[static_cast<size_t>(work.slot.value)].kv_len;
    if (step.unsure[i] > 0 && back > 0 && back <= step.unsure[i]) work.kv_len -= back;
    if (work.takes_guess) take_guess(work);
    if (iteration == 0) continue;
    work.tokens = step::TokenSource::kCarry;
    work.kv_len += iteration;
    work.append_blocks.clear();
  }
  return plan;
}

void FakeExecutor::run(InFlight& step) {
  const auto iteration = static_cast<int32_t>(step.results.size());
  if (iteration == 0) {
    for (const step::SlotEdit& edit : step.plan->slots) open_slot(edit);
    if (!options_.capacity.states.slow_copies) copy_states(step.plan->copies_before);
    taps_.apply(*step.plan);
  }
  const bool is_unsure = std::ranges::any_of(step.unsure, [](int32_t n) { return n > 0; }) ||
                         std::ranges::any_of(step.plan->seqs, &step::SeqWork::takes_guess);
  const bool as_planned = iteration == 0 && !is_unsure;
  const step::StepPlan moved = as_planned ? step::StepPlan() : plan_of_iteration(step, iteration);
  const step::StepPlan& plan = as_planned ? *step.plan : moved;
  step::StepResult result;
  result.id = plan.id;
  result.iteration = iteration;
  result.device_us = step.device_us;
  result.guess_us = step.told_guess_us;
  result.seqs.reserve(plan.seqs.size());
  std::span<const uint32_t> masks = step.masks;
  const size_t words = mask_words(options_.capacity.vocab_size);
  for (int32_t i = 0; i < std::ssize(plan.seqs); ++i) {
    const step::SeqWork& work = plan.seqs[static_cast<size_t>(i)];
    const size_t num_masks = work.constrained ? static_cast<size_t>(1 + work.num_draft) : 0;
    result.seqs.push_back(run_sequence(plan, i, masks.first(num_masks * words)));
    masks = masks.subspan(num_masks * words);
  }
  if (iteration + 1 == step.plan->repeat) {
    end_slow_copies(*step.plan);
    copy_states(step.plan->copies_after);
    end_records(*step.plan, &result);
  }
  result.copies_done = copies_done_;
  result.captured = taps_.take_captured();
  if (options_.loses_rows && result.captured != nullptr) {
    auto lost = std::make_shared<tap::CapturedRows>(*result.captured);
    lost->data = nullptr;
    result.captured = std::move(lost);
  }
  step.results.push_back(std::move(result));
}

void FakeExecutor::open_slot(const step::SlotEdit& edit) {
  Slot& slot = slots_[static_cast<size_t>(edit.slot.value)];
  slot = Slot{};
  slot.blocks = edit.blocks;
  slot.blocks.resize(static_cast<size_t>(num_groups()));
  const auto is_passed = [](const step::GroupTable& table) {
    return !table.empty() && table.front() == step::kNoBlock;
  };
  windowed_hits_ += std::ranges::any_of(slot.blocks, is_passed) ? 1 : 0;
  slot.kv_len =
      static_cast<int32_t>(std::ssize(slot.blocks.front())) * options_.capacity.block_size;
  slot.prompt_len = edit.prompt_len;
  slot.num_output = edit.num_output;
  slot.max_len = edit.max_len;
  slot.sampling = edit.sampling;
  if (edit.sampling.needs_history()) slot.history = edit.history;
  slot.history_prompt_len = edit.history_prompt_len;
  slot.state = edit.state;
  if (edit.state != step::kNoState && slot.kv_len == 0) {
    states_[static_cast<size_t>(edit.state)] = State{};
  }
}

step::SeqResult FakeExecutor::run_sequence(const step::StepPlan& plan, int32_t index,
                                           std::span<const uint32_t> masks) {
  const step::SeqWork& work = plan.seqs[static_cast<size_t>(index)];
  step::SeqResult result;
  result.slot = work.slot;
  result.generation = work.generation;
  Slot& slot = slots_[static_cast<size_t>(work.slot.value)];
  if (slot.ended) {
    result.masked = true;
    ++masked_results_;
    for (int32_t q = 0; q < work.q_len; ++q) {
      if (FakeTaps::is_captured(work, q)) taps_.capture(plan, index, q, 0);
    }
    return result;
  }
  for (size_t g = 0; g < work.append_blocks.size(); ++g) {
    const step::GroupTable& added = work.append_blocks[g];
    slot.blocks[g].insert(slot.blocks[g].end(), added.begin(), added.end());
  }
  if (work.kv_len != slot.kv_len) {
    violation(fmt::format("step {}: slot {} goes on at {}, its KV ends at {}", plan.id,
                          work.slot.value, work.kv_len, slot.kv_len));
  }
  if (work.tokens == step::TokenSource::kCarry && !slot.carry) {
    violation(fmt::format("step {}: slot {} has no token to carry", plan.id, work.slot.value));
  }
  const uint64_t context_hash = read_context(plan, work, slot);
  run_tokens(plan, index, slot, context_hash, &result);
  advance_state(plan, work, slot, context_hash);
  computed_tokens_ += static_cast<uint64_t>(work.q_len);
  slot.kv_len = work.kv_len + work.q_len - work.num_draft;
  if (work.logits != step::LogitsWanted::kNone) sample_sequence(plan, work, slot, masks, &result);
  if (!work.guess.empty() && !slot.ended) run_guess(work, slot, &result);
  if (options_.capacity.drafts.keeps_guesses) slot.guess = result.guess;
  return result;
}

// The sequence's tokens one by one, as if each but the first were sampled only because the one
// before it gave its draft.
void FakeExecutor::sample_sequence(const step::StepPlan& plan, const step::SeqWork& work,
                                   Slot& slot, std::span<const uint32_t> masks,
                                   step::SeqResult* result) {
  const size_t words = work.constrained ? mask_words(options_.capacity.vocab_size) : 0;
  const auto draft_of = [&](int32_t row) {
    return plan.tokens[static_cast<size_t>(work.token_begin + row - 1)];
  };
  const auto is_behind = [&](int32_t row, int32_t last) {
    return work.tree.empty() ? row == last + 1 : work.tree.parent(row) == last;
  };
  const int32_t first = work.q_len - 1 - work.num_draft;  // of a chunk its last token
  std::vector<int32_t> path = {0};
  for (;;) {
    const int32_t last = path.back();
    sample_token(slot, work, cell(slot, 0, work.kv_len + first + last),
                 masks.subspan(static_cast<size_t>(last) * words, words), result);
    if (result->end == step::SeqEnd::kNumerical) break;
    if (slot.ended && !RUDDER_MUTANT(kStopInsideDraftsMissed)) break;
    int32_t next = 0;
    for (int32_t row = last + 1; row <= work.num_draft; ++row) {
      if (!is_behind(row, last)) continue;
      const bool is_right = slot.carry == draft_of(row);
      if (!is_right && RUDDER_MUTANT(kRejectedPenaltyKept)) slot.history.push_back(draft_of(row));
      if (next == 0 && (is_right || RUDDER_MUTANT(kAcceptsOneTooMany))) next = row;
    }
    if (next == 0) break;
    path.push_back(next);
    ++slot.kv_len;
  }
  const bool is_kept = result->end != step::SeqEnd::kNumerical && !RUDDER_MUTANT(kPathNotKept);
  if (!work.tree.empty() && is_kept) keep_path(work, slot, path);
}

// To where a chain of these rows of a tree has its tokens.
void FakeExecutor::keep_path(const step::SeqWork& work, const Slot& slot,
                             std::span<const int32_t> rows) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    for (int32_t i = 0; i < std::ssize(rows); ++i) {
      Cell& to = cell(slot, group, work.kv_len + i);
      const int32_t left = to.row;
      to = Cell(cell(slot, group, work.kv_len + rows[static_cast<size_t>(i)]));
      if (RUDDER_MUTANT(kRowsNotKept)) to.row = left;
    }
  }
}

void FakeExecutor::run_tokens(const step::StepPlan& plan, int32_t index, Slot& slot,
                              uint64_t prefix_hash, step::SeqResult* result) {
  const step::SeqWork& work = plan.seqs[static_cast<size_t>(index)];
  const Reading before = slot.reading;
  const uint64_t context_hash = prefix_hash;
  for (int32_t q = 0; q < work.q_len; ++q) {
    const int32_t position = work.kv_len + work.depth(q);
    if (!work.tree.empty() && !RUDDER_MUTANT(kSiblingSeen)) {
      prefix_hash =
          q == 0 ? context_hash : cell(slot, 0, work.kv_len + work.tree.parent(q)).prefix_hash;
    }
    const bool carries = work.tokens == step::TokenSource::kCarry;
    const int32_t token = carries && q == 0
                              ? slot.carry.value_or(0)
                              : plan.tokens[static_cast<size_t>(work.token_begin + q - carries)];
    const FakeProgram& program = taps_.program(FakeTaps::tap_row(work, q));
    if (program.writes_latch && position < slot.prompt_len) {
      slot.latch += latch_sample(prefix_hash, token);
    }
    if (program.reads_latch && work.kv_len < slot.prompt_len && position >= slot.prompt_len) {
      violation(fmt::format("step {}: slot {} reads at {} latches that this step fills", plan.id,
                            work.slot.value, position));
    }
    if (program.is_controlled && position >= slot.prompt_len && before.position != position - 1) {
      violation(
          fmt::format("step {}: slot {} needs at {} the reading of the token before, not of {}",
                      plan.id, work.slot.value, position, before.position));
    }
    const uint64_t effect = program.effect(position - slot.prompt_len, slot.latch, before.value);
    if (program.is_controlled) slot.reading = {position, reading_of(prefix_hash, token)};
    const uint64_t before_hash = prefix_hash;
    prefix_hash = extend_hash(before_hash, token, effect);
    for (int32_t group = 0; group < num_groups(); ++group) {
      cell(slot, group, work.kv_len + q) = {.token = token,
                                            .row = token,
                                            .position = position,
                                            .group = group,
                                            .before_hash = before_hash,
                                            .prefix_hash = prefix_hash};
    }
    if (FakeTaps::is_captured(work, q)) taps_.capture(plan, index, q, prefix_hash);
    const int32_t scored = q - work.score_begin;
    if (scored < 0 || scored >= std::ssize(work.score_tokens)) continue;
    result->scores.push_back(score_token(work.score_tokens[static_cast<size_t>(scored)],
                                         prefix_hash, slot.sampling.num_prompt_logprobs,
                                         options_.capacity.vocab_size));
  }
}

FakeExecutor::Cell& FakeExecutor::cell(const Slot& slot, int32_t group, int32_t position) {
  const int32_t size = options_.capacity.block_size;
  const int32_t block =
      slot.blocks[static_cast<size_t>(group)][static_cast<size_t>(position / size)];
  return memory_[static_cast<size_t>(block) * static_cast<size_t>(size) +
                 static_cast<size_t>(position % size)];
}

// Hash of all tokens before the sequence's part of the step, as the group finds them: each cell
// must have been written behind the one before it. What a window does not reach is known by the
// hash of the first token that it does. The memory is read whole for every token, block by block.
uint64_t FakeExecutor::read_group(const step::StepPlan& plan, const step::SeqWork& work,
                                  const Slot& slot, int32_t group) {
  const int32_t window = options_.capacity.kv_groups[static_cast<size_t>(group)].window;
  const int32_t begin = window == 0 ? 0 : std::max(0, work.kv_len - window + 1);
  uint64_t hash = kEmptyPrefixHash;
  bool good = true;
  const int32_t size = options_.capacity.block_size;
  for (int32_t position = begin; position < work.kv_len;) {
    const Cell* found = &cell(slot, group, position);
    const int32_t end = std::min(work.kv_len, (position / size + 1) * size);
    for (; position < end; ++position, ++found) {
      const bool is_first_of_window = position == begin && begin > 0;
      const bool fits = (found->before_hash == hash || is_first_of_window) &&
                        found->position == position && found->group == group && !found->poisoned;
      if (good && !fits) {
        violation(
            fmt::format("step {}: slot {} finds in group {}, at {}, token {} of position {}{}",
                        plan.id, work.slot.value, group, position, found->token, found->position,
                        found->poisoned ? ", a NaN" : ", or of another prefix or group"));
      }
      good = good && fits;
      hash = found->prefix_hash;
    }
  }
  return hash;
}

uint64_t FakeExecutor::read_context(const step::StepPlan& plan, const step::SeqWork& work,
                                    const Slot& slot) {
  const uint64_t hash = read_group(plan, work, slot, 0);
  for (int32_t group = 1; group < num_groups(); ++group) {
    if (read_group(plan, work, slot, group) == hash) continue;
    violation(fmt::format("step {}: slot {} finds other tokens in group {} than in the first",
                          plan.id, work.slot.value, group));
  }
  return hash;
}

void FakeExecutor::sample_token(Slot& slot, const step::SeqWork& work, const Cell& last,
                                std::span<const uint32_t> mask, step::SeqResult* result) {
  const int32_t position = slot.kv_len;
  const bool is_banned = !mask.empty() && is_mask_empty(mask);
  if (is_banned || (options_.numerical && options_.numerical(slot.sampling.seed, position))) {
    for (int32_t group = 0; group < num_groups(); ++group) {
      for (int32_t i = work.kv_len; i < slot.kv_len; ++i) cell(slot, group, i).poisoned = true;
    }
    if (slot.state != step::kNoState) states_[static_cast<size_t>(slot.state)].poisoned = true;
    result->end = step::SeqEnd::kNumerical;
    slot.ended = true;
    return;
  }
  const SampledToken sampled = testing::sample_token({.prefix_hash = last.prefix_hash,
                                                      .position = position,
                                                      .num_output = slot.num_output,
                                                      .max_len = slot.max_len,
                                                      .vocab_size = options_.capacity.vocab_size,
                                                      .sampling = slot.sampling,
                                                      .history = slot.history,
                                                      .history_prompt_len = slot.history_prompt_len,
                                                      .mask = mask});
  result->tokens.push_back(sampled.token);
  if (slot.sampling.num_logprobs >= 0) result->logprobs.push_back(sampled.logprobs);
  result->end = sampled.end;
  slot.ended = sampled.end != step::SeqEnd::kNone;
  slot.carry = sampled.token;
  ++slot.num_output;
  if (slot.sampling.needs_history()) slot.history.push_back(sampled.token);
}

}  // namespace rudder::testing
