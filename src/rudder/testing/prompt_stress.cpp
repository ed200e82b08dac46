#include "rudder/testing/prompt_stress.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "rudder/testing/load_model.h"

namespace rudder::testing {

namespace {

// What is too few for two prompts of a tenant.
constexpr int32_t kLeastShared = 32;

class PromptStress {
 public:
  explicit PromptStress(uint64_t seed)
      : random_(seed),
        multiple_(seed % 4 == 0 ? 16 : 1),
        num_tenants_(seed % 3 == 0 ? pick(2, 3) : 1),
        model_(draw_capacity(), draw_settings(),
               [this](const step::StepPlan& plan) { return check(plan); }) {}

  std::string run(PromptStressTotals* totals) {
    const int32_t num_sequences = pick(10, 60);
    for (int32_t id = 1; id <= num_sequences || model_.scheduler().has_work();) {
      if (id <= num_sequences && (chance(30) || !model_.scheduler().has_work())) add(id++);
      model_.turn();
      if (!error_.empty()) break;
    }
    if (totals != nullptr) {
      totals->shared += totals_.shared;
      totals->turns += totals_.turns;
      totals->sequences += prompts_.size();
    }
    return error_;
  }

 private:
  // A prompt that is not done.
  struct Prompt {
    uint64_t id = 0;
    int32_t tenant = 0;
    int32_t priority = 0;
    int32_t rest = 0;   // tokens
    int32_t chunk = 0;  // of them, in the plan at hand
    bool has_begun = false;

    std::pair<int32_t, uint64_t> rank() const { return {priority, id}; }
    std::tuple<int32_t, int32_t, uint64_t> need() const { return {priority, rest, id}; }
    bool is_served() const { return chunk == rest; }
  };
  // Of the last step that was too small to be shared.
  struct Turns {
    bool first_left_out = false;
    bool others_left_out = false;
  };

  int32_t pick(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool chance(int32_t percent) { return pick(1, 100) <= percent; }

  step::Capacity draw_capacity() {
    return {.num_slots = 64,
            .num_blocks = 10'000,
            .block_size = 16,
            .max_tokens_per_step = 1024,
            .max_seq_len = 4096,
            .vocab_size = 1000,
            .max_in_flight = 4,
            .prompt_step_multiple = multiple_};
  }

  sched::SchedSettings draw_settings() {
    sched::SchedSettings settings;
    settings.max_num_seqs = 64;
    settings.max_num_batched_tokens = chance(30) ? pick(64, 90) : pick(100, 600);
    settings.max_in_flight = pick(1, 4);
    settings.num_cohorts = chance(30) ? pick(2, 4) : 1;
    settings.enable_prefix_caching = false;
    settings.model_identity = "model";
    return settings;
  }

  void add(int32_t id) {
    sched::NewSequence sequence;
    sequence.id = sched::SequenceId(static_cast<uint64_t>(id));
    sequence.tenant = pick(1, num_tenants_);
    sequence.priority = chance(80) ? 0 : pick(-1, 1);
    sequence.prompt.resize(static_cast<size_t>(chance(20) ? pick(500, 4000) : pick(1, 200)));
    const auto prompt_len = static_cast<int32_t>(sequence.prompt.size());
    sequence.max_len = prompt_len + pick(1, 40);
    prompts_[sequence.id.value] = {.id = sequence.id.value,
                                   .tenant = sequence.tenant,
                                   .priority = sequence.priority,
                                   .rest = prompt_len};
    model_.add(std::move(sequence));
  }

  // The time that it takes, too.
  double check(const step::StepPlan& plan) {
    const std::vector<sched::SequenceId>& admitted = model_.scheduler().first_planned();
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      by_slot_[plan.slots[i].slot.value] = &prompts_.at(admitted[i].value);
    }
    for (const step::SeqWork& work : plan.seqs) {
      Prompt& prompt = *by_slot_.at(work.slot.value);
      if (prompt.rest > 0) prompt.chunk = work.q_len;
    }
    for (int32_t tenant = 1; tenant <= num_tenants_; ++tenant) check_tenant(plan.id, tenant);
    for (auto& [id, prompt] : prompts_) {
      prompt.has_begun = prompt.has_begun || prompt.chunk > 0;
      prompt.rest -= prompt.chunk;
      prompt.chunk = 0;
    }
    return 1000;
  }

  void check_tenant(step::StepId step, int32_t tenant) {
    std::vector<const Prompt*> prompts;  // by need
    int32_t tokens = 0;
    for (const auto& [id, prompt] : prompts_) {
      // The last token of one that has begun is run as a decode is.
      const bool is_prompt = prompt.rest > (prompt.has_begun ? 1 : 0);
      if (prompt.tenant != tenant || !is_prompt) continue;
      prompts.push_back(&prompt);
      tokens += prompt.chunk;
    }
    if (prompts.size() < 2) return;
    std::ranges::sort(prompts, {}, &Prompt::need);
    const Prompt& first = **std::ranges::min_element(prompts, {}, &Prompt::rank);
    check_order(step, prompts, first);
    if (&first == prompts.front() || tokens == 0) return;
    const int32_t half = std::min({first.rest, tokens, std::max(16, (tokens + 1) / 2)});
    const bool is_left_out = first.chunk < half;
    const Prompt& soonest = *prompts.front();
    const bool others_left_out = soonest.chunk == 0;
    if (tokens >= kLeastShared) {
      ++totals_.shared;
      if (is_left_out) object(step, first, "came first and has less than half");
      // It has what makes the step's tokens even, too.
      if (!soonest.is_served() && first.chunk >= half + multiple_) {
        object(step, soonest, "waits, though the first has more than half");
      }
      return;
    }
    ++totals_.turns;
    Turns& turns = turns_[first.id];
    const bool has_no_turn = first.chunk + multiple_ - 1 < half;
    if (has_no_turn && turns.first_left_out) object(step, first, "does not come to its turn");
    if (others_left_out && turns.others_left_out) object(step, soonest, "waits for its turn");
    turns = {.first_left_out = has_no_turn, .others_left_out = others_left_out};
  }

  // Of those behind the first, who runs while one that is done sooner does not?
  void check_order(step::StepId step, const std::vector<const Prompt*>& prompts,
                   const Prompt& first) {
    const Prompt* waiting = nullptr;
    for (const Prompt* prompt : prompts) {
      if (prompt == &first) continue;
      // Who ends fits where a chunk that is cut evenly has none.
      const bool counts = multiple_ == 1 || prompt->chunk < prompt->rest;
      if (waiting != nullptr && prompt->chunk > 0 && counts) {
        object(step, *waiting, "is overtaken by one that is done later");
      }
      if (waiting == nullptr && !prompt->is_served()) waiting = prompt;
    }
  }

  void object(step::StepId step, const Prompt& prompt, const char* what) {
    if (!error_.empty()) return;
    error_ = fmt::format("step {}: prompt {} {}:", step, prompt.id, what);
    for (const auto& [id, other] : prompts_) {
      if (other.tenant != prompt.tenant || other.rest == 0) continue;
      error_ += fmt::format(" {}: {} of {},", id, other.chunk, other.rest);
    }
  }

  std::mt19937_64 random_;
  const int32_t multiple_;
  const int32_t num_tenants_;
  std::map<uint64_t, Prompt> prompts_;
  std::map<int32_t, Prompt*> by_slot_;
  std::map<uint64_t, Turns> turns_;  // by the first
  PromptStressTotals totals_;
  std::string error_;
  LoadModel model_;
};

}  // namespace

std::string run_prompt_stress(uint64_t seed, PromptStressTotals* totals) {
  return PromptStress(seed).run(totals);
}

}  // namespace rudder::testing
