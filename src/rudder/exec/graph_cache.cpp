#include "rudder/exec/graph_cache.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

// A step of more sequences is long enough to hide the launches of its ops.
constexpr int32_t kMostRows = 512;

void run(model::Decoder& decoder, ops::Ops& ops, const DeviceStep& step) {
  ops::SampleArgs sample = step.sample;
  sample.logits = decoder.forward(step.forward);
  ops.sample(sample);
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

Result<std::unique_ptr<GraphCache>> GraphCache::capture(const Parts& parts,
                                                        const step::Capacity& capacity,
                                                        const ProgressFn& progress) {
  std::unique_ptr<GraphCache> cache(new GraphCache(parts, capacity));
  for (const int32_t rows :
       graph_buckets(std::min({capacity.num_slots, capacity.max_tokens_per_step, kMostRows}))) {
    cache->buckets_.emplace_back().rows = rows;
  }
  const bool has_taps =
      capacity.taps.steering() || (capacity.taps.capture() && !capacity.taps.captures_prompts_only);
  const int num_sets = has_taps ? kNumTapSets : 1;
  const auto total = std::ssize(cache->buckets_) * num_sets;
  int64_t done = 0;
  for (auto bucket = cache->buckets_.rbegin(); bucket != cache->buckets_.rend(); ++bucket) {
    for (int set = 0; set < num_sets; ++set) {
      if (progress) progress(done++, total);
      RUDDER_TRY_VOID(cache->capture_step(bucket->rows, static_cast<TapSet>(set),
                                          bucket->captured[static_cast<size_t>(set)]));
    }
  }
  if (progress) progress(total, total);
  return cache;
}

Result<void> GraphCache::capture_step(int32_t rows, TapSet taps, Captured& captured) {
  PackedStep packed;
  packed.taps.is_used = taps != kNoTaps;
  packed.taps.passages = taps == kAllTaps ? tap::kAllPassages : tap::kLayerEnd;
  packed.taps.only_adds = taps == kLayerEndAdds;
  pad_step(rows, capacity_, packed);
  packed.max_q_len = 1;
  packed.max_kv_len = capacity_.max_seq_len;
  RUDDER_TRY(const DeviceStep begun, parts_.buffers.begin(packed, 0));
  captured.step = std::make_unique<DeviceStep>(begun);
  DeviceStep& step = *captured.step;
  for (const Sampling sampling : {kPlainGreedy, kGeneral}) {
    step.sample.all_greedy = sampling == kPlainGreedy;
    step.sample.any_logprobs = sampling == kGeneral;
    step.sample.any_changed = sampling == kGeneral;
    // Once as it is: a backend may set up at the first call of a shape what no capture may contain.
    run(parts_.decoder, parts_.ops, step);
    parts_.ops.begin_capture();
    run(parts_.decoder, parts_.ops, step);
    RUDDER_TRY(captured.graphs[sampling], parts_.ops.end_capture());
  }
  parts_.ops.begin_capture();
  captured.logits = parts_.decoder.forward(step.forward);
  RUDDER_TRY(captured.forward, parts_.ops.end_capture());
  // The next capture's step is written to the same staging memory.
  const std::unique_ptr<ops::Event> done = parts_.ops.make_event();
  parts_.ops.record(*done);
  return done->wait();
}

GraphCache::TapSet GraphCache::tap_set_of(const PackedTaps& taps) {
  if (!taps.is_used) return kNoTaps;
  if ((taps.passages & ~tap::kLayerEnd) != 0) return kAllTaps;
  return taps.only_adds ? kLayerEndAdds : kLayerEndTaps;
}

GraphCache::Sampling GraphCache::sampling_of(const PackedStep& packed) {
  const bool is_plain = packed.all_greedy && !packed.any_logprobs && !packed.any_changed;
  return is_plain ? kPlainGreedy : kGeneral;
}

bool GraphCache::pad(PackedStep& packed) const {
  const int64_t rows = packed.num_seqs();
  if (rows == 0 || packed.max_q_len != 1 || packed.num_sampled() != rows) return false;
  const auto bucket = std::lower_bound(
      buckets_.begin(), buckets_.end(), rows,
      [](const Bucket& candidate, int64_t wanted) { return candidate.rows < wanted; });
  if (bucket == buckets_.end()) return false;
  if (bucket->captured[tap_set_of(packed.taps)].step == nullptr) return false;
  pad_step(bucket->rows, capacity_, packed);
  return true;
}

const GraphCache::Captured& GraphCache::find(const PackedStep& packed,
                                             const DeviceStep& step) const {
  const auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& candidate) {
    return candidate.rows == packed.num_seqs();
  });
  RUDDER_CHECK(bucket != buckets_.end(), "no graph of {} rows", packed.num_seqs());
  const Captured& captured = bucket->captured[tap_set_of(packed.taps)];
  RUDDER_CHECK(captured.step != nullptr && captured.step->forward.ids.data == step.forward.ids.data,
               "no graph of {} rows with these taps", packed.num_seqs());
  return captured;
}

void GraphCache::replay(const PackedStep& packed, const DeviceStep& step) {
  parts_.ops.replay(*find(packed, step).graphs[sampling_of(packed)]);
}

ops::View GraphCache::replay_forward(const PackedStep& packed, const DeviceStep& step) {
  const Captured& captured = find(packed, step);
  parts_.ops.replay(*captured.forward);
  return captured.logits;
}

}  // namespace rudder::exec
