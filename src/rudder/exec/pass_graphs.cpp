#include "rudder/exec/pass_graphs.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/exec/graph_cache.h"

namespace rudder::exec {
namespace {

constexpr size_t kMostPasses = 128;
// A pass of more tokens is long enough to hide its launches.
constexpr int32_t kMostPassTokens = 256;
constexpr int32_t kLongestPassRun = 64;
// Runs of up to so many tokens go together, as in the graphs of drafts (graph_cache.cpp).
constexpr uint32_t kShortPassRun = 8;

// The first of the numbers that is not below it; 0: there is none.
int64_t next_of(const std::vector<int32_t>& numbers, int64_t number) {
  const auto found = std::ranges::lower_bound(numbers, number);
  return found == numbers.end() ? 0 : *found;
}

// 0 where all sequences are trees, 1 where all are single tokens.
int32_t run_class(int32_t max_q_len) {
  if (max_q_len < 2) return max_q_len;
  return static_cast<int32_t>(
      std::max(std::bit_ceil(static_cast<uint32_t>(max_q_len)), kShortPassRun));
}

}  // namespace

PassGraphs::PassGraphs(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity)
    : ops_(ops), decoder_(decoder), capacity_(capacity), captured_(kMostPasses) {}

PassGraphs::Key PassGraphs::key_of(const PackedStep& packed) {
  return {.num_tokens = packed.num_tokens(),
          .num_seqs = packed.num_seqs(),
          .num_rows = packed.num_sampled(),
          .max_q_len = run_class(packed.max_q_len),
          .has_trees = !packed.ancestors.empty(),
          .goes_on = !packed.guesses.goes_on_rows.empty()};
}

// Single tokens stay so, for a pass may have iterations. Else there is one sequence of padding at
// least, which takes the tokens that are left over. A pass that samples every token does so padded
// too, and no other does.
PassGraphs::Sizes PassGraphs::padded_sizes(const PackedStep& packed) const {
  const int64_t num_rows = packed.num_sampled();
  if (num_rows == 0 || packed.max_q_len > kLongestPassRun) return {};
  const bool are_single = packed.num_tokens() == packed.num_seqs();
  const bool samples_all = packed.num_tokens() == num_rows;
  const int32_t most = std::min(kMostPassTokens, capacity_.max_tokens_per_step);
  const std::vector<int32_t> numbers = graph_buckets(capacity_.num_slots);
  Sizes sizes;
  if (are_single) {
    sizes.seqs = sizes.tokens = next_of(numbers, packed.num_seqs());
  } else {
    sizes.seqs = next_of(numbers, packed.num_seqs()) + 1;
    sizes.tokens = next_of(graph_buckets(samples_all ? std::min(most, capacity_.num_slots) : most),
                           std::max(packed.num_tokens(), sizes.seqs));
  }
  sizes.rows = samples_all ? sizes.tokens : std::min(next_of(numbers, num_rows), sizes.tokens - 1);
  return sizes.tokens > most ? Sizes() : sizes;
}

// Padding belongs to the slot behind the last, sees no key and leaves nothing behind.
bool PassGraphs::pad(PackedStep& packed, Setup& setup) {
  const Sizes sizes = padded_sizes(packed);
  if (sizes.tokens == 0) return false;
  pad_step(sizes.tokens, sizes.seqs, capacity_, packed);
  ops::SampleRow nobody = packed.sample_rows.front();
  nobody.slot = capacity_.num_slots;
  packed.sample_rows.resize(static_cast<size_t>(sizes.rows), nobody);
  packed.logits_rows.resize(packed.sample_rows.size(), 0);
  if (!packed.guesses.feedback_rows.empty())
    packed.guesses.feedback_rows.resize(packed.sample_rows.size(), -1);
  if (!packed.guesses.goes_on_rows.empty())
    packed.guesses.goes_on_rows.resize(packed.ids.size(), -1);
  if (captured_.was_seen(key_of(packed))) return true;
  setup.is_paid_once |= !captured_.has_forgotten();
  return false;
}

Result<void> PassGraphs::capture(const PackedStep& packed, const DeviceStep& step, Setup& setup) {
  RUDDER_TRY_VOID(captured_.make_room(ops_));
  const auto [key, captured] = captured_.find(key_of(packed));
  if (captured.graph != nullptr) return {};
  setup.captured = true;
  setup.is_paid_once |= !captured_.has_forgotten();
  captured.step = std::make_unique<DeviceStep>(step);
  DeviceStep& own = *captured.step;
  own.forward.attention.max_q_len = key.max_q_len;
  own.forward.attention.max_kv_len = capacity_.max_seq_len;
  ops_.graph_ops()->begin_capture();
  own.sample.logits = decoder_.forward(own.forward);
  ops_.sample(own.sample);
  RUDDER_TRY(captured.graph, ops_.graph_ops()->end_capture());
  return {};
}

void PassGraphs::replay(const PackedStep& packed) const {
  const Captured& captured = captured_.at(key_of(packed));
  RUDDER_CHECK(captured.graph != nullptr, "no graph of {} tokens", packed.num_tokens());
  ops_.graph_ops()->replay(*captured.graph);
}

}  // namespace rudder::exec
