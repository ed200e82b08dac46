#include "rudder/model/residual_pass.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::model {
namespace {

using tensor::View;

// The residual_norm op does a write and the read behind it.
class OneStreamPass final : public ResidualPass {
 public:
  OneStreamPass(const ModelSpec& spec, ops::Ops& ops, const Products& products,
                const DecoderBuffers& buffers)
      : ResidualPass(spec, ops, products, buffers) {}

  void begin(const View& x, ops::EmbedArgs args) override {
    args.out = x;
    ops_.embed(args);
  }

  Operand read(const View& x, BranchSite /*site*/, const ResidualRead& read,
               const ForwardBatch& batch) override {
    ops::ResidualNormArgs args = take_written(x);
    args.norm = read.norm;
    args.x_taps[args.delta.empty() ? 0 : 1] = read.x_taps;
    args.out_taps = read.out_taps;
    return add_and_norm(args, read.next, batch);
  }

  void write(const View& x, BranchSite /*site*/, const ResidualWrite& write,
             const ForwardBatch& /*batch*/) override {
    RUDDER_CHECK(!written_, "a branch was written, and nothing has read it");
    written_ = {.x = x,
                .delta = write.delta,
                .delta_norm = write.delta_norm,
                .delta_taps = write.delta_taps,
                .x_taps = {write.x_taps},
                .delta_scale = spec_.branch_scale,
                .sum_scale = write.sum_scale};
  }

  Operand end(const View& x, const ResidualRead& head, const ForwardBatch& batch) override {
    return read(x, {}, head, batch);
  }

  void settle(const View& x, const ForwardBatch& batch) override {
    const ops::ResidualNormArgs args = encode_parts(take_written(x), batch);
    if (!args.delta.empty() || !args.x_taps[0].empty()) ops_.residual_norm(args);
  }

  View as_one_row(const View& x, const View& /*buffer*/) override { return x; }
  View end_row(const View& x) override { return x; }

 private:
  ops::ResidualNormArgs take_written(const View& x) {
    if (!written_) return {.x = x};
    RUDDER_CHECK(written_->x.data == x.data, "another residual was written");
    return *std::exchange(written_, std::nullopt);
  }

  std::optional<ops::ResidualNormArgs> written_;
};

// One mix_streams op does a write and the read behind it, unless taps or a scale stand between
// them; the norm is an op of its own.
class MixedStreamsPass final : public ResidualPass {
 public:
  MixedStreamsPass(const ModelSpec& spec, const Weights& weights, ops::Ops& ops,
                   const Products& products, const DecoderBuffers& buffers)
      : ResidualPass(spec, ops, products, buffers),
        weights_(weights),
        streams_(*ops.stream_ops()) {}

  void begin(const View& x, ops::EmbedArgs args) override {
    args.out = shaped(buffers_.collapsed, x.shape[0], spec_.hidden);
    ops_.embed(args);
    streams_.mix_streams({.x = x, .delta = args.out, .write = buffers_.stream_ones});
  }

  Operand read(const View& x, BranchSite site, const ResidualRead& read,
               const ForwardBatch& batch) override {
    return read_by(x, site_of(site).read, read, batch);
  }

  void write(const View& x, BranchSite site, const ResidualWrite& write,
             const ForwardBatch& batch) override {
    RUDDER_CHECK(!written_, "a branch was written, and nothing has read it");
    ops::ResidualNormArgs branch{.x = {},
                                 .delta = write.delta,
                                 .delta_norm = write.delta_norm,
                                 .delta_taps = write.delta_taps,
                                 .delta_scale = spec_.branch_scale,
                                 .sums_ranks = !is_alone_};
    finish_branch(branch, batch);
    const MixedStreams::Site& weights = site_of(site);
    written_ = {{.x = x, .delta = write.delta, .write = weights.write, .mix = weights.mix},
                write.x_taps,
                write.sum_scale};
  }

  Operand end(const View& x, const ResidualRead& head, const ForwardBatch& batch) override {
    return read_by(x, of_layer(spec_.layers.size() - 1).end, head, batch);
  }

  void settle(const View& x, const ForwardBatch& batch) override {
    if (!written_) return;
    const Written written = *std::exchange(written_, std::nullopt);
    RUDDER_CHECK(written.args.x.data == x.data, "another residual was written");
    streams_.mix_streams(written.args);
    if (written.is_whole()) return;
    ops_.residual_norm({.x = x, .x_taps = {written.x_taps}, .sum_scale = written.sum_scale});
    encode_at(ops_, batch, written.x_taps, x);
  }

  View as_one_row(const View& x, const View& buffer) override {
    const View row = shaped(buffer, x.shape[0], spec_.hidden);
    streams_.mix_streams({.x = x, .read = buffers_.stream_mean, .out = row});
    return row;
  }
  View end_row(const View& x) override {
    return shaped(buffers_.collapsed, x.shape[0], spec_.hidden);
  }

 private:
  struct Written {
    ops::MixStreamsArgs args;
    ops::Taps x_taps;
    float sum_scale = 1.0f;

    bool is_whole() const { return x_taps.empty() && sum_scale == 1.0f; }  // with its op
  };

  const MixedStreams::Weights& of_layer(size_t layer) const {
    return std::get<MixedStreams::Weights>(weights_.layers[layer].residual);
  }
  const MixedStreams::Site& site_of(BranchSite site) const {
    const MixedStreams::Weights& weights = of_layer(site.layer);
    return site.branch == BranchKind::kMixer ? weights.mixer : weights.mlp;
  }

  Operand read_by(const View& x, const View& numbers, const ResidualRead& read,
                  const ForwardBatch& batch) {
    if (written_ && !(written_->is_whole() && read.x_taps.empty())) settle(x, batch);
    if (!read.x_taps.empty()) {
      ops_.residual_norm({.x = x, .x_taps = {read.x_taps}});
      encode_at(ops_, batch, read.x_taps, x);
    }
    ops::MixStreamsArgs args{.x = x};
    if (written_) args = std::exchange(written_, std::nullopt)->args;
    args.read = numbers;
    args.out = shaped(buffers_.collapsed, x.shape[0], spec_.hidden);
    streams_.mix_streams(args);
    return add_and_norm({.x = args.out, .norm = read.norm, .out_taps = read.out_taps}, read.next,
                        batch);
  }

  const Weights& weights_;
  ops::StreamOps& streams_;
  std::optional<Written> written_;
};

}  // namespace

// On a rank the first of the parts that has the branch adds up the ranks' parts.
ops::ResidualNormArgs ResidualPass::encode_parts(const ops::ResidualNormArgs& args,
                                                 const ForwardBatch& batch) {
  const auto encodes = [&](const ops::Taps& taps) { return encodes_at(batch, taps); };
  ops::ResidualNormArgs rest = args;
  rest.sums_ranks = !is_alone_ && !args.delta.empty();
  if (encodes(rest.delta_taps)) finish_branch(rest, batch);
  for (const bool last : {false, true}) {
    const ops::Taps taps = rest.x_taps[last ? 1 : 0];
    if (!encodes(taps)) continue;
    ops::ResidualNormArgs part = rest;
    part.norm = {};
    part.out = {};
    part.out_taps = {};
    if (!last) part.x_taps[1] = {};
    ops_.residual_norm(part);
    ops_.feature_ops()->encode({.x = rest.x, .taps = taps});
    rest = {.x = rest.x,
            .norm = rest.norm,
            .out = rest.out,
            .out_scale = rest.out_scale,
            .x_taps = {{}, last ? ops::Taps{} : rest.x_taps[1]},
            .out_taps = rest.out_taps};
  }
  return rest;
}

void ResidualPass::finish_branch(ops::ResidualNormArgs& args, const ForwardBatch& batch) {
  if (args.sums_ranks) ops_.rank_ops()->sum_ranks(args.delta);
  args.sums_ranks = false;
  if (!args.delta_norm.empty()) {
    ops_.residual_norm({.x = args.delta, .norm = args.delta_norm, .out = args.delta});
  }
  if (!args.delta_taps.empty() || args.delta_scale != 1.0f) {
    ops_.residual_norm(
        {.x = args.delta, .x_taps = {args.delta_taps}, .sum_scale = args.delta_scale});
    encode_at(ops_, batch, args.delta_taps, args.delta);
  }
  args.delta_norm = {};
  args.delta_taps = {};
  args.delta_scale = 1.0f;
}

Operand ResidualPass::add_and_norm(const ops::ResidualNormArgs& asked,
                                   const ops::LinearWeight& next, const ForwardBatch& batch) {
  const ops::ResidualNormArgs args = encode_parts(asked, batch);
  ops::ResidualNormArgs placed = args;
  Operand normed;
  // Rows are encoded in act; `next` may take others.
  const bool encodes = !args.norm.empty() && encodes_at(batch, args.out_taps);
  if (args.norm.empty()) {
    placed.out_taps = {};
  } else if (encodes) {
    // From where the branch is by now read.
    const bool quantises = next.input == ops::InputForm::kF8Rows;
    normed.x = shaped(quantises ? buffers_.delta : buffers_.normed, args.x.shape[0], spec_.hidden);
    placed.out = normed.x;
  } else {
    normed = products_.empty_operand(next, args.x.shape[0], buffers_.normed);
    placed.out = normed.x;
    placed.out_scale = normed.scale;
    placed.next = &next;
  }
  const bool is_tapped = !args.x_taps[0].empty() || !args.x_taps[1].empty();
  if (!args.delta.empty() || !args.norm.empty() || is_tapped) ops_.residual_norm(placed);
  if (encodes) {
    encode_at(ops_, batch, args.out_taps, normed.x);
    return products_.operand_of(next, normed.x, buffers_.normed);
  }
  return args.norm.empty() ? products_.operand_of(next, args.x, buffers_.normed) : normed;
}

Result<std::unique_ptr<ResidualPass>> ResidualPass::make(const ModelSpec& spec,
                                                         const Weights& weights, ops::Ops& ops,
                                                         const Products& products,
                                                         const DecoderBuffers& buffers) {
  if (std::holds_alternative<OneStream>(spec.residual))
    return std::make_unique<OneStreamPass>(spec, ops, products, buffers);
  if (ops.stream_ops() == nullptr) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the backend {} has no residual of several streams", ops.name()),
                "residual");
  }
  return std::make_unique<MixedStreamsPass>(spec, weights, ops, products, buffers);
}

}  // namespace rudder::model
