#include "rudder/exec/scorer.h"

#include <algorithm>
#include <cstring>

#include "rudder/base/check.h"
#include "rudder/exec/slot_table.h"

namespace rudder::exec {
namespace {

using ops::View;
using tensor::DType;
using tensor::Shape;

constexpr int32_t kScoredAtOnce = 64;

Shape input_shape(const step::Capacity& capacity) {
  return {int64_t{2} * capacity.max_tokens_per_step};
}
Shape scored_shape(const step::Capacity& capacity) {
  return {capacity.max_tokens_per_step, sizeof(ops::SampledToken) / sizeof(int32_t)};
}
Shape scored_top_shape(const step::Capacity& capacity) {
  return {capacity.max_tokens_per_step, step::kMaxLogprobs,
          sizeof(ops::TopLogprob) / sizeof(int32_t)};
}

View first_bytes_of(const View& staging, const View& device) {
  return staging.rows(0, static_cast<int64_t>(device.bytes()));
}

}  // namespace

void PackedScores::clear() {
  rows.clear();
  tokens.clear();
  seq.clear();
  tops.clear();
}

int32_t max_logits_rows(const step::Capacity& capacity) {
  return std::max(max_sampled_rows(capacity),
                  std::min(capacity.max_tokens_per_step, kScoredAtOnce));
}

model::DecoderLimits decoder_limits(const step::Capacity& capacity) {
  return {.max_tokens = capacity.max_tokens_per_step,
          .max_logits_rows = max_logits_rows(capacity),
          .max_seq_len = capacity.max_seq_len,
          .taps_shares = capacity.taps.steering() || capacity.taps.capture(),
          .encodes = capacity.taps.max_features > 0,
          .adapts = !capacity.adapters.empty()};
}

Result<std::unique_ptr<Scorer>> Scorer::make(ops::Ops& ops, model::Decoder& decoder,
                                             const step::Capacity& capacity) {
  std::unique_ptr<Scorer> scorer(new Scorer(ops, decoder, capacity));
  RUDDER_TRY_VOID(scorer->allocate());
  return scorer;
}

int64_t Scorer::device_bytes(const step::Capacity& capacity) {
  return int64_t{sizeof(int32_t)} *
         (input_shape(capacity).numel() + scored_shape(capacity).numel() +
          scored_top_shape(capacity).numel());
}

Result<void> Scorer::allocate() {
  RUDDER_TRY(input_, ops_.allocate(DType::kI32, input_shape(capacity_)));
  RUDDER_TRY(scored_, ops_.allocate(DType::kI32, scored_shape(capacity_)));
  RUDDER_TRY(top_, ops_.allocate(DType::kI32, scored_top_shape(capacity_)));
  for (int32_t i = 0; i < capacity_.max_in_flight; ++i) {
    Staging staging;
    RUDDER_TRY(staging.input, ops_.allocate_staging(static_cast<int64_t>(input_.bytes())));
    RUDDER_TRY(staging.scored, ops_.allocate_staging(static_cast<int64_t>(scored_.bytes())));
    RUDDER_TRY(staging.top, ops_.allocate_staging(static_cast<int64_t>(top_.bytes())));
    staging_.push_back(std::move(staging));
  }
  return {};
}

void Scorer::run(const PackedScores& scores, size_t flight) {
  Staging& staging = staging_[flight];
  staging.seq = scores.seq;
  staging.tops = scores.tops;
  if (scores.empty()) return;
  const auto count = static_cast<int64_t>(scores.rows.size());
  const int64_t bytes = count * int64_t{sizeof(int32_t)};
  const View input = input_.rows(0, 2 * count);
  std::memcpy(staging.input.data, scores.rows.data(), static_cast<size_t>(bytes));
  std::memcpy(staging.input.as<std::byte>() + bytes, scores.tokens.data(),
              static_cast<size_t>(bytes));
  ops_.copy_in(input, first_bytes_of(staging.input, input));

  const int32_t num_top = *std::ranges::max_element(scores.tops);
  const int64_t most = max_logits_rows(capacity_);
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t num = std::min(most, count - begin);
    ops_.score({.logits = decoder_.more_logits(input.rows(begin, num)),
                .tokens = input.rows(count + begin, num),
                .num_top = num_top,
                .scored = scored_.rows(begin, num),
                .top = top_.rows(begin, num)});
  }
  const View scored = scored_.rows(0, count);
  ops_.copy_out(first_bytes_of(staging.scored, scored), scored);
  if (num_top == 0) return;
  const View top = top_.rows(0, count);
  ops_.copy_out(first_bytes_of(staging.top, top), top);
}

void Scorer::read(size_t flight, step::StepResult& result) const {
  const Staging& staging = staging_[flight];
  const auto* scored = static_cast<const ops::SampledToken*>(staging.scored.data);
  const auto* top = static_cast<const ops::TopLogprob*>(staging.top.data);
  for (size_t i = 0; i < staging.seq.size(); ++i) {
    step::SeqResult& seq = result.seqs[static_cast<size_t>(staging.seq[i])];
    if (scored[i].end == ops::SampleEnd::kNumerical) seq.end = step::SeqEnd::kNumerical;
    step::TokenLogprobs& told =
        seq.scores.emplace_back(step::TokenLogprobs{scored[i].logprob, scored[i].rank, {}});
    const ops::TopLogprob* best = top + i * step::kMaxLogprobs;
    for (int32_t k = 0; k < staging.tops[i] && best[k].token >= 0; ++k) {
      told.top.emplace_back(best[k].token, best[k].logprob);
    }
  }
}

}  // namespace rudder::exec
