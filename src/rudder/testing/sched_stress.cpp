#include "rudder/testing/sched_stress.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>

#include "rudder/base/check.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::testing {

namespace {

constexpr int32_t kAlphabet = 4;

class Stress {
 public:
  explicit Stress(uint64_t seed)
      : random_(seed),
        fake_(draw_machine(seed)),
        settings_(draw_settings()),
        loop_(fake_, settings_) {
    for (auto& prompt : prompts_) prompt = draw_tokens(pick(1, fake_.capacity.max_seq_len - 1));
  }

  std::string run(StressTotals* totals) {
    const int32_t num_sequences = pick(5, 40);
    uint64_t next_id = 1;
    for (int turns = 0; loop_.error().empty(); ++turns) {
      if (turns > 20'000) return "it does not end";
      const bool more = next_id <= static_cast<uint64_t>(num_sequences);
      if (more && chance(30)) loop_.add(draw_sequence(next_id++));
      if (next_id > 1 && chance(3)) loop_.finish(draw_id(next_id));
      if (chance(1)) loop_.scheduler().reset_prefix_cache();
      const bool can_collect = loop_.scheduler().steps_in_flight() > 0;
      const bool launched = (!can_collect || chance(60)) && loop_.launch();
      if (!launched && can_collect) loop_.collect();
      if (!launched && !can_collect && !more) break;
    }
    if (loop_.error().empty()) loop_.run();
    add_totals(totals);
    return loop_.error().empty() ? check_order() : loop_.error();
  }

 private:
  int32_t pick(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool chance(int32_t percent) { return pick(1, 100) <= percent; }

  FakeOptions draw_machine(uint64_t seed) {
    FakeOptions fake;
    fake.seed = seed;
    step::Capacity& capacity = fake.capacity;
    capacity.block_size = pick(0, 1) == 0 ? 4 : pick(1, 8);
    capacity.num_blocks = pick(4, 32);
    capacity.num_slots = pick(1, 10);
    capacity.max_tokens_per_step = pick(1, 40);
    capacity.max_seq_len = pick(2, std::min(64, capacity.num_blocks * capacity.block_size));
    capacity.vocab_size = chance(50) ? 16 : 1000;
    capacity.max_in_flight = pick(1, 4);
    if (chance(30)) {
      fake.numerical = [](uint64_t sampling_seed, int32_t position) {
        return (sampling_seed * 31 + static_cast<uint64_t>(position) * 17) % 101 == 0;
      };
    }
    return fake;
  }

  sched::SchedSettings draw_settings() {
    sched::SchedSettings settings;
    settings.max_num_seqs = pick(1, 10);
    settings.max_num_batched_tokens = pick(1, 40);
    settings.max_in_flight = pick(1, 4);
    settings.enable_prefix_caching = chance(80);
    settings.model_identity = "model";
    settings.hash_key = {random_(), random_()};
    settings.hash_bits = chance(40) ? 1 : 128;
    settings.max_wait_steps = chance(20) ? 50 : 10'000;
    return settings;
  }

  std::vector<int32_t> draw_tokens(int32_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = pick(0, kAlphabet - 1);
    return tokens;
  }

  uint64_t draw_id(uint64_t next_id) {
    return static_cast<uint64_t>(pick(1, static_cast<int32_t>(next_id) - 1));
  }

  // A prefix of a few shared prompts and a tail, or a second turn of an earlier sequence.
  std::vector<int32_t> draw_prompt(uint64_t id) {
    const auto longest = static_cast<size_t>(fake_.capacity.max_seq_len - 1);
    std::vector<int32_t> prompt;
    if (id > 1 && chance(30)) {
      const SchedLoop::Record& earlier = loop_.record(draw_id(id));
      prompt = earlier.asked.prompt;
      prompt.insert(prompt.end(), earlier.tokens.begin(), earlier.tokens.end());
    } else {
      prompt = prompts_[static_cast<size_t>(pick(0, 2))];
      prompt.resize(static_cast<size_t>(pick(1, static_cast<int32_t>(prompt.size()))));
    }
    const std::vector<int32_t> tail = draw_tokens(chance(50) ? 0 : pick(1, 6));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    prompt.resize(std::min(prompt.size(), longest));
    return prompt;
  }

  sched::NewSequence draw_sequence(uint64_t id) {
    sched::NewSequence sequence;
    sequence.id = sched::SequenceId(id);
    sequence.prompt = draw_prompt(id);
    const auto prompt_len = static_cast<int32_t>(sequence.prompt.size());
    sequence.max_len = pick(prompt_len + 1, fake_.capacity.max_seq_len);
    sequence.priority = chance(70) ? 0 : pick(-1, 1);
    sequence.cache_salt = chance(70) ? "" : chance(50) ? "a" : "b";
    step::SamplingParams& sampling = sequence.sampling;
    sampling.temperature = chance(50) ? 0.0f : 1.0f;
    sampling.seed = static_cast<uint64_t>(pick(0, 20));
    if (chance(40)) sampling.stop_ids = {1, 5, 9};
    if (chance(30)) sampling.min_tokens = pick(0, 5);
    if (chance(20)) sampling.frequency_penalty = 0.5f;
    if (chance(20)) sampling.num_logprobs = pick(0, 3);
    return sequence;
  }

  // Without held admissions the queue is first come, first served within a priority.
  std::string check_order() {
    if (settings_.enable_prefix_caching) return "";
    std::map<int32_t, sched::SequenceId> last;
    for (const sched::SequenceId id : loop_.first_planned()) {
      sched::SequenceId& before = last[loop_.record(id.value).asked.priority];
      if (id < before)
        return fmt::format("sequence {} was overtaken by {}", id.value, before.value);
      before = id;
    }
    return "";
  }

  void add_totals(StressTotals* totals) {
    if (totals == nullptr) return;
    const sched::SchedStats stats = loop_.scheduler().stats();
    totals->steps += stats.steps;
    totals->preemptions += stats.preemptions;
    totals->prefix_hits += stats.prefix_hits;
    totals->evictions += stats.evictions;
    totals->late_rows += stats.late_rows;
    for (const auto& [id, record] : loop_.records()) {
      totals->numerical += record.end == step::RowEnd::kNumerical;
      totals->finished_by_host += record.finished;
    }
  }

  std::mt19937_64 random_;
  const FakeOptions fake_;
  const sched::SchedSettings settings_;
  SchedLoop loop_;
  std::vector<int32_t> prompts_[3];
};

void throw_failed_check(const std::string& message) {
  throw std::runtime_error(message);
}

}  // namespace

std::string run_stress(uint64_t seed, StressTotals* totals) {
  set_check_hook(throw_failed_check);
  std::string error;
  try {
    error = Stress(seed).run(totals);
  } catch (const std::runtime_error& failed_check) {
    error = failed_check.what();
  }
  set_check_hook(nullptr);
  return error;
}

}  // namespace rudder::testing
