// Groups of CPU ranks over tiny models, and what holds them against one device alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"
#include "rudder/cpu/host_comm.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::metamorphic {

using CommPtr = std::shared_ptr<cpu::HostComm>;

inline constexpr double kNear = 1e-5;  // of logprobs, which are some 1 to 10

struct RankBackend {
  std::string name;
  std::function<std::unique_ptr<ops::Ops>(CommPtr)> make;
};
// reference, fast_f32, fast_bf16
const std::vector<RankBackend>& rank_backends();

// Wraps the backend of each rank.
using RankWrap = std::function<std::unique_ptr<ops::Ops>(std::unique_ptr<ops::Ops>)>;

struct GroupAsk {
  int32_t num_ranks = 1;
  int32_t num_heads = testing::kTinyHeads;  // of the whole model
  bool by_expert = false;                   // how ranks divide experts
  bool has_taps = false;
  Guesser guesser = Guesser::kNone;
  step::RankedTree tree = {};  // of a draft head, which guesses chains without one
  // So much that ranks which a busy machine keeps waiting do not stand still.
  int32_t patience_ms = 60'000;
  RankWrap wrap = {};
};
std::unique_ptr<step::Executor> tiny_group(const RankBackend& backend, testing::TinyArch arch,
                                           const step::Capacity& capacity, const GroupAsk& ask);

// `error` is what a log-probability may be off by, `row_error` an element of a captured row.
void expect_nearly_same(const std::vector<Got>& expected, const std::vector<Got>& got, double error,
                        double row_error = 0);

// Prompts in several steps, steps in flight and repeated, cached prefixes.
sched::SchedSettings busy_settings();
std::vector<Ask> spread_asks(std::vector<Ask> asks);

// The executor compares what ranks sampled; this notes all bits of the residual stream, after each
// op that changes it, and of the logits.
class HashingOps final : public testing::PassingOps {
 public:
  using Hashes = std::vector<uint64_t>;

  HashingOps(std::unique_ptr<ops::Ops> inner, Hashes& hashes)
      : PassingOps(std::move(inner)), hashes_(hashes) {}

  void residual_norm(const ops::ResidualNormArgs& args) override {
    PassingOps::residual_norm(args);
    // What nothing reads and no rank adds to is a sum of own shares (Parallel), not the residual.
    if (!args.out.empty() || args.sums_ranks) add(args.x);
  }
  void sample(const ops::SampleArgs& args) override {
    add(args.logits);
    PassingOps::sample(args);
  }

 private:
  void add(const ops::View& view);

  Hashes& hashes_;
};

// Index into rank_backends(), model, ranks.
using GroupParam = std::tuple<size_t, testing::TinyArch, int32_t>;
std::string group_name(const ::testing::TestParamInfo<GroupParam>& test);
struct GroupParams {
  // `daily`: every model of a turn once, backends and ranks in turn; `of_eight`: the same on eight
  // ranks
  std::vector<GroupParam> daily, others, of_eight;
};
GroupParams group_params(const std::vector<size_t>& backends, Turn turn = Turn::kAlways);
// Heads of a tiny model that so many ranks divide.
constexpr int32_t heads_for(int32_t num_ranks) {
  return std::max(num_ranks, testing::kTinyHeads);
}

}  // namespace rudder::metamorphic
