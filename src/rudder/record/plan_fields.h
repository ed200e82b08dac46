// The members of everything that passes between an engine and an executor, as archives see them:
// what a recording has of a plan, of its masks and of its results. A member that is added to one of
// these structs and not to its fields() does not compile.
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "rudder/record/archive.h"
#include "rudder/record/recording.h"
#include "rudder/step/draft_caps.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"
#include "rudder/step/result.h"

namespace rudder::record {

// `value` is a T, const for a writer.
template <typename Value, typename T>
concept Archived = std::is_same_v<std::remove_const_t<Value>, T>;

template <>
inline constexpr step::TokenSource kLastOf<step::TokenSource> = step::TokenSource::kCarry;
template <>
inline constexpr step::Store kLastOf<step::Store> = step::Store::kStates;
template <>
inline constexpr step::LogitsWanted kLastOf<step::LogitsWanted> = step::LogitsWanted::kAll;
template <>
inline constexpr step::SeqEnd kLastOf<step::SeqEnd> = step::SeqEnd::kNumerical;
template <>
inline constexpr tap::OpKind kLastOf<tap::OpKind> = tap::OpKind::kExperts;
template <>
inline constexpr tap::FeatureNorm kLastOf<tap::FeatureNorm> = tap::FeatureNorm::kLayerNorm;
template <>
inline constexpr tap::FeatureEdit kLastOf<tap::FeatureEdit> = tap::FeatureEdit::kMax;
template <>
inline constexpr tap::GateKind kLastOf<tap::GateKind> = tap::GateKind::kControl;
template <>
inline constexpr tap::ScheduleKind kLastOf<tap::ScheduleKind> = tap::ScheduleKind::kWindow;
template <>
inline constexpr tap::Site kLastOf<tap::Site> = tap::Site::kFinalNorm;
template <>
inline constexpr tap::ResidualKind kLastOf<tap::ResidualKind> = tap::ResidualKind::kBlockSums;
template <>
inline constexpr decltype(tap::Geometry::dtype) kLastOf<decltype(tap::Geometry::dtype)> =
    decltype(tap::Geometry::dtype)::kBool;

template <typename Archive>
void fields(Archive& archive, Archived<tap::Heads> auto& value) {
  auto& [count, dim] = value;
  archive(count, dim);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::Routing> auto& value) {
  // Nor on by_scores, which ops say by themselves.
  auto& [experts, chosen, by_scores] = value;
  archive(experts, chosen);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::ResidualForm> auto& value) {
  // Plans do not depend on the other two, which requests are checked by.
  auto& [kind, streams, block_layers, collapses] = value;
  archive(kind, streams);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::Geometry> auto& value) {
  // Nor on which heads weigh keys.
  auto& [num_layers, hidden, mlp_width, heads, sites, dtype, residual, weighing, routing] = value;
  archive(num_layers, hidden, mlp_width, heads, sites, dtype, residual, routing);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::Limits> auto& value) {
  auto& [num_rows, num_ops, num_floats, num_sets, elements, max_features, patterns, prompts_only] =
      value;
  archive(num_rows, num_ops, num_floats, num_sets, elements, max_features, patterns, prompts_only);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::KvGroup> auto& value) {
  auto& [window, layers] = value;
  archive(window, layers);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::KvGroups> auto& value) {
  std::vector<step::KvGroup> groups(value.begin(), value.end());
  archive(groups);
  const bool fits = !groups.empty() && groups.size() <= static_cast<size_t>(step::kMaxKvGroups);
  archive.require(fits);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(value)>>) {
    value = fits ? step::KvGroups(groups) : step::KvGroups();
  }
}

// As the parents of its rows.
template <typename Archive>
void fields(Archive& archive, Archived<step::DraftTree> auto& value) {
  std::vector<int32_t> parents;
  for (int32_t row = 1; row <= value.size(); ++row) parents.push_back(value.parent(row));
  archive(parents);
  bool fits = parents.size() <= size_t{step::kMaxTreeDrafts};
  for (size_t i = 0; i < parents.size() && fits; ++i) {
    fits = parents[i] >= 0 && parents[i] <= static_cast<int32_t>(i);
  }
  archive.require(fits);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(value)>>) {
    value = {};
    for (size_t i = 0; i < parents.size() && fits; ++i) value.add(parents[i]);
  }
}

template <typename Archive>
void fields(Archive& archive, Archived<step::LookUp> auto& value) {
  auto& [min_n, max_n] = value;
  archive(min_n, max_n);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::StatePool> auto& value) {
  auto& [count, bytes, checkpoint_blocks, slow_copies] = value;
  static_cast<void>(slow_copies);  // no executor that is recorded has any
  archive(count, bytes, checkpoint_blocks);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::ObjectRef> auto& value) {
  auto& [store, group, index] = value;
  archive(store, group, index);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::ObjectCopy> auto& value) {
  auto& [from, to] = value;
  archive(from, to);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::DraftCaps> auto& value) {
  auto& [max_draft, takes_trees, guesses, guesses_from_rows, keeps_guesses, look_up, guess_tree] =
      value;
  archive(max_draft, takes_trees, guesses, guesses_from_rows, keeps_guesses, look_up, guess_tree);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::Capacity> auto& value) {
  auto& [num_slots, num_blocks, block_size, max_tokens, max_seq_len, vocab_size, max_in_flight,
         max_repeat, step_multiple, drafts, kv_groups, states, tiers, geometry, taps, adapters] =
      value;
  static_cast<void>(tiers);          // likewise
  static_cast<void>(adapters);       // no recording has any: apps/ refuses it
  static_cast<void>(step_multiple);  // a replay plans nothing
  archive(num_slots, num_blocks, block_size, max_tokens, max_seq_len, vocab_size, max_in_flight,
          max_repeat, drafts, kv_groups, states, geometry, taps);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::Point> auto& value) {
  auto& [layer, site] = value;
  archive(layer, site);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::TapOp> auto& value) {
  auto& [kind, gate, schedule, latch, v1, v2, gate_vector, strength, a, b, lo, hi, sum, threshold,
         sharpness, begin, end, from, to, run, norm, edit, edit_value, relay, feature] = value;
  archive(kind, gate, schedule, latch, v1, v2, gate_vector, strength, a, b, lo, hi, sum, threshold,
          sharpness, begin, end, from, to, run, norm, edit, edit_value, relay, feature);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::ProgramOp> auto& value) {
  auto& [point, op] = value;
  archive(point, op);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::Program> auto& value) {
  auto& [ops, vectors, dictionaries] = value;
  static_cast<void>(dictionaries);  // the edit has them
  archive(ops, vectors);
}

// Its numbers as one part.
template <typename Archive>
void fields(Archive& archive, Archived<tap::DictionaryImage> auto& value) {
  std::vector<float> numbers;
  if constexpr (std::is_const_v<std::remove_reference_t<decltype(value)>>) {
    for (const auto& [values, count] : value.parts) {
      numbers.insert(numbers.end(), values.get(), values.get() + count);
    }
  }
  archive(value.key.low, value.key.high, numbers);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(value)>>) {
    auto values = std::make_shared_for_overwrite<float[]>(numbers.size());
    std::ranges::copy(numbers, values.get());
    value.parts = {{std::move(values), std::ssize(numbers)}};
  }
}

// A dictionary that is there already is not archived again.
template <typename Archive>
void fields(Archive& archive, Archived<step::TableDictionary> auto& value) {
  auto& [first_float, is_new, image] = value;
  archive(first_float, is_new);
  if (is_new) archive(image);
  archive.require(!is_new || image != nullptr);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::CapturePoint> auto& value) {
  auto& [point, after] = value;
  archive(point, after);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::CapturePattern> auto& value) {
  auto& [layer, keys, heads] = value;
  archive(layer, keys, heads);
}

template <typename Archive>
void fields(Archive& archive, Archived<tap::CaptureSet> auto& value) {
  auto& [points, patterns] = value;
  archive(points, patterns);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::SamplingParams> auto& value) {
  auto& [temperature, top_k, top_p, min_p, repetition, presence, frequency, seed, min_tokens,
         stop_ids, logit_bias, num_logprobs, num_prompt_logprobs] = value;
  archive(temperature, top_k, top_p, min_p, repetition, presence, frequency, seed, min_tokens,
          stop_ids, logit_bias, num_logprobs, num_prompt_logprobs);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::TapSpan> auto& value) {
  auto& [q_begin, tap_row] = value;
  archive(q_begin, tap_row);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::CaptureSpan> auto& value) {
  auto& [q_begin, q_len] = value;
  archive(q_begin, q_len);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::GuessWork> auto& value) {
  auto& [begin, tokens, num_guess] = value;
  archive(begin, tokens, num_guess);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::SeqWork> auto& value) {
  auto& [slot, generation, kv_len, q_len, tokens, logits, num_draft, takes_guess, tree, constrained,
         token_begin, score_begin, score_tokens, append_blocks, tap_row, tap_spans, capture_set,
         captures, guess, adapter_row] = value;
  archive(slot, generation, kv_len, q_len, tokens, logits, num_draft, takes_guess, tree,
          constrained, token_begin, score_begin, score_tokens, append_blocks, tap_row, tap_spans,
          capture_set, captures, guess, adapter_row);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::SlotEdit> auto& value) {
  auto& [slot, generation, sampling, blocks, state, prompt_len, num_output, max_len, history,
         history_prompt_len] = value;
  archive(slot, generation, sampling, blocks, state, prompt_len, num_output, max_len, history,
          history_prompt_len);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::TapEdit> auto& value) {
  auto& [tap_row, first_op, first_float, program, dictionaries] = value;
  archive(tap_row, first_op, first_float, program, dictionaries);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::CaptureEdit> auto& value) {
  auto& [capture_set, set] = value;
  archive(capture_set, set);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::StepPlan> auto& value) {
  auto& [id, slots, seqs, tokens, tap_edits, capture_edits, adapter_edits, copies_before,
         copies_after, record_copies, repeat] = value;
  static_cast<void>(adapter_edits);  // no recording has any: apps/ refuses it
  static_cast<void>(record_copies);  // likewise
  archive(id, slots, seqs, tokens, tap_edits, capture_edits, copies_before, copies_after, repeat);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::TokenLogprobs> auto& value) {
  auto& [logprob, rank, top] = value;
  archive(logprob, rank, top);
}

template <typename Archive>
void fields(Archive& archive, Archived<step::SeqResult> auto& value) {
  auto& [slot, generation, end, masked, tokens, logprobs, scores, guess, clipped_samples] = value;
  archive(slot, generation, end, masked, tokens, logprobs, scores, guess, clipped_samples);
}

// Without what it captured: activations are for their consumers.
template <typename Archive>
void fields(Archive& archive, Archived<step::StepResult> auto& value) {
  auto& [id, iteration, seqs, copies_done, records_done, device_us, guess_us, from_graph,
         captured_graph, captured] = value;
  static_cast<void>(captured);
  static_cast<void>(copies_done);
  static_cast<void>(records_done);
  archive(id, iteration, seqs, device_us, guess_us, from_graph, captured_graph);
}

template <typename Archive>
void fields(Archive& archive, Archived<RecordingHeader> auto& value) {
  auto& [version, model, capacity] = value;
  archive(version, model, capacity);
}

template <typename Archive>
void fields(Archive& archive, Archived<SuppliedMasks> auto& value) {
  auto& [step, masks] = value;
  archive(step, masks);
}

}  // namespace rudder::record
