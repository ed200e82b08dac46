// The kinds of residual of several streams as their pass meets them: which op each runs, and by
// what of the weights. residual_pass.cpp alone includes it, and keeps one object a decoder.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>

#include "rudder/base/check.h"
#include "rudder/model/decoder_buffers.h"
#include "rudder/model/residual_pass.h"

namespace rudder::model {

// Of a kind whose op norms nothing beside.
template <typename Kind>
class NormedBehind {
 public:
  template <typename Args>
  void run_and_norm(const Args& args, const ops::ResidualNormArgs& norm, ops::Ops& ops) const {
    static_cast<const Kind&>(*this).run(args);
    ops.residual_norm(norm);
  }

 private:
  NormedBehind() = default;
  friend Kind;
};

// What a kind of several streams has of its pass (StreamsPass of residual_pass.cpp): its op, which
// does a write and the read behind it, alone or with the norm of what it reads, what of its
// arguments depends on the branch, and whether what it reads is normed.
class MixedStreamsOp : public NormedBehind<MixedStreamsOp> {
 public:
  using Args = ops::MixStreamsArgs;
  static constexpr bool kReadsNormed = false;

  MixedStreamsOp(const ModelSpec& /*spec*/, const Weights& weights, ops::Ops& ops,
                 const DecoderBuffers& /*buffers*/)
      : weights_(weights), ops_(*ops.stream_ops()) {}

  void write(Args& args, BranchSite site, const ResidualWrite& /*write*/) const {
    args.write = site_of(site).write;
    args.mix = site_of(site).mix;
  }
  void read(Args& args, BranchSite site) const { args.read = site_of(site).read; }
  void end(Args& args) const { args.read = of_layer(weights_.layers.size() - 1).end; }
  void run(const Args& args) const { ops_.mix_streams(args); }

 private:
  const MixedStreams::Weights& of_layer(size_t layer) const {
    return std::get<MixedStreams::Weights>(weights_.layers[layer].residual);
  }
  const MixedStreams::Site& site_of(BranchSite site) const {
    const MixedStreams::Weights& weights = of_layer(site.layer);
    return site.branch == BranchKind::kMixer ? weights.mixer : weights.mlp;
  }

  const Weights& weights_;
  ops::StreamOps& ops_;
};

class HyperConnectionsOp {
 public:
  using Args = ops::ConnectStreamsArgs;
  static constexpr bool kReadsNormed = false;

  HyperConnectionsOp(const ModelSpec& spec, const Weights& weights, ops::Ops& ops,
                     const DecoderBuffers& buffers)
      : rule_(std::get<HyperConnections>(spec.residual).rule),
        is_delayed_(std::get<HyperConnections>(spec.residual).is_delayed),
        first_(spec.layers.front().has_mixer() ? BranchKind::kMixer : BranchKind::kMlp),
        weights_(weights),
        ops_(*ops.stream_ops()),
        buffers_(buffers) {
    RUDDER_CHECK(!is_delayed_ || spec.stage.is_alone(), "a stage hands over rows alone");
  }

  // Between a branch's read and its write nothing changes the streams: both make the numbers of
  // what the branch has read. Delayed, those of a read are there from the write before it.
  void write(Args& args, BranchSite site, const ResidualWrite& write) const {
    args.write = map_of(site);
    args.post_taps = write.post_taps;
    if (rule_.iterations > 0) args.mix_taps = write.mix_taps;
    if (is_delayed_) args.pre = written_numbers(args.x);
  }
  void read(Args& args, BranchSite site) const {
    const bool is_first = site.layer == 0 && site.branch == first_;
    if (is_delayed_) {
      args.pre = is_first ? buffers_.stream_first : written_numbers(args.x);
    } else {
      args.read = map_of(site);
    }
  }
  void end(Args& args) const {
    if (is_delayed_) {
      args.pre = written_numbers(args.x);
    } else {
      args.read = of_layer(weights_.layers.size() - 1).end;
    }
  }
  void run(Args args) const {
    args.rule = rule_;
    ops_.connect_streams(args);
  }
  void run_and_norm(Args args, const ops::ResidualNormArgs& norm, ops::Ops& ops) const {
    args.rule = rule_;
    if (ops_.connect_and_norm(args, norm)) return;
    ops_.connect_streams(args);
    ops.residual_norm(norm);
  }

 private:
  const HyperConnections::Weights& of_layer(size_t layer) const {
    return std::get<HyperConnections::Weights>(weights_.layers[layer].residual);
  }
  const ops::StreamMap& map_of(BranchSite site) const {
    const HyperConnections::Weights& weights = of_layer(site.layer);
    return site.branch == BranchKind::kMixer ? weights.mixer : weights.mlp;
  }

  ops::View written_numbers(const ops::View& x) const {
    return shaped(buffers_.stream_pre, x.shape[0], rule_.streams);
  }

  const ops::StreamRule rule_;
  const bool is_delayed_;
  const BranchKind first_;  // of the first layer's branches
  const Weights& weights_;
  ops::StreamOps& ops_;
  const DecoderBuffers& buffers_;
};

class GatedStreamsOp : public NormedBehind<GatedStreamsOp> {
 public:
  using Args = ops::GateStreamsArgs;
  static constexpr bool kReadsNormed = true;

  GatedStreamsOp(const ModelSpec& /*spec*/, const Weights& weights, ops::Ops& ops,
                 const DecoderBuffers& /*buffers*/)
      : weights_(weights), ops_(*ops.stream_ops()) {}

  void write(Args& args, BranchSite site, const ResidualWrite& write) const {
    args.write = gate_of(site);
    args.post_taps = write.post_taps;
  }
  void read(Args& args, BranchSite site) const { args.read = gate_of(site); }
  void end(Args& args) const { args.read = of_layer(weights_.layers.size() - 1).end; }
  void run(const Args& args) const { ops_.gate_streams(args); }

 private:
  const GatedStreams::Weights& of_layer(size_t layer) const {
    return std::get<GatedStreams::Weights>(weights_.layers[layer].residual);
  }
  const ops::StreamGate& gate_of(BranchSite site) const {
    const GatedStreams::Weights& weights = of_layer(site.layer);
    return site.branch == BranchKind::kMixer ? weights.mixer : weights.mlp;
  }

  const Weights& weights_;
  ops::StreamOps& ops_;
};

// What a query reads of the sums that there are.
inline void ask(const BlockSums& kind, const BlockSums::Query& query, int32_t streams,
                ops::SumBlocksArgs& args) {
  args.blocks = streams - 1;
  args.norm = query.norm;
  args.query = query.query;
  args.normed_values = kind.normed_values;
  if (!kind.normed_values) return;
  args.score_scale = 1 / std::sqrt(static_cast<float>(query.query.num_rows()));
}

class BlockSumsOp : public NormedBehind<BlockSumsOp> {
 public:
  using Args = ops::SumBlocksArgs;
  static constexpr bool kReadsNormed = false;

  BlockSumsOp(const ModelSpec& spec, const Weights& weights, ops::Ops& ops,
              const DecoderBuffers& /*buffers*/)
      : kind_(std::get<BlockSums>(spec.residual)),
        form_(form_of(kind_)),
        first_layer_(spec.stage.first_layer),
        weights_(weights),
        ops_(*ops.stream_ops()) {
    const auto end = first_layer_ + static_cast<int32_t>(spec.layers.size());
    const int32_t made = form_.streams_at({end - 1, tap::Site::kResidPost});
    RUDDER_CHECK(made == form_.streams || (made < form_.streams && !spec.stage.is_last()),
                 "{} sums after layer {}, rows have {}", made, end - 1, form_.streams);
  }

  void write(Args& args, BranchSite site, const ResidualWrite& /*write*/) const {
    const int32_t layer = layer_of(site);
    const bool begins = site.branch == BranchKind::kMixer && layer % form_.block_layers == 0;
    args.finished = begins ? layer / form_.block_layers : -1;
  }
  void read(Args& args, BranchSite site) const {
    const BlockSums::Weights& weights = of_layer(site.layer);
    const bool is_mixer = site.branch == BranchKind::kMixer;
    // What the branch reads is the row of the point in front of it.
    const tap::Site point = is_mixer ? tap::Site::kResidPre : tap::Site::kResidMid;
    ask(kind_, is_mixer ? weights.mixer : weights.mlp, form_.streams_at({layer_of(site), point}),
        args);
  }
  void end(Args& args) const {
    ask(kind_, of_layer(weights_.layers.size() - 1).end, form_.streams, args);
  }
  void run(const Args& args) const { ops_.sum_blocks(args); }

 private:
  int32_t layer_of(BranchSite site) const {
    return first_layer_ + static_cast<int32_t>(site.layer);
  }
  const BlockSums::Weights& of_layer(size_t layer) const {
    return std::get<BlockSums::Weights>(weights_.layers[layer].residual);
  }

  const BlockSums kind_;
  const tap::ResidualForm form_;
  const int32_t first_layer_;  // of the stage
  const Weights& weights_;
  ops::StreamOps& ops_;
};

// Reads x as the kind's end does; not of a delayed one. `last` and `streams`: of collapse().
inline void end_streams(const Residual& kind, const ResidualWeights& last, ops::StreamOps& ops,
                        const ops::View& x, int32_t streams, const ops::View& out) {
  if (const auto* const gated = std::get_if<GatedStreams::Weights>(&last)) {
    return ops.gate_streams({.x = x, .read = gated->end, .out = out});
  }
  if (const auto* const hyper = std::get_if<HyperConnections>(&kind)) {
    return ops.connect_streams({.x = x,
                                .read = std::get<HyperConnections::Weights>(last).end,
                                .out = out,
                                .rule = hyper->rule});
  }
  if (const auto* const mixed = std::get_if<MixedStreams::Weights>(&last)) {
    return ops.mix_streams({.x = x, .read = mixed->end, .out = out});
  }
  ops::SumBlocksArgs args{.x = x, .out = out};
  ask(std::get<BlockSums>(kind), std::get<BlockSums::Weights>(last).end, streams, args);
  ops.sum_blocks(args);
}

// A pass of the op of the spec's kind.
template <template <typename> typename Pass>
std::unique_ptr<ResidualPass> make_streams_pass(const ModelSpec& spec, const Weights& weights,
                                                ops::Ops& ops, const Products& products,
                                                const DecoderBuffers& buffers) {
  const auto make = [&]<typename Kind>() -> std::unique_ptr<ResidualPass> {
    return std::make_unique<Pass<Kind>>(spec, weights, ops, products, buffers);
  };
  if (std::holds_alternative<BlockSums>(spec.residual)) {
    return make.template operator()<BlockSumsOp>();
  }
  if (std::holds_alternative<HyperConnections>(spec.residual)) {
    return make.template operator()<HyperConnectionsOp>();
  }
  if (std::holds_alternative<GatedStreams>(spec.residual)) {
    return make.template operator()<GatedStreamsOp>();
  }
  return make.template operator()<MixedStreamsOp>();
}

}  // namespace rudder::model
