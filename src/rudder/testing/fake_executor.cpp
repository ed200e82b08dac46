#include "rudder/testing/fake_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

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
      taps_(options_.capacity) {}

void FakeExecutor::violation(std::string text) {
  if (violations_.size() < kMaxViolations) violations_.push_back(std::move(text));
}

bool FakeExecutor::draw() {
  return philox4x32(options_.seed, ++draws_)[0] % 2 == 0;
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
  busy_until_us_ = step.begins_at_us + plan->repeat * device_us;
  step.results.reserve(static_cast<size_t>(plan->repeat));
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
      static_cast<size_t>(step.plan->num_constrained()) * mask_words(options_.capacity.vocab_size);
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

bool FakeExecutor::check_launch(const step::StepPlan& plan) {
  const step::Capacity& capacity = options_.capacity;
  const size_t known = violations_.size();
  if (plan.id != last_launched_ + 1) {
    violation(fmt::format("step {} is launched after step {}", plan.id, last_launched_));
  }
  if (std::ssize(in_flight_) >= capacity.max_in_flight) {
    violation(fmt::format("step {}: {} steps are in flight already", plan.id, in_flight_.size()));
  }
  if (!in_flight_.empty() && in_flight_.back().awaits_masks()) {
    violation(fmt::format("step {}: the step before waits for its masks", plan.id));
  }
  const bool is_empty = plan.seqs.empty() && plan.tap_edits.empty() && plan.capture_edits.empty();
  if (is_empty || plan.num_tokens() > capacity.max_tokens_per_step) {
    violation(fmt::format("step {} has {} tokens", plan.id, plan.num_tokens()));
  }
  if (plan.repeat < 1 || plan.repeat > capacity.max_repeat) {
    violation(fmt::format("step {} has {} iterations", plan.id, plan.repeat));
  }
  for (const step::SlotEdit& edit : plan.slots) check_edit(plan, edit);
  for (const step::SeqWork& work : plan.seqs) check_work(plan, work);
  std::vector<std::string> wrong;
  taps_.check(plan, &wrong);
  for (const std::string& text : wrong) violation(fmt::format("step {}: {}", plan.id, text));
  return violations_.size() == known;
}

void FakeExecutor::check_edit(const step::StepPlan& plan, const step::SlotEdit& edit) {
  const int32_t index = edit.slot.value;
  if (index < 0 || index >= options_.capacity.num_slots) {
    violation(fmt::format("step {}: slot {} does not exist", plan.id, index));
    return;
  }
  LaunchedSlot& slot = launched_[static_cast<size_t>(index)];
  if (slot.last_step > last_collected_) {
    violation(fmt::format("step {}: slot {} is reopened while step {} names it", plan.id, index,
                          slot.last_step));
  }
  if (edit.generation <= slot.generation) {
    violation(fmt::format("step {}: slot {} is reopened under generation {} after {}", plan.id,
                          index, edit.generation, slot.generation));
  }
  slot = {.generation = edit.generation, .max_len = edit.max_len, .blocks = {}};
  if (!check_group_count(plan, edit.blocks.size())) return;
  slot.blocks = edit.blocks;
  slot.blocks.resize(static_cast<size_t>(num_groups()));
  for (const step::GroupTable& table : slot.blocks) {
    if (table.size() != slot.blocks.front().size()) {
      violation(fmt::format("step {}: the tables of slot {} differ in length", plan.id, index));
    }
    for (const step::BlockId block : table) {
      if (block == step::kNoBlock) continue;  // a window may be past it
      if (block < 0 || block >= options_.capacity.num_blocks) {
        violation(fmt::format("step {}: block {} does not exist", plan.id, block));
        continue;
      }
      const BlockUse& use = block_uses_[static_cast<size_t>(block)];
      if (is_writing(use)) {
        violation(fmt::format("step {}: slot {} shares block {}, which step {} is writing", plan.id,
                              index, block, use.last_write));
      }
    }
  }
}

bool FakeExecutor::check_group_count(const step::StepPlan& plan, size_t num_tables) {
  if (num_tables == 0 || num_tables == static_cast<size_t>(num_groups())) return true;
  violation(fmt::format("step {}: blocks of {} groups, not {}", plan.id, num_tables, num_groups()));
  return false;
}

void FakeExecutor::append_blocks(const step::StepPlan& plan, const step::SeqWork& work,
                                 LaunchedSlot& slot) {
  if (!check_group_count(plan, work.append_blocks.size())) return;
  for (size_t g = 0; g < work.append_blocks.size(); ++g) {
    if (work.append_blocks[g].size() != work.append_blocks[0].size()) {
      violation(fmt::format("step {}: a row's tables grow apart", plan.id));
    }
    for (const step::BlockId block : work.append_blocks[g]) {
      if (block < 0 || block >= options_.capacity.num_blocks) {
        violation(fmt::format("step {}: block {} does not exist", plan.id, block));
        continue;
      }
      const step::StepId user = block_uses_[static_cast<size_t>(block)].last_use;
      if (user > last_collected_) {
        violation(fmt::format("step {}: slot {} gets block {}, which step {} still uses", plan.id,
                              work.slot.value, block, user));
      }
      slot.blocks[g].push_back(block);
    }
  }
}

// What the row reads and writes of each group, up to `end`.
void FakeExecutor::note_use(const step::StepPlan& plan, const step::SeqWork& work,
                            const LaunchedSlot& slot, int64_t end) {
  const int64_t size = options_.capacity.block_size;
  for (size_t g = 0; g < slot.blocks.size(); ++g) {
    const step::GroupTable& table = slot.blocks[g];
    const int32_t window = options_.capacity.kv_groups[g].window;
    const int64_t seen = window == 0 ? 0 : std::max<int64_t>(0, int64_t{work.kv_len} - window + 1);
    for (int64_t i = seen / size; i < std::ssize(table) && i * size < end; ++i) {
      const step::BlockId block = table[static_cast<size_t>(i)];
      if (block == step::kNoBlock) {
        violation(fmt::format("step {}: slot {} sees position {} of group {}, whose block is gone",
                              plan.id, work.slot.value, seen, g));
        continue;
      }
      BlockUse& use = block_uses_[static_cast<size_t>(block)];
      use.last_use = plan.id;
      if ((i + 1) * size <= work.kv_len) continue;
      use.last_write = plan.id;
      const int64_t last = std::min((i + 1) * size, end) - 1;
      use.last_write_iteration =
          static_cast<int32_t>(std::max<int64_t>(0, last - work.kv_len - work.q_len + 1));
    }
  }
}

bool FakeExecutor::is_writing(const BlockUse& use) const {
  if (use.last_write <= last_collected_) return false;
  const InFlight& oldest = in_flight_.front();
  return use.last_write != oldest.plan->id || use.last_write_iteration >= oldest.collected;
}

void FakeExecutor::check_work(const step::StepPlan& plan, const step::SeqWork& work) {
  const int32_t index = work.slot.value;
  if (index < 0 || index >= options_.capacity.num_slots || work.q_len < 1 || work.kv_len < 0) {
    violation(fmt::format("step {}: slot {} runs {} tokens after {}", plan.id, index, work.q_len,
                          work.kv_len));
    return;
  }
  LaunchedSlot& slot = launched_[static_cast<size_t>(index)];
  if (slot.generation != work.generation || slot.last_step == plan.id) {
    violation(fmt::format("step {}: slot {} runs twice, or under generation {} after {}", plan.id,
                          index, work.generation, slot.generation));
  }
  slot.last_step = plan.id;
  slot.blocks.resize(static_cast<size_t>(num_groups()));
  append_blocks(plan, work, slot);
  const bool is_repeatable = work.q_len == 1 && work.logits == step::LogitsWanted::kLast &&
                             work.captures.empty() && !work.constrained;
  if (plan.repeat > 1 && !is_repeatable) {
    violation(fmt::format("step {}: slot {} repeats {} tokens, a capture or a mask", plan.id, index,
                          work.q_len));
  }
  if (work.constrained && work.logits != step::LogitsWanted::kLast) {
    violation(fmt::format("step {}: slot {} has a mask for no token", plan.id, index));
  }
  const int64_t size = options_.capacity.block_size;
  const int64_t end =
      int64_t{work.kv_len} + work.q_len + step::row_iterations(work, plan.repeat, slot.max_len) - 1;
  const int64_t num_blocks = std::ssize(slot.blocks.front());
  if (end > num_blocks * size || end >= slot.max_len) {
    violation(fmt::format("step {}: slot {} runs to {} with {} blocks and max_len {}", plan.id,
                          index, end, num_blocks, slot.max_len));
    return;
  }
  note_use(plan, work, slot, end);
  if (!work.score_tokens.empty() &&
      (plan.repeat > 1 || work.score_begin < 0 ||
       work.score_begin + std::ssize(work.score_tokens) > work.q_len)) {
    violation(fmt::format("step {}: slot {} scores tokens that it does not run", plan.id, index));
  }
  const auto num_tokens = std::ssize(plan.tokens);
  const bool carries = work.tokens == step::TokenSource::kCarry;
  if (carries ? work.q_len != 1
              : work.token_begin < 0 || int64_t{work.token_begin} + work.q_len > num_tokens) {
    violation(fmt::format("step {}: slot {} has no tokens to run", plan.id, index));
  }
}

void FakeExecutor::run(InFlight& step) {
  // What its rows run: after the first iteration, the token that each has sampled.
  const step::StepPlan* plan = step.plan.get();
  const auto iteration = static_cast<int32_t>(step.results.size());
  step::StepPlan later;
  if (iteration == 0) {
    for (const step::SlotEdit& edit : plan->slots) open_slot(edit);
    taps_.apply(*plan);
  } else {
    later.id = plan->id;
    later.seqs = plan->seqs;
    for (step::SeqWork& work : later.seqs) {
      work.tokens = step::TokenSource::kCarry;
      work.kv_len += iteration;
      work.append_blocks.clear();
    }
    plan = &later;
  }
  step::StepResult result;
  result.id = plan->id;
  result.iteration = iteration;
  result.device_us = step.device_us;
  result.seqs.reserve(plan->seqs.size());
  std::span<const uint32_t> masks = step.masks;
  for (int32_t i = 0; i < std::ssize(plan->seqs); ++i) {
    const bool is_masked = plan->seqs[static_cast<size_t>(i)].constrained;
    const auto mask = masks.first(is_masked ? mask_words(options_.capacity.vocab_size) : 0);
    masks = masks.subspan(mask.size());
    result.seqs.push_back(run_row(*plan, i, mask));
  }
  result.captured = taps_.take_captured();
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
  slot.history = edit.history;
  slot.history_prompt_len = edit.history_prompt_len;
}

step::SeqResult FakeExecutor::run_row(const step::StepPlan& plan, int32_t index,
                                      std::span<const uint32_t> mask) {
  const step::SeqWork& work = plan.seqs[static_cast<size_t>(index)];
  step::SeqResult result;
  result.slot = work.slot;
  result.generation = work.generation;
  Slot& slot = slots_[static_cast<size_t>(work.slot.value)];
  if (slot.ended) {
    result.masked = true;
    ++masked_rows_;
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
  const uint64_t hash = run_tokens(plan, index, slot, read_context(plan, work, slot), &result);
  computed_tokens_ += static_cast<uint64_t>(work.q_len);
  slot.kv_len = work.kv_len + work.q_len;
  if (work.logits == step::LogitsWanted::kLast) sample_row(slot, work, hash, mask, &result);
  return result;
}

// Returns the hash with the last of the row's tokens.
uint64_t FakeExecutor::run_tokens(const step::StepPlan& plan, int32_t index, Slot& slot,
                                  uint64_t prefix_hash, step::SeqResult* result) {
  const step::SeqWork& work = plan.seqs[static_cast<size_t>(index)];
  for (int32_t q = 0; q < work.q_len; ++q) {
    const int32_t position = work.kv_len + q;
    const int32_t token =
        work.tokens == step::TokenSource::kCarry
            ? slot.carry.value_or(0)
            : plan.tokens[static_cast<size_t>(work.token_begin) + static_cast<size_t>(q)];
    const FakeProgram& program = taps_.program(FakeTaps::tap_row(work, q));
    if (program.writes_latch && position < slot.prompt_len) {
      slot.latch += latch_sample(prefix_hash, token);
    }
    if (program.reads_latch && work.kv_len < slot.prompt_len && position >= slot.prompt_len) {
      violation(fmt::format("step {}: slot {} reads at {} latches that this step fills", plan.id,
                            work.slot.value, position));
    }
    const uint64_t effect = program.effect(position - slot.prompt_len, slot.latch);
    prefix_hash = extend_hash(prefix_hash, token, effect);
    for (int32_t group = 0; group < num_groups(); ++group) {
      cell(slot, group, position) = {.token = token,
                                     .position = position,
                                     .group = group,
                                     .effect = effect,
                                     .prefix_hash = prefix_hash};
    }
    if (FakeTaps::is_captured(work, q)) taps_.capture(plan, index, q, prefix_hash);
    const int32_t scored = q - work.score_begin;
    if (scored < 0 || scored >= std::ssize(work.score_tokens)) continue;
    result->scores.push_back(score_token(work.score_tokens[static_cast<size_t>(scored)],
                                         prefix_hash, slot.sampling.num_prompt_logprobs,
                                         options_.capacity.vocab_size));
  }
  return prefix_hash;
}

FakeExecutor::Cell& FakeExecutor::cell(const Slot& slot, int32_t group, int32_t position) {
  const int32_t size = options_.capacity.block_size;
  const int32_t block =
      slot.blocks[static_cast<size_t>(group)][static_cast<size_t>(position / size)];
  return memory_[static_cast<size_t>(block) * static_cast<size_t>(size) +
                 static_cast<size_t>(position % size)];
}

// Of all tokens before the row's, as the group finds them. What a window does not reach is known by
// the hash of the first token that it does.
uint64_t FakeExecutor::read_group(const step::StepPlan& plan, const step::SeqWork& work,
                                  const Slot& slot, int32_t group) {
  const int32_t window = options_.capacity.kv_groups[static_cast<size_t>(group)].window;
  const int32_t begin = window == 0 ? 0 : std::max(0, work.kv_len - window + 1);
  uint64_t hash = kEmptyPrefixHash;
  bool good = true;
  for (int32_t position = begin; position < work.kv_len; ++position) {
    const Cell& found = cell(slot, group, position);
    hash = position == begin && begin > 0 ? found.prefix_hash
                                          : extend_hash(hash, found.token, found.effect);
    const bool fits = found.position == position && found.group == group &&
                      found.prefix_hash == hash && !found.poisoned;
    if (good && !fits) {
      violation(fmt::format("step {}: slot {} finds in group {}, at {}, token {} of position {}{}",
                            plan.id, work.slot.value, group, position, found.token, found.position,
                            found.poisoned ? ", a NaN" : ", or of another prefix or group"));
    }
    good = good && fits;
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

void FakeExecutor::sample_row(Slot& slot, const step::SeqWork& work, uint64_t prefix_hash,
                              std::span<const uint32_t> mask, step::SeqResult* result) {
  const int32_t position = slot.kv_len;
  if (options_.numerical && options_.numerical(slot.sampling.seed, position)) {
    for (int32_t group = 0; group < num_groups(); ++group) {
      for (int32_t i = work.kv_len; i < slot.kv_len; ++i) cell(slot, group, i).poisoned = true;
    }
    result->end = step::RowEnd::kNumerical;
    slot.ended = true;
    return;
  }
  const SampledToken sampled = sample_token({.prefix_hash = prefix_hash,
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
  slot.ended = sampled.end != step::RowEnd::kNone;
  slot.carry = sampled.token;
  ++slot.num_output;
  if (slot.sampling.needs_history()) slot.history.push_back(sampled.token);
}

}  // namespace rudder::testing
