// Times the macro-ops of the CUDA backend on a model of a given shape with random weights: each op
// of all layers as one captured graph, so that weights and caches come from memory as they do in a
// step, and then the whole step as one graph. Called by `rudder bench ops --device cuda`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/cuda/ceilings.h"
#include "rudder/cuda/cuda_ops.h"

namespace rudder::cuda {

// A dense decoder; the defaults are Qwen2.5-7B.
struct BenchShape {
  int64_t hidden = 3584;
  int64_t num_heads = 28;
  int64_t num_kv_heads = 4;
  int64_t head_dim = 128;
  int64_t mlp_width = 18944;
  int64_t vocab = 152064;
  int64_t num_layers = 28;
  bool qkv_bias = true;
  bool qk_norm = false;
};

// `num_seqs` sequences of `q_len` new tokens each after `context` cached ones; logits for the last
// token of each.
struct BenchStep {
  int64_t num_seqs = 1;
  int64_t q_len = 1;
  int64_t context = 512;
};

struct OpsBenchArgs {
  BenchShape shape;
  CudaOpsSettings ops;
  // Of the layers' weights, with random codes; none: of `ops`. The head is of `ops`.
  std::optional<ops::WeightFormat> stored = {};
  std::vector<BenchStep> steps = {{1, 1, 512},   {8, 1, 512},  {32, 1, 512}, {128, 1, 512},
                                  {512, 1, 512}, {1, 2048, 0}, {1, 8192, 0}};
  int repeats = 20;                           // of each graph
  ProgressFn told = [](int64_t, int64_t) {};  // how many steps are measured
};

// One op, or "step", of one kind of step, summed over the layers. Norms that clip (UClipNorm) are
// beside the step's own and no part of it.
struct OpsBenchRow {
  BenchStep step;
  std::string op;
  int64_t calls = 0;
  double seconds = 0;        // of all calls
  double bytes = 0;          // that must be read or written once
  double flops = 0;          // of products
  double floor_seconds = 0;  // the larger of bytes and flops over their ceilings
};

struct OpsBenchReport {
  std::string backend;
  int64_t weight_bytes = 0;
  Ceilings ceilings;
  std::vector<OpsBenchRow> rows;
};

// A count as a figure.
inline double as_double(int64_t count) {
  return static_cast<double>(count);
}

Result<OpsBenchReport> bench_ops(const OpsBenchArgs& args);

// The report as a table for people, and as one for documents: an op a row, a kind of step a column.
std::string to_table(const OpsBenchReport& report);
std::string to_markdown(const OpsBenchReport& report);

}  // namespace rudder::cuda
