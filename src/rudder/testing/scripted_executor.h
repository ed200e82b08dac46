// ScriptedExecutor: an Executor that computes nothing: every sequence samples the same script of
// tokens. For tests that need given tokens, or a device that hangs or fails at a given moment. One
// thread calls launch and collect; any thread calls the rest.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "rudder/step/executor.h"

namespace rudder::testing {

inline constexpr int32_t kScriptNan = -1;  // in a script: NaN in the logits instead of a token

class ScriptedExecutor final : public step::Executor {
  struct Device;

 public:
  // A device that stands still: collect() waits until the hold is let go of or destroyed. Declared
  // behind the engine, it leaves no thread behind where a test ends early. It may outlive the
  // executor.
  class Hold {
   public:
    explicit Hold(std::shared_ptr<Device> device);
    Hold(Hold&&) noexcept = default;
    Hold& operator=(Hold&&) = delete;
    ~Hold();
    void wait_until_collecting();  // until a collect() waits for it
    void let_go();

   private:
    std::shared_ptr<Device> device_;  // null when moved from
  };

  // The script repeats when it is used up.
  explicit ScriptedExecutor(std::vector<int32_t> script,
                            step::Capacity capacity = default_capacity());
  static step::Capacity default_capacity();

  step::Capacity capacity() const override { return capacity_; }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override;
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override;
  Result<step::StepResult> collect(step::Ticket ticket) override;
  bool ready(step::Ticket ticket) override;

  [[nodiscard]] Hold hold();
  void fail_launches();
  void fail_collects();
  uint64_t num_launched() const;
  // Of each slot opened so far, in order.
  std::vector<uint64_t> seeds() const;
  // The masks of each constrained sequence so far, in order. The script ignores them.
  std::vector<std::vector<uint32_t>> masks() const;

 private:
  // What holds and the executor share.
  struct Device {
    std::mutex mutex;
    std::condition_variable changed;
    int num_holds = 0;
    int num_collecting = 0;
  };
  struct Slot {
    uint32_t generation = 0;
    int32_t num_output = 0;
    int32_t max_len = 0;
    bool ended = false;
    step::SamplingParams sampling;
  };

  step::SeqResult run_sequence(const step::SeqWork& work, int32_t iteration);

  const std::vector<int32_t> script_;
  const step::Capacity capacity_;
  std::vector<Slot> slots_;
  std::deque<step::StepResult> in_flight_;  // each iteration's
  const std::shared_ptr<Device> device_ = std::make_shared<Device>();

  mutable std::mutex mutex_;  // guards the members below
  bool launches_fail_ = false;
  bool collects_fail_ = false;
  uint64_t num_launched_ = 0;
  std::vector<uint64_t> seeds_;
  int32_t masks_awaited_ = 0;
  std::vector<std::vector<uint32_t>> masks_;
};

}  // namespace rudder::testing
