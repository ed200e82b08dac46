#include "rudder/exec/pass_graphs.h"

#include <algorithm>
#include <bit>

#include "rudder/base/check.h"
#include "rudder/exec/graph_cache.h"

namespace rudder::exec {
namespace {

constexpr size_t kMostPasses = 128;

}  // namespace

PassGraphs::PassGraphs(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity,
                       const step::DraftTree& tree)
    : ops_(ops), decoder_(decoder), capacity_(capacity), tree_(tree), captured_(kMostPasses) {}

// The guesses up to the depth that others follow, and those of them that are at it.
PassGraphs::Sizes PassGraphs::sizes_of(int32_t depth) const {
  const uint64_t parents = tree_.parents();
  const uint64_t last = tree_.down_to(depth) & ~tree_.down_to(depth - 1);
  return {.tokens = std::popcount(parents & tree_.down_to(depth)) - 1,
          .rows = std::popcount(parents & last)};
}

// Padding belongs to the slot behind the last, sees no key and leaves nothing behind.
bool PassGraphs::pad(int32_t depth, PackedStep& packed) {
  const Sizes sizes = sizes_of(depth);
  const int64_t num_seqs = packed.num_seqs();
  const bool is_whole = packed.num_tokens() == num_seqs * sizes.tokens &&
                        packed.num_sampled() == num_seqs * sizes.rows;
  if (!is_whole) return false;
  const int64_t most =
      std::min(capacity_.max_tokens_per_step / sizes.tokens, capacity_.num_slots / sizes.rows);
  const std::vector<int32_t> numbers = graph_buckets(static_cast<int32_t>(most));
  const auto padded = std::ranges::lower_bound(numbers, num_seqs);
  if (padded == numbers.end()) return false;
  ops::SampleRow nobody = packed.sample_rows.front();
  nobody.slot = capacity_.num_slots;
  while (packed.num_seqs() < *padded) {
    for (int64_t i = 0; i < sizes.rows; ++i) {
      packed.logits_rows.push_back(static_cast<int32_t>(packed.num_tokens()));
      packed.sample_rows.push_back(nobody);
      packed.feedback_rows.push_back(-1);
    }
    packed.ids.resize(packed.ids.size() + static_cast<size_t>(sizes.tokens), 0);
    packed.positions.resize(packed.ids.size(), 0);
    packed.kv_slot.front().resize(packed.ids.size(), -1);
    packed.goes_on_rows.resize(packed.ids.size(), 0);
    packed.ancestors.resize(packed.ids.size(), 0);
    packed.q_begin.push_back(static_cast<int32_t>(packed.num_tokens()));
    packed.kv_len.push_back(0);
    packed.table_row.push_back(capacity_.num_slots);
  }
  return captured_.was_seen({packed.num_seqs(), depth});
}

Result<void> PassGraphs::capture(int32_t depth, const PackedStep& packed, const DeviceStep& step) {
  RUDDER_TRY_VOID(captured_.make_room(ops_));
  const auto [key, captured] = captured_.find({packed.num_seqs(), depth});
  if (captured.graph != nullptr) return {};
  captured.step = std::make_unique<DeviceStep>(step);
  DeviceStep& own = *captured.step;
  own.forward.attention.max_kv_len = capacity_.max_seq_len;
  ops_.begin_capture();
  own.sample.logits = decoder_.forward(own.forward);
  ops_.sample(own.sample);
  RUDDER_TRY(captured.graph, ops_.end_capture());
  return {};
}

void PassGraphs::replay(int32_t depth, const PackedStep& packed) const {
  const Captured& captured = captured_.at({packed.num_seqs(), depth});
  RUDDER_CHECK(captured.graph != nullptr, "no graph of {} sequences", packed.num_seqs());
  ops_.replay(*captured.graph);
}

}  // namespace rudder::exec
