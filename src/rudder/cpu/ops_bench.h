// Times the macro-ops of the fast CPU backend inside whole steps of a model of a given shape with
// random weights, and compares each with the machine's measured ceilings. Called by `rudder bench
// ops`. It allocates the whole model, so that weights come from memory and not from a cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/cpu/fast_ops.h"

namespace rudder::cpu {

// A dense decoder; the defaults are Qwen2.5-0.5B, whose head is the embedding again.
struct BenchShape {
  int64_t hidden = 896;
  int64_t num_heads = 14;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 64;
  int64_t mlp_width = 4864;
  int64_t vocab = 151936;
  int64_t num_layers = 24;
  bool qkv_bias = true;
  std::string weights = "wide";  // bench_format
};

// How its products are stored, by the name that GGUF files have for it ("q4_0", "q4_1", "q4_k",
// "q5_0", "q6_k", "q8_0", "mxfp4") or "wide". Inputs that K types cannot group are q5_0, as
// llama.cpp has it.
Result<ops::WeightFormat> bench_format(const std::string& name, int64_t in);

// One kind of step: `num_seqs` sequences of `q_len` new tokens each after `context` cached ones;
// logits for the last token of each.
struct BenchStep {
  int64_t num_seqs = 1;
  int64_t q_len = 1;
  int64_t context = 128;
};

struct OpsBenchArgs {
  BenchShape shape;
  CpuOpsSettings ops;
  std::vector<BenchStep> steps = {{1, 1, 128}, {16, 1, 128}, {1, 128, 0}, {1, 512, 0}};
  int repeats = 5;  // of each step, after one that warms up; the one of least CPU time counts
  ProgressFn told = [](int64_t, int64_t) {};  // how many steps are measured
};

// One op, or "step", of one kind of step, summed over the layers.
struct OpsBenchRow {
  BenchStep step;
  std::string op;
  double seconds = 0;
  double cpu_seconds = 0;    // of all threads
  double bytes = 0;          // that must be read or written once
  double flops = 0;          // of products
  double floor_seconds = 0;  // the larger of bytes and flops over their ceilings
};

struct OpsBenchReport {
  std::string backend;
  int num_threads = 0;
  int64_t weight_bytes = 0;
  double read_bandwidth = 0;  // bytes/s, as measured
  double product_rate = 0;    // flop/s, as measured on operands in cache
  std::vector<OpsBenchRow> rows;
};

Result<OpsBenchReport> bench_ops(const OpsBenchArgs& args);

// The report as a table for people.
std::string to_table(const OpsBenchReport& report);

}  // namespace rudder::cpu
