#include "rudder/testing/overtaking_stress.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "rudder/testing/load_model.h"

namespace rudder::testing {

namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kMaxOutput = 3;
constexpr int32_t kLargeWaiting = 4;
constexpr step::StepId kSoon = 6;  // steps in which a small one begins

class OvertakingStress {
 public:
  explicit OvertakingStress(uint64_t seed)
      : random_(seed),
        is_flood_(seed % 2 == 0),
        num_tenants_(seed % 3 == 0 ? 2 : 1),
        num_blocks_(pick(160, 400)),
        kept_(num_blocks_ / 16),
        step_tokens_(pick(128, 512)),
        model_(capacity(), settings(), [](const step::StepPlan&) { return 1000; }) {}

  std::string run(OvertakingTotals* totals) {
    while (error_.empty() && model_.last_step() < 400) {
      while (std::ssize(large_waiting_) < kLargeWaiting) add_large();
      const int64_t most = is_flood_ ? 24 : 1;
      while (std::ssize(small_waiting_) < most && (is_flood_ || chance(20))) add_small();
      model_.turn();
      note_begun();
      check_small();
      check_large();
    }
    if (totals != nullptr) {
      totals->overtakes += model_.scheduler().stats().overtakes;
      totals->large += is_flood_ ? num_large_begun_ : 0;
    }
    return error_;
  }

 private:
  int32_t pick(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool chance(int32_t percent) { return pick(1, 100) <= percent; }

  step::Capacity capacity() const {
    return {.num_slots = 64,
            .num_blocks = num_blocks_,
            .block_size = kBlockSize,
            .max_tokens_per_step = 512,
            .max_seq_len = num_blocks_ * kBlockSize,
            .vocab_size = 1000,
            .max_in_flight = 2};
  }

  sched::SchedSettings settings() const {
    sched::SchedSettings settings;
    settings.max_num_seqs = 64;
    settings.max_num_batched_tokens = step_tokens_;
    settings.enable_prefix_caching = false;
    settings.model_identity = "model";
    return settings;
  }

  void add(int32_t blocks, int32_t tenant) {
    sched::NewSequence sequence;
    sequence.id = sched::SequenceId(++last_id_);
    sequence.tenant = tenant;
    sequence.prompt.resize(static_cast<size_t>((blocks - 1) * kBlockSize + pick(1, 9)));
    sequence.max_len = static_cast<int32_t>(sequence.prompt.size()) + pick(1, kMaxOutput);
    arrival_step_[last_id_] = model_.last_step();
    model_.add(std::move(sequence));
  }

  // Beside a flood of small ones, now and then one that leaves no room for them.
  void add_large() {
    const int32_t most = is_flood_ && chance(25) ? num_blocks_ : num_blocks_ - kept_ - 10;
    add(pick(std::max(kept_, num_blocks_ / 8), most), 1);
    large_waiting_.push_back(last_id_);
  }

  void add_small() {
    add(pick(1, kept_ / 2), num_tenants_);
    small_waiting_.push_back(last_id_);
  }

  void note_begun() {
    const auto has_begun = [&](uint64_t id) { return model_.served(id).first_step > 0; };
    std::erase_if(small_waiting_, has_begun);
    const auto before = std::ssize(large_waiting_);
    const uint64_t first = large_waiting_.empty() ? 0 : large_waiting_.front();
    std::erase_if(large_waiting_, has_begun);
    num_large_begun_ += static_cast<uint64_t>(before - std::ssize(large_waiting_));
    if (large_waiting_.empty() || large_waiting_.front() != first) {
      first_since_ = model_.last_step();
    }
  }

  void check_small() {
    if (is_flood_ || small_waiting_.empty()) return;
    const uint64_t id = small_waiting_.front();
    if (model_.last_step() > arrival_step_.at(id) + kSoon) {
      error_ = fmt::format("small prompt {} waits behind large ones", id);
    }
  }

  // Those that run when it comes to be the first have half of each step, until they are done.
  void check_large() {
    const auto most = static_cast<step::StepId>(2 * num_blocks_ * kBlockSize / step_tokens_ + 30);
    if (large_waiting_.empty() || model_.last_step() <= first_since_ + most) return;
    error_ = fmt::format("large prompt {} is overtaken for {} steps", large_waiting_.front(),
                         model_.last_step() - first_since_);
  }

  std::mt19937_64 random_;
  const bool is_flood_;
  const int32_t num_tenants_;
  const int32_t num_blocks_;
  const int32_t kept_;
  const int32_t step_tokens_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, step::StepId> arrival_step_;
  std::deque<uint64_t> large_waiting_;
  std::deque<uint64_t> small_waiting_;
  step::StepId first_since_ = 0;
  uint64_t num_large_begun_ = 0;
  std::string error_;
  LoadModel model_;
};

}  // namespace

std::string run_overtaking_stress(uint64_t seed, OvertakingTotals* totals) {
  return OvertakingStress(seed).run(totals);
}

}  // namespace rudder::testing
