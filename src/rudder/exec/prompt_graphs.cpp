#include "rudder/exec/prompt_graphs.h"

#include <bit>

#include "rudder/base/check.h"
#include "rudder/exec/slot_table.h"

namespace rudder::exec {
namespace {

// Attention chooses its kernels by the longest sequence: there is one for steps whose sequences are
// all shorter than the first, and none that begins behind the last. Between them powers of two tell
// kernels apart.
constexpr int32_t kLeastRun = 65;
constexpr int32_t kLongRun = 256;
// A token more takes longer than a launch less saves.
constexpr int64_t kMostPadding = 16;
constexpr size_t kMostGraphs = 64;

}  // namespace

PromptGraphs::PromptGraphs(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity,
                           tap::Passages common, bool is_last, const NarrowRules& rules)
    : ops_(ops),
      decoder_(decoder),
      capacity_(capacity),
      common_(common),
      is_last_(is_last),
      captured_(kMostGraphs),
      narrow_(rules) {}

PromptGraphs::Key PromptGraphs::key_of(const PackedStep& packed) const {
  const PackedTaps& taps = packed.taps;
  Key key;
  Kind& kind = key.kind;
  kind.num_tokens = static_cast<int32_t>(packed.num_tokens());
  kind.max_q_len =
      packed.max_q_len > kLongRun
          ? kind.num_tokens
          : static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(packed.max_q_len)));
  kind.has_trees = !packed.ancestors.empty();
  kind.has_taps = taps.is_used;
  if (!taps.is_used) return key;
  kind.only_adds = taps.only_adds;
  kind.encodes = taps.encodes;
  key.tapped = taps.tapped;
  return key;
}

PromptGraphs::Key PromptGraphs::wide_key(const PackedStep& packed) const {
  Key key = key_of(packed);
  if (!packed.taps.is_used) return key;
  const tap::Passages used = key.tapped.kinds();
  const bool at_ends = (used & ~tap::kLayerEnd) == 0;
  key.tapped =
      tap::PassageSet::all(at_ends ? tap::kLayerEnd : static_cast<tap::Passages>(common_ | used),
                           capacity_.geometry.num_layers);
  key.kind.only_adds = false;
  return key;
}

PromptGraphs::Narrow::Found PromptGraphs::narrow_of(const PackedStep& packed, const Key& key) {
  if (!packed.taps.is_used) return {};
  return narrow_.find(key, [](const Captured& captured) { return captured.graph != nullptr; });
}

bool PromptGraphs::pad(PackedStep& packed) {
  if (packed.max_q_len < kLeastRun || !packed.scores.empty()) return false;
  const int64_t padding =
      (kPromptStepMultiple - packed.num_tokens() % kPromptStepMultiple) % kPromptStepMultiple;
  const int64_t num_tokens = packed.num_tokens() + padding;
  if (padding > kMostPadding || num_tokens > capacity_.max_tokens_per_step) return false;
  if (padding > 0 && packed.num_seqs() == capacity_.num_slots) return false;  // it is a sequence
  pad_step(num_tokens, capacity_.num_slots, capacity_, packed);
  const Key key = key_of(packed);
  if (packed.taps.is_used) narrow_.note(key);
  return narrow_of(packed, key) || captured_.was_seen(wide_key(packed));
}

Result<bool> PromptGraphs::capture(const PackedStep& packed, const DeviceStep& step) {
  const Key key = key_of(packed);
  const Key wide = wide_key(packed);
  const Narrow::Found narrow = narrow_of(packed, key);
  const int32_t num_tapped = narrow ? narrow.key->tapped.size() : wide.tapped.size();
  if (packed.taps.is_used && narrow_.is_due(key, num_tapped)) {
    RUDDER_TRY(const Narrow::Found made, narrow_.make(key, ops_));
    RUDDER_TRY_VOID(capture(step, *made.key, *made.value));
    return true;
  }
  if (narrow) return false;
  RUDDER_TRY_VOID(captured_.make_room(ops_));
  const auto [kept, captured] = captured_.find(wide);
  if (captured.graph != nullptr) return false;
  RUDDER_TRY_VOID(capture(step, kept, captured));
  return true;
}

Result<void> PromptGraphs::capture(const DeviceStep& step, const Key& key, Captured& captured) {
  captured.batch = std::make_unique<model::ForwardBatch>(step.forward);
  model::ForwardBatch& batch = *captured.batch;
  batch.attention.max_q_len = key.kind.max_q_len;
  batch.attention.max_kv_len = capacity_.max_seq_len;
  batch.tapped = &key.tapped;
  batch.encodes = key.kind.encodes;
  batch.taps.only_adds = key.kind.only_adds;
  ops_.graph_ops()->begin_capture();
  captured.begun = decoder_.begin(batch);
  if (!is_last_) decoder_.finish(captured.begun, batch);
  RUDDER_TRY(captured.graph, ops_.graph_ops()->end_capture());
  return {};
}

ops::View PromptGraphs::replay(const PackedStep& packed, const DeviceStep& step) {
  const Narrow::Found narrow = narrow_of(packed, key_of(packed));
  const Captured& captured = narrow ? *narrow.value : captured_.at(wide_key(packed));
  RUDDER_CHECK(captured.graph != nullptr && captured.batch->ids.data == step.forward.ids.data,
               "no graph of {} tokens", packed.num_tokens());
  ops_.graph_ops()->replay(*captured.graph);
  return is_last_ ? decoder_.finish(captured.begun, step.forward) : ops::View{};
}

}  // namespace rudder::exec
