// ToyProposer: guesses that the tokens behind a sequence's last one count on from it. It is what a
// proposer on the device has to be, and no more: it has no weights, reads no rows and keeps nothing
// of a sequence. Tests alone have it; nothing outside this folder knows of it.
#pragma once

#include <cstdint>
#include <span>

#include "rudder/exec/draft_source.h"

namespace rudder::metamorphic {

class ToyProposer final : public exec::DraftSource {
 public:
  void describe(step::DraftCaps& caps) const override { caps.guesses_from_rows = true; }
  Result<int64_t> weight_bytes(ops::Ops& /*ops*/) const override { return 0; }
  int64_t device_bytes(const step::Capacity& /*capacity*/, tensor::DType /*act*/,
                       ops::Rank /*rank*/) const override {
    return 0;
  }
  Result<void> shard(ops::Rank /*rank*/) override { return {}; }
  Result<void> load(ops::Ops& /*ops*/) override { return {}; }

  Result<void> bind(const exec::DraftSite& site) override {
    vocab_size_ = site.capacity.vocab_size;
    return {};
  }
  Result<exec::Setup> run(std::span<exec::GuessAsk> asks) override {
    for (exec::GuessAsk& ask : asks) {
      for (int32_t i = 1; i <= ask.num_guess; ++i) {
        ask.guess.push_back((ask.tokens.back() + i) % vocab_size_);
      }
    }
    return exec::Setup{};
  }

 private:
  int32_t vocab_size_ = 0;
};

}  // namespace rudder::metamorphic
