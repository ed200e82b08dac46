#include "rudder/exec/pack_taps.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

// Of the sequence's token `i`.
bool has_logits(const step::SeqWork& work, int32_t i) {
  return work.logits == step::LogitsWanted::kAll ||
         (work.logits == step::LogitsWanted::kLast && i + 1 == work.q_len);
}

bool is_tapped(const step::SeqWork& work) {
  return work.tap_row != 0 || !work.tap_spans.empty() || !work.captures.empty();
}

// Both ascending.
void add_points(const std::vector<int32_t>& points, std::vector<int32_t>& sum) {
  for (const int32_t point : points) {
    const auto at = std::ranges::lower_bound(sum, point);
    if (at == sum.end() || *at != point) sum.insert(at, point);
  }
}

void pack_rows(const step::SeqWork& work, int32_t prompt_len, TapState& state, PackedTaps& packed) {
  auto span = work.tap_spans.begin();
  int32_t row = work.tap_row;
  for (int32_t i = 0; i < work.q_len; ++i) {
    if (span != work.tap_spans.end() && span->q_begin == i) row = (span++)->tap_row;
    RUDDER_CHECK(state.has_row(row), "slot {}: tap row {}", work.slot.value, row);
    state.use(work.slot.value, row);
    if (packed.row.empty() || packed.row.back() != row) packed.tapped.add(state.tapped_by_row(row));
    add_points(state.encodes_of_row(row), packed.encodes);
    packed.only_adds = packed.only_adds && state.only_adds(row);
    packed.row.push_back(row);
    packed.since_prompt.push_back(work.kv_len + work.depth(i) - prompt_len);
    packed.slot.push_back(work.slot.value);
    packed.capture_set.push_back(-1);
    packed.capture_begin.push_back(0);
    packed.token.push_back(static_cast<int32_t>(packed.token.size()));
    if (!has_logits(work, i) && state.scores_behind_attention(row)) packed.keep_all_rows = true;
  }
  RUDDER_CHECK(span == work.tap_spans.end(), "slot {}: tap spans behind the row's {} tokens",
               work.slot.value, work.q_len);
}

// `first` is the sequence's first token among those of the step.
void pack_captures(const step::SeqWork& work, int32_t seq, size_t first, int64_t ring_begin,
                   const TapState& state, PackedTaps& packed) {
  if (work.captures.empty()) return;
  RUDDER_CHECK(state.has_set(work.capture_set), "slot {}: capture set {}", work.slot.value,
               work.capture_set);
  packed.tapped.add(state.tapped_by_set(work.capture_set));
  packed.only_adds = packed.only_adds && state.captures_residual_alone(work.capture_set);
  const int64_t elements = state.record_elements(work.capture_set);
  const bool is_behind = state.captures_behind_attention(work.capture_set);
  int32_t next = 0;
  for (const step::CaptureSpan& span : work.captures) {
    RUDDER_CHECK(span.q_begin >= next && span.q_len > 0 &&
                     span.q_begin + span.q_len <= work.q_len - work.num_draft,
                 "slot {}: captures {} + {} of {} tokens", work.slot.value, span.q_begin,
                 span.q_len, work.q_len);
    next = span.q_begin + span.q_len;
    for (int32_t i = span.q_begin; i < next; ++i) {
      const size_t token = first + static_cast<size_t>(i);
      packed.capture_set[token] = work.capture_set;
      packed.capture_begin[token] =
          static_cast<int32_t>((ring_begin + packed.capture_elements) / tap::kCaptureAlign);
      packed.captured.push_back({.seq = seq,
                                 .position = work.kv_len + i,
                                 .set = work.capture_set,
                                 .begin = packed.capture_elements});
      packed.capture_elements += elements;
      if (!has_logits(work, i) && is_behind) packed.keep_all_rows = true;
    }
  }
}

// Behind pack_rows(), which notes who samples.
void find_filled(const step::StepPlan& plan, const SlotTable& slots, const TapState& state,
                 PackedTaps& packed) {
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    const step::SeqWork& work = plan.seqs[i];
    const int32_t last = slots.slot(work.slot).prompt_len - 1;
    const bool has_last = work.kv_len <= last && last < work.kv_len + work.q_len;
    const uint8_t scores = state.scores_of(work.slot.value);
    if (has_last && scores != 0) {
      packed.filled.push_back({static_cast<int32_t>(i), work.slot.value, scores});
    }
  }
}

}  // namespace

void PackedTaps::clear() {
  is_used = false;
  tapped.clear();
  only_adds = true;
  encodes.clear();
  row.clear();
  since_prompt.clear();
  slot.clear();
  capture_set.clear();
  capture_begin.clear();
  token.clear();
  keep_all_rows = false;
  capture_elements = 0;
  captured.clear();
  filled.clear();
}

void pack_taps(const step::StepPlan& plan, const SlotTable& slots, size_t flight, TapState* state,
               PackedTaps& packed) {
  packed.clear();
  packed.is_used = std::ranges::any_of(plan.seqs, is_tapped);
  if (!packed.is_used) {
    if (state != nullptr) find_filled(plan, slots, *state, packed);
    return;
  }
  RUDDER_CHECK(state != nullptr, "step {} has taps, the executor has none", plan.id);
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    const step::SeqWork& work = plan.seqs[i];
    const size_t first = packed.row.size();
    pack_rows(work, slots.slot(work.slot).prompt_len, *state, packed);
    pack_captures(work, static_cast<int32_t>(i), first, state->ring_begin(flight), *state, packed);
  }
  find_filled(plan, slots, *state, packed);
  RUDDER_CHECK(plan.repeat == 1 || packed.captured.empty(),
               "step {} captures and has {} iterations", plan.id, plan.repeat);
  RUDDER_CHECK(packed.capture_elements <= state->ring_elements(), "{} captured elements of {}",
               packed.capture_elements, state->ring_elements());
}

void pack_adapters(const step::StepPlan& plan, int32_t num_rows, PackedAdapters& packed) {
  packed.row.clear();
  packed.is_used = std::ranges::any_of(
      plan.seqs, [](const step::SeqWork& work) { return work.adapter_row != lora::kNoRow; });
  packed.has_one = packed.is_used;
  if (!packed.is_used) return;
  int32_t first = lora::kNoRow;
  for (const step::SeqWork& work : plan.seqs) {
    RUDDER_CHECK(work.adapter_row >= lora::kNoRow && work.adapter_row < num_rows,
                 "slot {}: adapter row {}", work.slot.value, work.adapter_row);
    packed.row.insert(packed.row.end(), static_cast<size_t>(work.q_len), work.adapter_row);
    if (work.adapter_row == lora::kNoRow) continue;
    if (first == lora::kNoRow) first = work.adapter_row;
    packed.has_one = packed.has_one && work.adapter_row == first;
  }
}

void drop_captures(PackedTaps& packed) {
  packed.captured.clear();
  packed.capture_elements = 0;
}

void pad_taps(int64_t num_tokens, int32_t num_slots, PackedTaps& packed) {
  const auto count = static_cast<size_t>(num_tokens);
  if (packed.adapters.is_used) packed.adapters.row.resize(count, lora::kNoRow);
  if (!packed.is_used) return;
  packed.row.resize(count, 0);
  packed.since_prompt.resize(count, 0);
  packed.slot.resize(count, num_slots);
  packed.capture_set.resize(count, -1);
  packed.capture_begin.resize(count, 0);
  packed.token.resize(count, 0);
}

}  // namespace rudder::exec
