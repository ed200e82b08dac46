#include "rudder/testing/decayed_sum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/model/branch.h"
#include "rudder/model/shard.h"
#include "rudder/model/tensors.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::testing {
namespace {

using model::CustomMixer;
using tensor::DType;
using tensor::View;

constexpr int64_t kLine = 64;  // of the number of tokens
constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

// Of one layer of one step.
struct SumArgs {
  View values;     // [T, heads * dim] act
  View out;        // likewise
  View gains;      // [heads] f32: a step back counts 1 - gain / 10 as much
  View q_begin;    // ops::AttentionBatch, as the two below
  View positions;  // ForwardBatch
  View table_row;
  model::StateBatch of;
  model::LayerState layer;
  SumFault fault = SumFault::kNone;
};

void read_row(const View& rows, int64_t row, std::span<float> out) {
  const auto width = static_cast<int64_t>(out.size());
  for (int64_t i = 0; i < width; ++i) {
    const int64_t at = row * width + i;
    out[static_cast<size_t>(i)] = rows.dtype == DType::kF32
                                      ? rows.as<const float>()[at]
                                      : tensor::to_float(rows.as<const tensor::BF16>()[at]);
  }
}

void write_row(std::span<const float> row, const View& rows, int64_t index) {
  const auto width = static_cast<int64_t>(row.size());
  for (int64_t i = 0; i < width; ++i) {
    const float value = row[static_cast<size_t>(i)];
    if (rows.dtype == DType::kF32) {
      rows.as<float>()[index * width + i] = value;
    } else {
      rows.as<tensor::BF16>()[index * width + i] = tensor::to_bf16(value);
    }
  }
}

// One token further.
void add(std::span<const float> values, const View& gains, std::span<float> sums) {
  const size_t dim = sums.size() / static_cast<size_t>(gains.num_rows());
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = std::fma(1.0f - 0.1f * gains.as<const float>()[i / dim], sums[i], values[i]);
  }
}

void sum_sequence(const SumArgs& args, int64_t seq) {
  const auto at = [seq](const View& view) { return view.as<const int32_t>()[seq]; };
  const int64_t begin = at(args.q_begin);
  const int64_t end = args.q_begin.as<const int32_t>()[seq + 1];
  const auto width = static_cast<size_t>(args.values.shape[1]);
  std::vector<float> values(width);
  std::vector<float> sums(width);
  if (at(args.of.state) < 0 || begin == end) {  // padding
    for (int64_t token = begin; token < end; ++token) write_row(sums, args.out, token);
    return;
  }
  std::byte* const state =
      args.layer.pool.rows(at(args.of.state), 1).as<std::byte>() + args.layer.begin;
  auto* const num_tokens = reinterpret_cast<int32_t*>(state);
  const std::span<float> kept_sums(reinterpret_cast<float*>(state + kLine), width);
  // None where the executor takes no drafts.
  const int64_t num_kept = args.layer.kept.empty() ? 0 : args.layer.kept.shape[1];
  const View kept = num_kept == 0 ? View{} : args.layer.kept.rows(at(args.table_row), 1);
  const auto kept_row = [&](int64_t i) {
    return std::span<float>(
        reinterpret_cast<float*>(kept.as<std::byte>()) + i * static_cast<int64_t>(width), width);
  };
  // Up to where the sequence now stands, over drafts that were right.
  const int32_t position = args.positions.as<const int32_t>()[begin];
  if (position == 0) {
    *num_tokens = 0;
    std::ranges::fill(kept_sums, 0.0f);
  }
  const bool forgets = args.fault == SumFault::kForgetsAccepted;
  const int64_t accepted = forgets ? 0 : std::min<int64_t>(position - *num_tokens, num_kept);
  for (int64_t i = 0; i < accepted; ++i) add(kept_row(i), args.gains, kept_sums);
  *num_tokens = position;

  const bool has_drafts = at(args.of.num_draft) > 0 && args.fault != SumFault::kMovesOverDrafts;
  std::ranges::copy(kept_sums, sums.begin());
  for (int64_t token = begin; token < end; ++token) {
    read_row(args.values, token, values);
    if (has_drafts) std::ranges::copy(values, kept_row(token - begin).begin());
    add(values, args.gains, sums);
    write_row(sums, args.out, token);
  }
  if (has_drafts) return;
  std::ranges::copy(sums, kept_sums.begin());
  *num_tokens = position + static_cast<int32_t>(end - begin);
}

class DecayedSum final : public model::MixerKind {
 public:
  DecayedSum(int32_t num_heads, int32_t head_dim, SumFault fault)
      : num_heads_(num_heads), head_dim_(head_dim), fault_(fault) {}

  Result<std::shared_ptr<const MixerKind>> share(ops::Rank rank) const override {
    if (num_heads_ % rank.count != 0) {
      return model::indivisible(fmt::format("the {} heads of a toy mixer", num_heads_), rank);
    }
    return make_decayed_sum(num_heads_ / rank.count, head_dim_, fault_);
  }

  void list_tensors(int64_t hidden, CustomMixer::Weights* weights,
                    model::LayerTensors& out) const override {
    const model::Extent heads{num_heads_, ops::equal_share(num_heads_, out.rank)};
    const model::Extent width{heads.stored * head_dim_,
                              {heads.share.begin * head_dim_, heads.count() * head_dim_}};
    out.add_vector("mixer.decay", heads, target_in(weights, &CustomMixer::Weights::vector),
                   model::ValueKind::kGain);
    out.add_linear({"mixer.in_proj"}, {width}, hidden, false,
                   target_in(weights, &CustomMixer::Weights::in));
    out.add_linear({"mixer.out_proj"}, {hidden}, width, false,
                   target_in(weights, &CustomMixer::Weights::out));
  }

  std::vector<int64_t> scratch_widths() const override { return {width(), width()}; }

  model::StateBytes state_bytes() const override {
    return {.state = kLine + kFloat * width(), .row = kFloat * width()};
  }

  model::Mixed mix(const CustomMixer::Weights& weights, const model::Operand& in,
                   const model::LayerStep& step) const override {
    const model::Scratch<2> scratch(step.scratch, step.max_tokens, {width(), width()});
    const model::ForwardBatch& batch = step.batch;
    SumArgs args{.values = step.products.project(weights.in, in, scratch[0]),
                 .out = model::shaped(scratch[1], in.rows(), width()),
                 .gains = weights.vector,
                 .q_begin = batch.attention.q_begin,
                 .positions = batch.positions,
                 .table_row = batch.attention.table_row,
                 .of = batch.states,
                 .layer = step.state,
                 .fault = fault_};
    RUDDER_CHECK(!args.of.empty() && !args.layer.pool.empty(), "no states are given");
    ForwardingOps::run_on(step.ops, [args] {
      for (int64_t seq = 0; seq < args.of.state.num_rows(); ++seq) sum_sequence(args, seq);
    });
    return {.out = args.out, .buffer = scratch[1], .free = scratch[0]};
  }

 private:
  int64_t width() const { return int64_t{num_heads_} * head_dim_; }

  const int32_t num_heads_;
  const int32_t head_dim_;
  const SumFault fault_;
};

}  // namespace

std::shared_ptr<const model::MixerKind> make_decayed_sum(int32_t num_heads, int32_t head_dim,
                                                         SumFault fault) {
  return std::make_shared<DecayedSum>(num_heads, head_dim, fault);
}

}  // namespace rudder::testing
