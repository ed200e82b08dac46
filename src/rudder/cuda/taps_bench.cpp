// Times residual_norm and gated_act with taps against the plain ones on a device. A program of its
// own, so that it runs on a bare machine with a GPU. Each figure is of a captured graph of kCalls
// calls at as many points, whose vectors the L2 cache does not hold when it begins; the modes take
// turns, and a figure is the median of all rounds.
// taps_bench [rounds]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/kernels/taps/tapped_rows.h"

namespace rudder::cuda {
namespace {

constexpr int kCalls = 64;
constexpr int64_t kMaxTokens = 2048;
constexpr int64_t kMaxWidth = 18944;
constexpr float kStrength = 1e-3f;

// What the tokens of a step ask for at every point.
struct Mode {
  const char* name;
  bool is_tapped;
  bool is_steered;
  bool is_distinct;  // a program a token; else one for all
  int num_ops;
  tap::OpKind kind;
  bool is_captured;
};
constexpr Mode kModes[] = {
    {"plain", false, false, false, 0, tap::OpKind::kAdd, false},
    {"idle", true, false, false, 0, tap::OpKind::kAdd, false},
    {"shared add", true, true, false, 1, tap::OpKind::kAdd, false},
    {"shared axis", true, true, false, 1, tap::OpKind::kAxis, false},
    {"distinct add", true, true, true, 1, tap::OpKind::kAdd, false},
    {"distinct axis", true, true, true, 1, tap::OpKind::kAxis, false},
    {"shared 4 axis", true, true, false, 4, tap::OpKind::kAxis, false},
    {"idle beside axis", true, false, false, 0, tap::OpKind::kAxis, false},
    {"shared feature", true, true, false, 1, tap::OpKind::kFeature, false},
    {"shared 8 features", true, true, false, 8, tap::OpKind::kFeature, false},
    {"shared 64 features", true, true, false, 64, tap::OpKind::kFeature, false},
    {"captured", true, false, false, 0, tap::OpKind::kAdd, true},
};

// The table of a mode: every token's programs at all kCalls points.
class Table {
 public:
  Table(const Mode& mode, int64_t tokens, int64_t width)
      : ops_(ops_of(mode, tokens, width)),
        vectors_(std::max<int64_t>(num_vectors(mode, tokens) * width, 16), 0x3c),
        latches_(2 * tap::kNumLatches),
        captures_(captures_of(mode, width)),
        ring_(mode.is_captured ? tokens * kCalls * aligned(width) : 64),
        only_adds_(mode.num_ops <= 1 && mode.kind == tap::OpKind::kAdd),
        entries_(entries_of(mode, tokens, width)),
        zeros_(tokens),
        capture_set_(std::vector<int32_t>(static_cast<size_t>(tokens), mode.is_captured ? 0 : -1)),
        capture_begin_(begin_of(mode, tokens, width)) {}

  template <int kPoints>
  TapParams<kPoints> params(int call, int at) const {
    TapParams<kPoints> params;
    params.table = {.ops = ops_.data(),
                    .latches = latches_.data(),
                    .captures = captures_.data(),
                    .ring = ring_.data(),
                    .relays = relays_.data(),
                    .vectors = vectors_.data(),
                    .num_points = kCalls};
    params.batch = {entries_.data(),       zeros_.data(), zeros_.data(), capture_set_.data(),
                    capture_begin_.data(), zeros_.data(), only_adds_};
    for (int i = 0; i < kPoints; ++i) params.point[i] = i == at ? call : -1;
    return params;
  }

 private:
  static int64_t aligned(int64_t width) {
    return (width + tap::kCaptureAlign - 1) / tap::kCaptureAlign * tap::kCaptureAlign;
  }
  static int64_t vectors_per_op(const Mode& mode) {
    return mode.kind == tap::OpKind::kFeature ? 2 : 1;
  }
  static int64_t num_programs(const Mode& mode, int64_t tokens) {
    return mode.is_steered ? (mode.is_distinct ? tokens : 1) : 0;
  }
  static int64_t num_vectors(const Mode& mode, int64_t tokens) {
    return num_programs(mode, tokens) * kCalls * mode.num_ops * vectors_per_op(mode);
  }
  static std::vector<ops::TapEntry> entries_of(const Mode& mode, int64_t tokens, int64_t width) {
    std::vector<ops::TapEntry> entries(
        static_cast<size_t>(tokens) * kCalls,
        ops::TapEntry{0, 0, 0, mode.is_captured ? ops::TapEntry::kCaptured : 0});
    if (!mode.is_steered) return entries;
    for (int64_t i = 0; i < tokens * kCalls; ++i) {
      const int64_t first = (mode.is_distinct ? i : i % kCalls) * mode.num_ops;
      entries[static_cast<size_t>(i)] = {
          static_cast<int32_t>(first << 8 | mode.num_ops),
          mode.kind == tap::OpKind::kFeature
              ? tap::kNoVector
              : static_cast<int32_t>(first * vectors_per_op(mode) * width),
          kStrength, mode.kind == tap::OpKind::kAdd ? ops::TapEntry::kPlainAdd : 0};
    }
    return entries;
  }
  static std::vector<tap::TapOp> ops_of(const Mode& mode, int64_t tokens, int64_t width) {
    std::vector<tap::TapOp> ops(1);
    const int64_t count = num_vectors(mode, tokens) / vectors_per_op(mode);
    ops.resize(static_cast<size_t>(std::max<int64_t>(count, 1)));
    for (size_t i = 0; i < ops.size(); ++i) {
      ops[i].kind = mode.kind;
      const int64_t first = static_cast<int64_t>(i) * vectors_per_op(mode) * width;
      ops[i].v1 = static_cast<int32_t>(first);
      ops[i].v2 = ops[i].gate_vector = -1;
      if (mode.kind == tap::OpKind::kFeature) {
        ops[i].v2 = static_cast<int32_t>(first + width);
        ops[i].value = 1;
        if (i % static_cast<size_t>(mode.num_ops) == 0) ops[i].run = mode.num_ops;
      }
      ops[i].strength = kStrength;
      ops[i].a = 0.5f;
      ops[i].lo = -1.0f;
      ops[i].hi = 1.0f;
    }
    return ops;
  }
  static std::vector<int32_t> captures_of(const Mode& /*mode*/, int64_t width) {
    std::vector<int32_t> offsets;
    for (int call = 0; call < kCalls; ++call) {
      offsets.push_back(static_cast<int32_t>(call * aligned(width) / tap::kCaptureAlign));
      offsets.push_back(-1);
    }
    return offsets;
  }
  static std::vector<int32_t> begin_of(const Mode& mode, int64_t tokens, int64_t width) {
    std::vector<int32_t> begins;
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t begin = mode.is_captured ? t * kCalls * aligned(width) / tap::kCaptureAlign : 0;
      begins.push_back(static_cast<int32_t>(begin));
    }
    return begins;
  }

  Buffer<tap::TapOp> ops_;
  Buffer<float> vectors_;
  Buffer<unsigned long long> latches_;
  Buffer<int32_t> captures_;
  Buffer<uint16_t> ring_;
  Buffer<float> relays_{tap::kNumRelays};
  const bool only_adds_;
  Buffer<ops::TapEntry> entries_;
  Buffer<int32_t> zeros_, capture_set_, capture_begin_;
};

// The operands of both ops.
struct BenchOperands {
  Buffer<uint16_t> x{2 * kMaxTokens * kMaxWidth, 0x3c};
  Buffer<uint16_t> delta{kMaxTokens * kMaxWidth, 0x3c};
  Buffer<uint16_t> out{kMaxTokens * kMaxWidth};
  Buffer<float> norm{kMaxWidth, 0x3c};
  Buffer<float> scale{kMaxTokens};
};

struct Op {
  const char* name;
  bool is_norm;
  bool is_fp8;
  int64_t width;
  double bytes_per_element;  // of the plain op
};

cudaError_t enqueue(const Op& op, const Mode& mode, const Table& table,
                    const BenchOperands& operands, int64_t tokens, int call, cudaStream_t stream) {
  if (op.is_norm) {
    ResidualNormParams p;
    p.x = operands.x.data();
    p.delta = operands.delta.data();
    p.norm = operands.norm.data();
    p.rows = tokens;
    p.hidden = op.width;
    p.out = operands.out.data();
    if (op.is_fp8) p.out_scale = operands.scale.data();
    if (!mode.is_tapped) return launch_residual_norm(p, stream);
    return launch_tapped_residual_norm(p, table.params<kResidualPoints>(call, kFirstXPoint),
                                       stream);
  }
  GatedActParams p;
  p.x = operands.x.data();
  p.rows = tokens;
  p.width = op.width;
  p.out = operands.out.data();
  if (op.is_fp8) p.out_scale = operands.scale.data();
  if (!mode.is_tapped) return launch_gated_act(p, stream);
  return launch_tapped_gated_act(p, table.params<1>(call, 0), stream);
}

void bench(const Op& op, int64_t tokens, int rounds, const BenchOperands& operands,
           const Buffer<uint8_t>& flush, cudaStream_t stream) {
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<std::unique_ptr<Graph>> graphs;
  std::vector<const Mode*> modes;
  for (const Mode& mode : kModes) {
    // As much as the offsets of vectors can name, and half of that.
    const double floats = static_cast<double>(mode.is_distinct ? tokens : 1) * kCalls *
                          static_cast<double>(op.width) * mode.num_ops;
    if (floats > 1e9) continue;
    modes.push_back(&mode);
    tables.push_back(std::make_unique<Table>(mode, tokens, op.width));
    graphs.push_back(std::make_unique<Graph>(stream, [&] {
      for (int call = 0; call < kCalls; ++call) {
        must(enqueue(op, mode, *tables.back(), operands, tokens, call, stream), mode.name);
      }
    }));
  }
  std::vector<double> us = time_graphs(graphs, rounds, flush, stream);
  for (double& of_mode : us) of_mode /= kCalls;
  for (size_t i = 0; i < modes.size(); ++i) {
    const Mode& mode = *modes[i];
    const double elements = static_cast<double>(tokens * op.width);
    const double vectors = static_cast<double>((mode.is_distinct ? tokens : 1) * op.width) * 4 *
                           mode.num_ops * (mode.kind == tap::OpKind::kFeature ? 2 : 1);
    const double bytes = elements * (op.bytes_per_element + (mode.is_captured ? 2 : 0)) + vectors;
    std::printf("%-20s%7lld%7lld  %-19s%9.2f%+9.2f%9.2f\n", op.name,
                static_cast<long long>(op.width), static_cast<long long>(tokens), mode.name, us[i],
                us[i] - us[0], 1e6 * bytes / kReadBytesPerSecond);
  }
}

int run(int rounds) {
  constexpr Op kOps[] = {
      {"residual_norm bf16", true, false, 2560, 8}, {"residual_norm bf16", true, false, 4096, 8},
      {"residual_norm bf16", true, false, 5376, 8}, {"residual_norm fp8", true, true, 3584, 7},
      {"gated_act bf16", false, false, 10240, 6},   {"gated_act fp8", false, true, 18944, 5},
  };
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const BenchOperands operands;
  const Buffer<uint8_t> flush(kFlushBytes);
  std::printf("%-20s%7s%7s  %-19s%9s%9s%9s\n", "op", "width", "tokens", "mode", "us/call",
              "- plain", "floor us");
  for (const Op& op : kOps) {
    for (const int64_t tokens : {1, 16, 128, 2048}) {
      bench(op, tokens, rounds, operands, flush, stream);
    }
  }
  cudaStreamDestroy(stream);
  return 0;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::run(argc > 1 ? std::atoi(argv[1]) : 15);
}
