#include "rudder/exec/graph_cache.h"

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/exec/sample_step.h"
#include "rudder/exec/slot_table.h"

namespace rudder::exec {
namespace {

// A step of more sequences is long enough to hide the launches of its ops.
constexpr int32_t kMostRows = 512;
constexpr int32_t kMostDraftedRows = 256;
// Sequences up to this length have graphs of their own: attention has a kernel for them alone.
constexpr int32_t kShortRun = 8;
// Of numbers of tokens with some rare taps.
constexpr size_t kMostRare = 64;

// Tokens whose logits nobody wants. Padding leaves it as it is.
bool has_prompts(const PackedStep& packed) {
  return packed.num_sampled() != packed.num_tokens();
}

// On a rank also those of rows of which it has a share: they wait for the others.
tap::Passages rare_passages(ops::Ops& ops) {
  constexpr tap::Passages kMixers = tap::kMixerEnd | tap::kMixerWeights;
  return ops::rank_of(ops).is_alone() ? kMixers
                                      : static_cast<tap::Passages>(kMixers | tap::kActivation);
}

}  // namespace

std::vector<int32_t> graph_buckets(int32_t most) {
  std::vector<int32_t> rows;
  for (int32_t next = 1; next < most;) {
    rows.push_back(next);
    if (next < 8) {
      next *= 2;
    } else if (next < 64) {
      next += 8;
    } else {
      next += next < 256 ? 16 : 32;
    }
  }
  rows.push_back(most);
  return rows;
}

std::vector<int32_t> draft_graph_buckets(int32_t least, int32_t most) {
  constexpr int32_t kEach = 16;  // a token more takes longer where products are streams of weights
  std::vector<int32_t> rows;
  for (int32_t next = 1; next < most; next += next < kEach ? 1 : next < 2 * kEach ? 4 : 8) {
    rows.push_back(next);
    if (next == 64) break;
  }
  for (const int32_t next : graph_buckets(most)) {
    if (next > 64 || next == most) rows.push_back(next);
  }
  std::erase_if(rows, [&](int32_t next) { return next < least; });
  return rows;
}

Result<std::unique_ptr<GraphCache>> GraphCache::capture(const Parts& parts,
                                                        const step::Capacity& capacity,
                                                        const ProgressFn& progress) {
  std::unique_ptr<GraphCache> cache(new GraphCache(parts, capacity));
  const int32_t most = std::min({capacity.num_slots, capacity.max_tokens_per_step, kMostRows});
  cache->add_family(1, false, graph_buckets(most));
  cache->add_drafted_families();
  const bool has_taps =
      capacity.taps.steering() || (capacity.taps.capture() && !capacity.taps.captures_prompts_only);
  const int num_sets = has_taps ? kNumTapSets : 1;
  int64_t total = 0;
  for (const Family& family : cache->families_) total += std::ssize(family.buckets) * num_sets;
  int64_t done = 0;
  for (Family& family : cache->families_) {
    for (auto bucket = family.buckets.rbegin(); bucket != family.buckets.rend(); ++bucket) {
      for (int set = 0; set < num_sets; ++set) {
        if (progress) progress(done++, total);
        RUDDER_TRY_VOID(cache->capture_step(family, bucket->rows, static_cast<TapSet>(set),
                                            bucket->captured[static_cast<size_t>(set)]));
      }
    }
  }
  if (progress) progress(total, total);
  return cache;
}

GraphCache::GraphCache(const Parts& parts, const step::Capacity& capacity)
    : parts_(parts),
      capacity_(capacity),
      rare_passages_(rare_passages(parts.ops)),
      common_passages_(static_cast<tap::Passages>(tap::kAllPassages & ~rare_passages_)),
      rare_(kMostRare),
      narrow_(parts.narrow),
      prompts_(parts.ops, parts.decoder, capacity, common_passages_, parts.samples, parts.narrow) {}

void GraphCache::add_family(int32_t max_q_len, bool has_trees, const std::vector<int32_t>& rows) {
  Family& family = families_.emplace_back();
  family.max_q_len = max_q_len;
  family.has_trees = has_trees;
  if (has_trees) longest_beside_trees_ = max_q_len;
  for (const int32_t count : rows) family.buckets.emplace_back().rows = count;
}

void GraphCache::add_drafted_families() {
  const int32_t longest = 1 + capacity_.drafts.max_draft;
  const int32_t most = std::min(max_sampled_rows(capacity_), kMostDraftedRows);
  if (longest == 1 || most == 1) return;
  if (!capacity_.drafts.guess_tree.empty()) {  // a chain is a path of it
    return add_family(1 + capacity_.drafts.guess_tree.depth(), true, draft_graph_buckets(2, most));
  }
  const int32_t short_run = std::min(longest, kShortRun);
  add_family(short_run, false, draft_graph_buckets(2, most));
  if (longest > short_run && most > short_run) {
    add_family(longest, false, draft_graph_buckets(short_run + 1, most));
  }
  if (capacity_.drafts.takes_trees) add_family(short_run, true, draft_graph_buckets(2, most));
}

void GraphCache::pad_to(const Family& family, int32_t rows, PackedStep& packed) const {
  pad_step(rows, padded_seqs(family, rows), capacity_, packed);
  if (family.has_trees) packed.ancestors.resize(static_cast<size_t>(rows), 0);
}

// With drafts there are no more sequences than slots, and one of padding.
int64_t GraphCache::padded_seqs(const Family& family, int32_t rows) const {
  return family.max_q_len == 1 ? rows : std::min<int64_t>(rows, int64_t{capacity_.num_slots} + 1);
}

Result<void> GraphCache::capture_step(const Family& family, int32_t rows, TapSet taps,
                                      Captured& captured) {
  PackedStep packed;
  packed.taps.is_used = taps != kNoTaps;
  packed.taps.tapped = tap::PassageSet::all(taps == kAllTaps ? common_passages_ : tap::kLayerEnd,
                                            capacity_.geometry.num_layers);
  packed.taps.only_adds = taps == kLayerEndAdds;
  pad_to(family, rows, packed);
  packed.max_q_len = family.max_q_len;
  packed.any_drafts = family.max_q_len > 1;
  packed.max_kv_len = capacity_.max_seq_len;
  RUDDER_TRY(const DeviceStep begun, parts_.buffers.begin(packed, 0));
  captured.step = std::make_unique<DeviceStep>(begun);
  DeviceStep& step = *captured.step;
  for (const Sampling sampling : {kPlainGreedy, kGeneral}) {
    if (sampling == kGeneral && !parts_.samples) break;
    step.sample.all_greedy = sampling == kPlainGreedy;
    step.sample.any_logprobs = sampling == kGeneral;
    step.sample.any_changed = sampling == kGeneral;
    // Once as it is: a backend may set up at the first call of a shape what no capture may contain.
    run(step);
    parts_.ops.graph_ops()->begin_capture();
    run(step);
    RUDDER_TRY(captured.graphs[sampling], parts_.ops.graph_ops()->end_capture());
  }
  if (parts_.samples) {
    parts_.ops.graph_ops()->begin_capture();
    captured.logits = parts_.decoder.forward(step.forward);
    RUDDER_TRY(captured.forward, parts_.ops.graph_ops()->end_capture());
  }
  // The next capture's step is written to the same staging memory.
  const std::unique_ptr<ops::Event> done = parts_.ops.make_event();
  parts_.ops.record(*done);
  return done->wait();
}

GraphCache::TapSet GraphCache::tap_set_of(const PackedTaps& taps) {
  if (!taps.is_used) return kNoTaps;
  if ((taps.tapped.kinds() & ~tap::kLayerEnd) != 0) return kAllTaps;
  return taps.only_adds ? kLayerEndAdds : kLayerEndTaps;
}

// Where nothing is sampled there is one of them.
GraphCache::Sampling GraphCache::sampling_of(const PackedStep& packed) const {
  const bool is_plain = packed.all_greedy && !packed.any_logprobs && !packed.any_changed;
  return is_plain || !parts_.samples ? kPlainGreedy : kGeneral;
}

void GraphCache::run(const DeviceStep& step) {
  const ops::View logits = parts_.decoder.forward(step.forward);
  if (parts_.samples) sample_step(parts_.ops, step, logits, parts_.readers);
}

const GraphCache::Family* GraphCache::family_of(const PackedStep& packed) const {
  const auto family = std::ranges::find_if(families_, [&](const Family& candidate) {
    return candidate.max_q_len >= packed.max_q_len &&
           (candidate.has_trees || packed.ancestors.empty());
  });
  return family == families_.end() ? nullptr : &*family;
}

const GraphCache::Bucket* GraphCache::bucket_of(const Family& family, const PackedStep& packed) {
  const auto bucket = std::ranges::find_if(family.buckets, [&](const Bucket& candidate) {
    return candidate.rows >= packed.num_tokens();
  });
  return bucket == family.buckets.end() ? nullptr : &*bucket;
}

bool GraphCache::is_rare(const PackedTaps& taps) const {
  return taps.is_used && ((taps.tapped.kinds() & rare_passages_) != 0 || !taps.encodes.empty());
}

GraphCache::TappedKey GraphCache::key_of(const PackedStep& packed, const Family& family,
                                         const Bucket& bucket) {
  return {.kind = {.max_q_len = family.max_q_len,
                   .has_trees = family.has_trees,
                   .rows = bucket.rows,
                   .only_adds = packed.taps.only_adds,
                   .encodes = packed.taps.encodes},
          .tapped = packed.taps.tapped};
}

GraphCache::TappedKey GraphCache::rare_key(const PackedStep& packed, const Family& family,
                                           const Bucket& bucket) const {
  TappedKey key = key_of(packed, family, bucket);
  key.kind.only_adds = false;
  key.tapped = wide_taps(packed.taps);
  return key;
}

// The macro-ops of kinds that the step uses, where these are rare or at layer ends, or else common,
// in every layer.
tap::PassageSet GraphCache::wide_taps(const PackedTaps& taps) const {
  const tap::Passages used = taps.tapped.kinds();
  const bool at_ends = (used & ~tap::kLayerEnd) == 0;
  return tap::PassageSet::all(at_ends         ? tap::kLayerEnd
                              : is_rare(taps) ? used
                                              : common_passages_,
                              capacity_.geometry.num_layers);
}

std::unique_ptr<ops::Graph>& GraphCache::graph_in(Captured& captured,
                                                  const PackedStep& packed) const {
  const bool is_forward = packed.num_masks > 0 && parts_.samples;
  return is_forward ? captured.forward : captured.graphs[sampling_of(packed)];
}

GraphCache::Narrow::Found GraphCache::narrow_of(const PackedStep& packed, const TappedKey& key) {
  return narrow_.find(key,
                      [&](Captured& captured) { return graph_in(captured, packed) != nullptr; });
}

bool GraphCache::pad(PackedStep& packed) {
  if (packed.num_tokens() == 0) return false;
  if (has_prompts(packed)) return prompts_.pad(packed);
  if (!packed.ancestors.empty()) words_for_chains(longest_beside_trees_, packed);
  const Family* const family = family_of(packed);
  const Bucket* const bucket = family == nullptr ? nullptr : bucket_of(*family, packed);
  if (bucket == nullptr || bucket->captured[tap_set_of(packed.taps)].step == nullptr) return false;
  if (packed.taps.is_used) {
    const TappedKey key = key_of(packed, *family, *bucket);
    narrow_.note(key);
    const bool has_graph = !is_rare(packed.taps) || narrow_of(packed, key);
    if (!has_graph && !rare_.was_seen(rare_key(packed, *family, *bucket))) return false;
  }
  pad_to(*family, bucket->rows, packed);
  return true;
}

Result<bool> GraphCache::capture_missing(const PackedStep& packed, const DeviceStep& step) {
  if (has_prompts(packed)) return prompts_.capture(packed, step);
  if (!packed.taps.is_used) return false;
  const Family* const family = family_of(packed);
  const Bucket* const bucket = bucket_of(*family, packed);
  const TappedKey key = key_of(packed, *family, *bucket);
  const Narrow::Found narrow = narrow_of(packed, key);
  const int32_t num_tapped = narrow ? narrow.key->tapped.size() : wide_taps(packed.taps).size();
  if (narrow_.is_due(key, num_tapped)) {
    RUDDER_TRY(const Narrow::Found made, narrow_.make(key, parts_.ops));
    RUDDER_TRY_VOID(capture_tapped(packed, step, *made.key, *made.value));
    return true;
  }
  if (narrow || !is_rare(packed.taps)) return false;
  RUDDER_TRY_VOID(rare_.make_room(parts_.ops));
  const auto [rare, captured] = rare_.find(rare_key(packed, *family, *bucket));
  if (graph_in(captured, packed) != nullptr) return false;
  RUDDER_TRY_VOID(capture_tapped(packed, step, rare, captured));
  return true;
}

// The one of a step's graphs that it needs now.
Result<void> GraphCache::capture_tapped(const PackedStep& packed, const DeviceStep& step,
                                        const TappedKey& key, Captured& captured) {
  if (captured.step == nullptr) {
    captured.step = std::make_unique<DeviceStep>(step);
    model::ForwardBatch& forward = captured.step->forward;
    forward.attention.max_q_len = key.kind.max_q_len;
    forward.attention.max_kv_len = capacity_.max_seq_len;
    forward.tapped = &key.tapped;
    forward.encodes = key.kind.encodes;
    forward.taps.only_adds = forward.rows_taps.only_adds = key.kind.only_adds;
  }
  DeviceStep& own = *captured.step;
  if (packed.num_masks > 0 && parts_.samples) {
    parts_.ops.graph_ops()->begin_capture();
    captured.logits = parts_.decoder.forward(own.forward);
    RUDDER_TRY(captured.forward, parts_.ops.graph_ops()->end_capture());
    return {};
  }
  const Sampling sampling = sampling_of(packed);
  own.sample.all_greedy = sampling == kPlainGreedy;
  own.sample.any_logprobs = own.sample.any_changed = sampling == kGeneral;
  own.sample.any_masked = false;
  own.sample.any_drafts = key.kind.max_q_len > 1;
  parts_.ops.graph_ops()->begin_capture();
  run(own);
  RUDDER_TRY(captured.graphs[sampling], parts_.ops.graph_ops()->end_capture());
  return {};
}

const GraphCache::Captured& GraphCache::find(const PackedStep& packed, const DeviceStep& step) {
  const Family* const family = family_of(packed);
  const Bucket* const bucket = family == nullptr ? nullptr : bucket_of(*family, packed);
  RUDDER_CHECK(bucket != nullptr && bucket->rows == packed.num_tokens(), "no graph of {} rows",
               packed.num_tokens());
  const Captured* captured = &bucket->captured[tap_set_of(packed.taps)];
  if (packed.taps.is_used) {
    if (const Narrow::Found narrow = narrow_of(packed, key_of(packed, *family, *bucket))) {
      captured = narrow.value;
    } else if (is_rare(packed.taps)) {
      captured = &rare_.at(rare_key(packed, *family, *bucket));
    }
  }
  RUDDER_CHECK(
      captured->step != nullptr && captured->step->forward.ids.data == step.forward.ids.data,
      "no graph of {} rows with these taps", packed.num_tokens());
  return *captured;
}

void GraphCache::replay(const PackedStep& packed, const DeviceStep& step) {
  if (!has_prompts(packed)) {
    return parts_.ops.graph_ops()->replay(*find(packed, step).graphs[sampling_of(packed)]);
  }
  const ops::View logits = prompts_.replay(packed, step);
  if (packed.num_sampled() == 0 || !parts_.samples) return;
  sample_step(parts_.ops, step, logits, parts_.readers);
}

ops::View GraphCache::replay_forward(const PackedStep& packed, const DeviceStep& step) {
  if (has_prompts(packed)) return prompts_.replay(packed, step);
  const Captured& captured = find(packed, step);
  parts_.ops.graph_ops()->replay(*captured.forward);
  return captured.logits;
}

}  // namespace rudder::exec
