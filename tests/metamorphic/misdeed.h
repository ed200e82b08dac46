// Ranks that fail or stand still, for tests of groups.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "rudder/step/plan.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::metamorphic {

// What one rank does wrong, once its `product`-th product comes.
struct Misdeed {
  enum class Kind : uint8_t { kStands, kThrows, kSamplesLate };
  Kind kind = Kind::kStands;
  int32_t rank = 0;
  int64_t product = 0;
  std::atomic<bool> released = false;
};

class MisbehavingOps final : public testing::PassingOps {
 public:
  MisbehavingOps(std::unique_ptr<ops::Ops> inner, Misdeed& misdeed)
      : PassingOps(std::move(inner)), misdeed_(misdeed) {}

  void linear(const ops::LinearArgs& args) override {
    const bool is_now = is_it() && ++num_products_ == misdeed_.product;
    if (is_now && misdeed_.kind == Misdeed::Kind::kThrows) throw std::bad_alloc();
    if (is_now && misdeed_.kind == Misdeed::Kind::kStands) stand();
    PassingOps::linear(args);
  }
  void sample(const ops::SampleArgs& args) override {
    PassingOps::sample(args);
    if (is_it() && misdeed_.kind == Misdeed::Kind::kSamplesLate) stand();
  }

 private:
  bool is_it() { return comm()->rank().index == misdeed_.rank; }
  void stand() {
    while (!misdeed_.released) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  Misdeed& misdeed_;
  int64_t num_products_ = 0;
};

// A plan of one prompt of three tokens, greedy.
inline step::StepPlan one_prompt() {
  step::StepPlan plan;
  plan.id = 1;
  step::SlotEdit edit;
  edit.slot = step::SlotId(0);
  edit.generation = 1;
  edit.sampling.temperature = 0;
  edit.blocks = {{0}};
  edit.prompt_len = 3;
  edit.max_len = 10;
  plan.slots = {edit};
  step::SeqWork work;
  work.slot = edit.slot;
  work.generation = 1;
  work.q_len = 3;
  work.logits = step::LogitsWanted::kLast;
  plan.seqs = {work};
  plan.tokens = {1, 2, 3};
  return plan;
}

}  // namespace rudder::metamorphic
