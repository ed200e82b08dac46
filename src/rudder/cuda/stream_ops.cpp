#include "rudder/cuda/stream_ops.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/streams/streams.h"
#include "rudder/cuda/tap_params.h"

namespace rudder::cuda {
namespace {

using tensor::DType;
using tensor::View;

// Columns of a stream, of which whole ones are a row of x; which numbers there are as many of.
int64_t width_of(const char* op, const View& x, const View& delta, const View& out) {
  const int64_t width = (delta.empty() ? out : delta).shape[1];
  RUDDER_CHECK(x.dtype == DType::kBF16 && width > 0 && x.shape[1] % width == 0 &&
                   (delta.empty() || delta.shape[0] == x.shape[0]) &&
                   (out.empty() || (out.shape[0] == x.shape[0] && out.shape[1] == width)),
               "{} of {}", op, shapes({&x, &delta, &out}));
  return width;
}

StreamMapParams map_params(const ops::StreamMap& map) {
  return {pointer<float>(map.fn), pointer<float>(map.base), pointer<float>(map.scale)};
}

StreamGateParams stream_gate_params(const ops::StreamGate& gate) {
  return {pointer<float>(gate.norm.weight), gate.norm.eps, pointer<float>(gate.down),
          pointer<float>(gate.up), pointer<float>(gate.inject)};
}

ConnectStreamsParams connect_params(const ops::ConnectStreamsArgs& args) {
  const ops::StreamRule& rule = args.rule;
  ConnectStreamsParams params;
  params.width = width_of("connect_streams", args.x, args.delta, args.out);
  RUDDER_CHECK(args.x.shape[1] == params.width * rule.streams, "{} streams in rows of {}",
               rule.streams, args.x.shape[1]);
  params.x = args.x.data;
  params.delta = args.delta.data;
  params.write = map_params(args.write);
  params.read = map_params(args.read);
  params.pre = pointer<float>(args.pre);
  params.pre_is_one = !args.pre.empty() && args.pre.shape[0] == 1;
  RUDDER_CHECK(args.pre.empty() || args.pre.shape[0] == args.x.shape[0] ||
                   (params.pre_is_one && args.delta.empty()),
               "{} rows of numbers for {}", args.pre.shape[0], args.x.shape[0]);
  params.out = args.out.data;
  params.rows = args.x.shape[0];
  params.streams = rule.streams;
  params.iterations = rule.iterations;
  params.eps = rule.eps;
  params.norm_eps = rule.norm_eps;
  params.magnitude = rule.magnitude;
  params.post_eps = rule.post_eps;
  return params;
}

class StreamOps final : public ops::StreamOps {
 public:
  StreamOps(StreamRun run, const bool& rounds) : run_(std::move(run)), rounds_(rounds) {}

  void mix_streams(const ops::MixStreamsArgs& args) override;
  void sum_blocks(const ops::SumBlocksArgs& args) override;
  void connect_streams(const ops::ConnectStreamsArgs& args) override;
  bool connect_and_norm(const ops::ConnectStreamsArgs& args,
                        const ops::ResidualNormArgs& norm) override;
  void gate_streams(const ops::GateStreamsArgs& args) override;
  void scale_add(const ops::ScaleAddArgs& args) override;

 private:
  const StreamRun run_;
  const bool& rounds_;
};

void StreamOps::connect_streams(const ops::ConnectStreamsArgs& args) {
  const ConnectStreamsParams params = connect_params(args);
  const TapParams<kStreamPoints> taps = tap_params(args);
  run_("connect_streams", {&args.x, &args.out},
       [&](cudaStream_t stream) { return launch_connect_streams(params, taps, stream); });
}

bool StreamOps::connect_and_norm(const ops::ConnectStreamsArgs& args,
                                 const ops::ResidualNormArgs& norm) {
  const bool is_norm = norm.x.data == args.out.data && !norm.norm.empty() &&
                       norm.norm.alpha.empty() && norm.delta.empty() && norm.sum_scale == 1.0f &&
                       !norm.out.empty() && norm.out_act.empty() && !is_tapped(norm);
  if (!is_norm || args.out.empty()) return false;
  ConnectStreamsParams params = connect_params(args);
  params.norm = {pointer<float>(norm.norm.weight), norm.norm.eps, rounds_, norm.out.data,
                 pointer<float>(norm.out_scale)};
  if (!takes_norm(params)) return false;
  const TapParams<kStreamPoints> taps = tap_params(args);
  run_("connect_streams", {&args.x, &norm.out},
       [&](cudaStream_t stream) { return launch_connect_streams(params, taps, stream); });
  return true;
}

void StreamOps::gate_streams(const ops::GateStreamsArgs& args) {
  GateStreamsParams params;
  params.width = width_of("gate_streams", args.x, args.delta, args.out);
  params.streams = static_cast<int32_t>(args.x.shape[1] / params.width);
  params.x = args.x.data;
  params.delta = args.delta.data;
  params.write = stream_gate_params(args.write);
  params.read = stream_gate_params(args.read);
  params.out = args.out.data;
  params.rows = args.x.shape[0];
  if (!args.out.empty()) params.rank = static_cast<int32_t>(args.read.down.shape[0]);
  const TapParams<1> taps = tap_params(args);
  run_("gate_streams", {&args.x, &args.out},
       [&](cudaStream_t stream) { return launch_gate_streams(params, taps, stream); });
}

void StreamOps::mix_streams(const ops::MixStreamsArgs& args) {
  MixStreamsParams params;
  params.width = width_of("mix_streams", args.x, args.delta, args.out);
  params.streams = static_cast<int32_t>(args.x.shape[1] / params.width);
  RUDDER_CHECK((args.delta.empty() || args.write.num_rows() == params.streams) &&
                   (args.out.empty() || args.read.num_rows() == params.streams),
               "{} and {} numbers for {} streams", args.write.num_rows(), args.read.num_rows(),
               params.streams);
  params.x = args.x.data;
  params.delta = args.delta.data;
  params.write = pointer<float>(args.write);
  params.mix = pointer<float>(args.mix);
  params.read = pointer<float>(args.read);
  params.out = args.out.data;
  params.rows = args.x.shape[0];
  run_("mix_streams", {&args.x, &args.out},
       [&](cudaStream_t stream) { return launch_mix_streams(params, stream); });
}

void StreamOps::sum_blocks(const ops::SumBlocksArgs& args) {
  BlockReadParams params;
  params.width = width_of("sum_blocks", args.x, args.delta, args.out);
  params.stride = args.x.shape[1];
  RUDDER_CHECK(std::max(args.blocks, args.finished + 1) < params.stride / params.width,
               "{} blocks in rows of {}", args.blocks, params.stride);
  params.x = args.x.data;
  params.delta = args.delta.data;
  params.finished = args.finished;
  params.blocks = args.blocks;
  params.norm = pointer<float>(args.norm.weight);
  params.query = pointer<float>(args.query);
  params.eps = args.norm.eps;
  params.score_scale = args.score_scale;
  params.normed_values = args.normed_values;
  params.out = args.out.data;
  params.rows = args.x.shape[0];
  run_("sum_blocks", {&args.x, &args.out},
       [&](cudaStream_t stream) { return launch_block_read(params, stream); });
}

void StreamOps::scale_add(const ops::ScaleAddArgs& args) {
  ScaleAddParams params;
  params.width = width_of("scale_add", args.x, args.delta, {});
  const int64_t gates = args.gate.empty() ? 0 : args.gate.num_rows();
  RUDDER_CHECK(args.x.shape[1] == params.width && (gates <= 1 || gates == params.width),
               "{} gates for rows of {}", gates, params.width);
  params.x = args.x.data;
  params.delta = args.delta.data;
  params.gate = pointer<float>(args.gate);
  params.gate_is_one = gates == 1;
  params.temperature = args.temperature;
  params.keep = args.keep;
  params.add = args.add;
  params.rows = args.x.shape[0];
  run_("scale_add", {&args.x, &args.delta},
       [&](cudaStream_t stream) { return launch_scale_add(params, stream); });
}

}  // namespace

std::unique_ptr<ops::StreamOps> make_stream_ops(StreamRun run, const bool& rounds) {
  return std::make_unique<StreamOps>(std::move(run), rounds);
}

}  // namespace rudder::cuda
