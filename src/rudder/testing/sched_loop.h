// SchedLoop: runs a Scheduler and a FakeExecutor in the engine's loop, and checks every invariant
// after every plan and every commit. For tests.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rudder/sched/scheduler.h"
#include "rudder/testing/fake_executor.h"
#include "rudder/testing/random_proposer.h"

namespace rudder::testing {

class SchedLoop {
 public:
  // What one sequence got so far, and what it should have got.
  struct Record {
    sched::NewSequence asked;
    std::vector<int32_t> tokens;
    std::vector<int64_t> token_us;                      // when each came, by the options' clock
    std::map<int32_t, std::vector<uint64_t>> captured;  // by position; the words of its record
    step::SeqEnd end = step::SeqEnd::kNone;
    int32_t cached_tokens = 0;
    bool finished = false;  // from the host
    step::StepId first_step = 0;
    step::StepId last_step = 0;  // that gave it output
    int num_outputs = 0;
  };

  // Where the machine takes drafts, `proposer` makes them; null: a RandomProposer.
  SchedLoop(const FakeOptions& fake, const sched::SchedSettings& settings,
            sched::DraftProposer* proposer = nullptr)
      : options_(fake),
        executor_(fake),
        proposer_(
            fake.seed, fake.capacity.vocab_size,
            [this](sched::SequenceId id) { return whole_of(id); }, random_drafts(fake.capacity)),
        scheduler_(fake.capacity, settings, proposer != nullptr ? proposer : &proposer_) {}

  // Checks the invariants after every `count`th plan and commit alone, for long runs.
  void set_check_every(int64_t count) { check_every_ = count; }
  // By the options' clock, the host takes so long to plan and launch a step.
  void set_host_us(int64_t us) { host_us_ = us; }

  // For the next plan to carry.
  sched::TableEdits& edits() { return edits_; }
  sched::Scheduler& scheduler() { return scheduler_; }
  FakeExecutor& executor() { return executor_; }
  std::map<sched::SequenceId, Record>& records() { return records_; }
  Record& record(uint64_t id) { return records_.at(sched::SequenceId(id)); }
  const std::vector<std::shared_ptr<const step::StepPlan>>& plans() const { return plans_; }
  // The first thing that went wrong, in words; empty while nothing has.
  const std::string& error() const { return error_; }

  void add(sched::NewSequence sequence) {
    Record& added = records_[sequence.id];
    added.asked = sequence;
    note(scheduler_.add(std::move(sequence)));
  }

  void finish(uint64_t id) {
    record(id).finished = true;
    scheduler_.finish(sched::SequenceId(id));
    check_integrity();
  }

  // Plans and launches one step; false when there is none.
  bool launch() {
    const bool was_held = scheduler_.is_holding();
    const int64_t num_running = scheduler_.stats().num_running;
    auto plan = scheduler_.plan(&edits_);
    check_integrity();
    if (plan == nullptr) return false;
    if (host_us_ > 0) options_.clock->advance_to(options_.clock->now_us() + host_us_);
    if (was_held && tickets_.empty() && options_.clock != nullptr) {
      scheduler_.note_idle(options_.clock->now_us() - collected_us_);
    }
    for (const sched::SequenceId id : scheduler_.first_planned()) {
      records_.at(id).first_step = plan->id;
      first_planned_.push_back(id);
    }
    plans_.push_back(plan);
    const auto ticket = executor_.launch(plan);
    if (!ticket) return note(tl::unexpected(ticket.error()));
    check_cohort(num_running);
    tickets_.push_back({*ticket, plan->repeat});
    return true;
  }

  // Collects and commits the oldest iteration.
  void collect() {
    const auto result = executor_.collect(tickets_.front().ticket);
    if (options_.clock != nullptr) collected_us_ = options_.clock->now_us();
    ++num_collected_;
    if (--tickets_.front().left == 0) tickets_.pop_front();
    if (!result) {
      note(tl::unexpected(result.error()));
      return;
    }
    std::vector<sched::SequenceOutput> outputs;
    scheduler_.commit(*result, &outputs);
    check_integrity();
    for (const sched::CapturedSequence& captured : scheduler_.captured_sequences())
      take_captured(*result, captured);
    for (const sched::SequenceOutput& output : outputs) take(result->id, output);
    if (!executor_.violations().empty()) note_text("the executor objects");
  }

  // As the engine does: launches while it may, then commits one iteration. False when nothing is
  // left.
  bool turn() {
    while (error_.empty() && launch()) {
    }
    if (tickets_.empty() || !error_.empty()) return false;
    collect();
    return error_.empty();
  }

  // Runs to the end; then everything must be given back and every output as of a lone request.
  const std::string& run(int max_turns = 100'000) {
    for (int i = 0; turn(); ++i) {
      if (i == max_turns) note_text("it does not end");
    }
    check_end();
    return error_;
  }

  void check_end() {
    const sched::SchedStats stats = scheduler_.stats();
    if (error_.empty() && (!scheduler_.idle() || scheduler_.has_work() ||
                           stats.blocks_in_use != 0 || stats.num_retiring != 0)) {
      note_text(fmt::format("{} blocks are in use at the end", stats.blocks_in_use));
    }
    for (const auto& [id, record] : records_) {
      const ExpectedRun expected = expected_of(record);
      if (record.asked.taps != nullptr) check_captured(id, record, expected);
      const bool as_expected =
          record.finished
              ? record.tokens.size() <= expected.tokens.size() &&
                    std::equal(record.tokens.begin(), record.tokens.end(), expected.tokens.begin())
              : record.tokens == expected.tokens && record.end == expected.end;
      if (!as_expected) {
        note_text(fmt::format("sequence {} got {} tokens that a lone request does not get",
                              id.value, record.tokens.size()));
      }
    }
  }

  int64_t num_collected() const { return num_collected_; }  // iterations
  const std::vector<sched::SequenceId>& first_planned() const { return first_planned_; }

 private:
  ExpectedRun expected_of(const Record& record) const {
    return expected_run(record.asked.prompt, record.asked.sampling, record.asked.max_len,
                        options_.capacity.vocab_size, options_.numerical, record.asked.taps.get());
  }

  // Its prompt and all that it will be given.
  std::span<const int32_t> whole_of(sched::SequenceId id) {
    std::vector<int32_t>& whole = wholes_[id];
    if (whole.empty()) {
      const Record& record = records_.at(id);
      whole = record.asked.prompt;
      const ExpectedRun expected = expected_of(record);
      whole.insert(whole.end(), expected.tokens.begin(), expected.tokens.end());
    }
    return whole;
  }

  void take_captured(const step::StepResult& result, const sched::CapturedSequence& captured) {
    Record& record = records_.at(captured.id);
    if (record.finished || record.end != step::SeqEnd::kNone) {
      note_text(fmt::format("sequence {} captures after its end", captured.id.value));
    }
    const tap::CaptureSet& set = *record.asked.taps->capture;
    for (const tap::CapturedToken& token : result.captured->tokens) {
      if (token.seq != captured.seq) continue;
      const bool is_new = record.captured
                              .emplace(token.position, captured_words(*result.captured, token, set,
                                                                      options_.capacity.geometry))
                              .second;
      if (!is_new)
        note_text(fmt::format("sequence {} captures {} twice", captured.id.value, token.position));
    }
  }

  // Every captured position that the sequence ran, and no other.
  void check_captured(sched::SequenceId id, const Record& record, const ExpectedRun& expected) {
    const tap::SequenceTaps& taps = *record.asked.taps;
    const bool ran_out = !record.finished && record.end != step::SeqEnd::kNumerical;
    const auto num_run =
        static_cast<int32_t>(record.asked.prompt.size() + record.tokens.size()) - (ran_out ? 1 : 0);
    size_t num_wanted = 0;
    for (const tap::PositionRange& range : taps.captured) {
      for (int32_t at = range.begin; at < std::min(range.end, num_run); ++at) {
        ++num_wanted;
        const auto found = record.captured.find(at);
        if (found == record.captured.end()) {
          // A cancel may have come before.
          if (ran_out) note_text(fmt::format("sequence {} misses its capture of {}", id.value, at));
          continue;
        }
        for (size_t i = 0; i < found->second.size(); ++i) {
          if (found->second[i] !=
              captured_word(expected.hashes[static_cast<size_t>(at)], *taps.capture, i)) {
            note_text(fmt::format("sequence {} captures another row at {}", id.value, at));
          }
        }
      }
    }
    if (record.captured.size() > num_wanted) {
      note_text(fmt::format("sequence {} captures {} tokens, {} were asked for", id.value,
                            record.captured.size(), num_wanted));
    }
  }

  void take(step::StepId step, const sched::SequenceOutput& output) {
    Record& record = records_.at(output.id);
    if (record.finished || record.end != step::SeqEnd::kNone) {
      note_text(fmt::format("sequence {} gets output after its end", output.id.value));
    }
    record.tokens.insert(record.tokens.end(), output.tokens.begin(), output.tokens.end());
    if (options_.clock != nullptr) {
      record.token_us.resize(record.tokens.size(), options_.clock->now_us());
    }
    record.end = output.end;
    record.cached_tokens = output.cached_tokens;
    record.last_step = step;
    ++record.num_outputs;
  }

  void check_cohort(int64_t running_before) {
    const int64_t cohorts = options_.num_cohorts;
    const int64_t decodes = executor_.take_most_decodes();
    const int64_t running = std::max<int64_t>(running_before, scheduler_.stats().num_running);
    if (cohorts == 1 || decodes <= (running + cohorts - 1) / cohorts) return;
    note_text(
        fmt::format("a step decodes {} of {} sequences in {} cohorts", decodes, running, cohorts));
  }
  void check_integrity() {
    if (++num_changes_ % check_every_ == 0) note(scheduler_.check_integrity());
  }
  bool note(const Result<void>& result) {
    if (!result) note_text(result.error().message);
    return false;
  }
  void note_text(std::string text) {
    if (!error_.empty()) return;
    error_ = std::move(text);
    for (const std::string& violation : executor_.violations()) error_ += "; " + violation;
  }

  const FakeOptions options_;
  FakeExecutor executor_;
  RandomProposer proposer_;
  std::map<sched::SequenceId, std::vector<int32_t>> wholes_;
  sched::Scheduler scheduler_;
  sched::TableEdits edits_;
  std::map<sched::SequenceId, Record> records_;
  struct Launched {
    step::Ticket ticket;
    int32_t left = 1;  // iterations
  };
  std::deque<Launched> tickets_;
  int64_t num_collected_ = 0;
  int64_t host_us_ = 0;
  int64_t collected_us_ = 0;
  int64_t check_every_ = 1;
  int64_t num_changes_ = 0;
  std::vector<std::shared_ptr<const step::StepPlan>> plans_;
  std::vector<sched::SequenceId> first_planned_;
  std::string error_;
};

// `len` tokens that differ between seeds.
inline std::vector<int32_t> test_prompt(int32_t len, int32_t seed) {
  std::vector<int32_t> tokens(static_cast<size_t>(len));
  for (int32_t i = 0; i < len; ++i) tokens[static_cast<size_t>(i)] = (seed * 131 + i * 7) % 1000;
  return tokens;
}

inline sched::NewSequence test_sequence(uint64_t id, std::vector<int32_t> prompt,
                                        int32_t num_output) {
  sched::NewSequence sequence;
  sequence.id = sched::SequenceId(id);
  sequence.max_len = static_cast<int32_t>(prompt.size()) + num_output;
  sequence.prompt = std::move(prompt);
  sequence.sampling.seed = id;
  return sequence;
}

}  // namespace rudder::testing
