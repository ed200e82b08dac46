#include "rudder/model/residual_pass.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/model/stream_kinds.h"

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
    return add_and_norm(args, read, batch);
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
                .sum_scale = write.sum_scale,
                .sums_ranks = !is_alone_ && !write.is_whole};
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

// The op scales both sides of a write, at once; a read finds one row.
class ScaledAddsPass final : public ResidualPass {
 public:
  ScaledAddsPass(const ModelSpec& spec, const Weights& weights, ops::Ops& ops,
                 const Products& products, const DecoderBuffers& buffers)
      : ResidualPass(spec, ops, products, buffers),
        kind_(std::get<ScaledAdds>(spec.residual)),
        weights_(weights) {}

  void begin(const View& x, ops::EmbedArgs args) override {
    args.out = x;
    ops_.embed(args);
  }

  Operand read(const View& x, BranchSite /*site*/, const ResidualRead& read,
               const ForwardBatch& batch) override {
    return add_and_norm(
        {.x = x, .norm = read.norm, .x_taps = {read.x_taps}, .out_taps = read.out_taps}, read,
        batch);
  }

  void write(const View& x, BranchSite site, const ResidualWrite& write,
             const ForwardBatch& batch) override {
    ops::ResidualNormArgs branch{.x = {},
                                 .delta = write.delta,
                                 .delta_norm = write.delta_norm,
                                 .delta_taps = write.delta_taps,
                                 .delta_scale = spec_.branch_scale,
                                 .sums_ranks = !is_alone_ && !write.is_whole};
    finish_branch(branch, batch);
    const bool is_mixer = site.branch == BranchKind::kMixer;
    ops::ScaleAddArgs args{.x = x, .delta = write.delta, .temperature = kind_.temperature};
    if (kind_.by_depth) {
      const auto layer =
          static_cast<double>(spec_.stage.first_layer) + static_cast<double>(site.layer);
      const double terms = 2 * layer + (is_mixer ? 2 : 3);
      args.keep = static_cast<float>(std::sqrt((terms - 1) / terms));
      args.add = static_cast<float>(1 / std::sqrt(terms));
    } else {
      const auto& gates = std::get<ScaledAdds::Weights>(weights_.layers[site.layer].residual);
      args.gate = is_mixer ? gates.mixer : gates.mlp;
    }
    ops_.stream_ops()->scale_add(args);
    if (write.x_taps.empty() && write.sum_scale == 1.0f) return;
    ops_.residual_norm({.x = x, .x_taps = {write.x_taps}, .sum_scale = write.sum_scale});
    encode_at(ops_, batch, write.x_taps, x);
  }

  Operand end(const View& x, const ResidualRead& head, const ForwardBatch& batch) override {
    return read(x, {}, head, batch);
  }
  void settle(const View& /*x*/, const ForwardBatch& /*batch*/) override {}
  View as_one_row(const View& x, const View& /*buffer*/) override { return x; }
  View end_row(const View& x) override { return x; }

 private:
  const ScaledAdds kind_;
  const Weights& weights_;
};

// One op does a write and the read behind it, unless taps or a scale stand between them; the norm
// is an op of its own.
template <typename Kind>
class StreamsPass final : public ResidualPass {
 public:
  StreamsPass(const ModelSpec& spec, const Weights& weights, ops::Ops& ops,
              const Products& products, const DecoderBuffers& buffers)
      : ResidualPass(spec, ops, products, buffers),
        kind_(spec, weights, ops, buffers),
        streams_(*ops.stream_ops()) {}

  void begin(const View& x, ops::EmbedArgs args) override {
    args.out = shaped(buffers_.collapsed, x.shape[0], spec_.hidden);
    ops_.embed(args);
    streams_.mix_streams({.x = x, .delta = args.out, .write = buffers_.stream_begin});
  }

  Operand read(const View& x, BranchSite site, const ResidualRead& read,
               const ForwardBatch& batch) override {
    return read_by([&](Args& args) { kind_.read(args, site); }, x, read, batch);
  }

  void write(const View& x, BranchSite site, const ResidualWrite& write,
             const ForwardBatch& batch) override {
    RUDDER_CHECK(!written_, "a branch was written, and nothing has read it");
    ops::ResidualNormArgs branch{.x = {},
                                 .delta = write.delta,
                                 .delta_norm = write.delta_norm,
                                 .delta_taps = write.delta_taps,
                                 .delta_scale = spec_.branch_scale,
                                 .sums_ranks = !is_alone_ && !write.is_whole};
    finish_branch(branch, batch);
    written_ = {{.x = x, .delta = write.delta}, write.x_taps, write.sum_scale};
    kind_.write(written_->args, site, write);
  }

  Operand end(const View& x, const ResidualRead& head, const ForwardBatch& batch) override {
    return read_by([&](Args& args) { kind_.end(args); }, x, head, batch);
  }

  void settle(const View& x, const ForwardBatch& batch) override {
    if (!written_) return;
    const Written written = *std::exchange(written_, std::nullopt);
    RUDDER_CHECK(written.args.x.data == x.data, "another residual was written");
    kind_.run(written.args);
    if (written.is_whole()) return;
    ops_.residual_norm({.x = x, .x_taps = {written.x_taps}, .sum_scale = written.sum_scale});
    encode_at(ops_, batch, written.x_taps, x);
  }

  View as_one_row(const View& x, const View& buffer) override {
    const View row = shaped(buffer, x.shape[0], spec_.hidden);
    streams_.mix_streams({.x = x, .read = buffers_.stream_as_one, .out = row});
    return row;
  }
  View end_row(const View& x) override {
    return shaped(buffers_.collapsed, x.shape[0], spec_.hidden);
  }

 private:
  using Args = typename Kind::Args;

  struct Written {
    Args args;
    ops::Taps x_taps;
    float sum_scale = 1.0f;

    bool is_whole() const { return x_taps.empty() && sum_scale == 1.0f; }  // with its op
  };

  template <typename Ask>
  Operand read_by(const Ask& ask, const View& x, const ResidualRead& read,
                  const ForwardBatch& batch) {
    if (written_ && !(written_->is_whole() && read.x_taps.empty())) settle(x, batch);
    if (!read.x_taps.empty()) {
      ops_.residual_norm({.x = x, .x_taps = {read.x_taps}});
      encode_at(ops_, batch, read.x_taps, x);
    }
    Args args{.x = x};
    if (written_) args = std::exchange(written_, std::nullopt)->args;
    ask(args);
    args.out = shaped(buffers_.collapsed, x.shape[0], spec_.hidden);
    const ops::ResidualNormArgs norm{.x = args.out, .norm = read.norm, .out_taps = read.out_taps};
    if (!norm.norm.empty()) {
      return add_and_norm(norm, read, batch, false, [&](const ops::ResidualNormArgs& placed) {
        kind_.run_and_norm(args, placed, ops_);
      });
    }
    kind_.run(args);
    return add_and_norm(norm, read, batch, Kind::kReadsNormed);
  }

  const Kind kind_;
  ops::StreamOps& streams_;
  std::optional<Written> written_;
};

}  // namespace

void collapse(const Residual& kind, const ResidualWeights& last, ops::StreamOps& ops, const View& x,
              int32_t streams, const View& out) {
  RUDDER_CHECK(!is_delayed(kind), "the row alone does not say how it is read");
  end_streams(kind, last, ops, x, streams, out);
}

// On a rank the first of the parts that has the branch adds up the ranks' parts.
ops::ResidualNormArgs ResidualPass::encode_parts(const ops::ResidualNormArgs& args,
                                                 const ForwardBatch& batch) {
  const auto encodes = [&](const ops::Taps& taps) { return encodes_at(batch, taps); };
  ops::ResidualNormArgs rest = args;
  if (encodes(rest.delta_taps)) finish_branch(rest, batch);
  for (const bool last : {false, true}) {
    const ops::Taps taps = rest.x_taps[last ? 1 : 0];
    if (!encodes(taps)) continue;
    ops::ResidualNormArgs part = rest;
    part.norm = {};
    part.out = part.out_act = {};
    part.out_taps = {};
    if (!last) part.x_taps[1] = {};
    ops_.residual_norm(part);
    ops_.feature_ops()->encode({.x = rest.x, .taps = taps});
    rest = {.x = rest.x,
            .norm = rest.norm,
            .out = rest.out,
            .out_scale = rest.out_scale,
            .out_act = rest.out_act,
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

Operand ResidualPass::add_and_norm(const ops::ResidualNormArgs& asked, const ResidualRead& to,
                                   const ForwardBatch& batch, bool is_normed, const NormOp& run) {
  const ops::ResidualNormArgs args = encode_parts(asked, batch);
  const ops::LinearWeight& next = to.next;
  const bool quantises = next.input == ops::InputForm::kF8Rows;
  ops::ResidualNormArgs placed = args;
  Operand normed;
  // Rows are encoded in act; `next` may take others.
  const bool gives_row = is_normed || !args.norm.empty();
  const bool encodes = gives_row && encodes_at(batch, args.out_taps);
  const auto act_rows = [&](const View& buffer) {
    return shaped(buffer, args.x.shape[0], spec_.hidden);
  };
  if (!gives_row) {
    placed.out_taps = {};
  } else if (encodes) {
    // Where nobody reads it later, from where the branch is by now read.
    const View& where = !quantises ? buffers_.normed : to.wants_act ? buffers_.act : buffers_.delta;
    placed.out = normed.x = act_rows(where);
  } else {
    normed = products_.empty_operand(next, args.x.shape[0], buffers_.normed);
    if (quantises && to.wants_act) placed.out_act = normed.act = act_rows(buffers_.act);
    placed.out = normed.x;
    placed.out_scale = normed.scale;
    placed.next = &next;
  }
  const bool is_tapped = !args.x_taps[0].empty() || !args.x_taps[1].empty();
  if (run) {
    run(placed);
  } else if (!args.delta.empty() || gives_row || is_tapped) {
    ops_.residual_norm(placed);
  }
  if (encodes) {
    encode_at(ops_, batch, args.out_taps, normed.x);
    return products_.operand_of(next, normed.x, buffers_.normed);
  }
  return gives_row ? normed : products_.operand_of(next, args.x, buffers_.normed);
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
  if (std::holds_alternative<ScaledAdds>(spec.residual))
    return std::make_unique<ScaledAddsPass>(spec, weights, ops, products, buffers);
  return make_streams_pass<StreamsPass>(spec, weights, ops, products, buffers);
}

}  // namespace rudder::model
