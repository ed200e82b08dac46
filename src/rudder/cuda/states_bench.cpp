// Times the ops of mixers that keep a state at the shapes of models, beside the floor of their
// bytes: each state read once and written once, and the rows. A program of its own, so that it runs
// on a bare machine with a GPU. A figure is of a captured graph of some layers, whose states take
// turns. The L2 cache holds something else when one begins.
// states_bench [part of a shape's name]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/experts_bench.h"
#include "rudder/cuda/kernels/states/chunks.h"
#include "rudder/cuda/kernels/states/states.h"

namespace rudder::cuda {
namespace {

constexpr double kStateBytesPerSecond = 4.4e12;  // one H200
constexpr int32_t kFirstTokens = 16;             // that states are made of before they are timed

struct MixerShape {
  const char* name;
  ops::RecurRule rule;
  int32_t key_heads;
  int32_t value_heads;  // 0: a convolution alone
  int32_t key_dim;
  int32_t value_dim;
  int32_t channels;  // of the convolution
  int32_t length;
  int32_t layers;  // that are timed

  int64_t values() const { return int64_t{value_heads} * value_dim; }
  int64_t window_bytes() const { return int64_t{length - 1} * channels * 4; }
  int64_t matrix_bytes() const { return values() * key_dim * 4; }
  int64_t bytes() const {
    return (2 * ops::kStateLine + window_bytes() + matrix_bytes() + 127) / 128 * 128;
  }
  int64_t matrix_begin() const {
    return ops::kStateLine +
           (window_bytes() + ops::kStateLine - 1) / ops::kStateLine * ops::kStateLine;
  }
  int64_t kept_floats() const { return 2 * int64_t{channels} + 2 * value_heads; }
  int64_t row_width() const { return channels + values() + 2 * value_heads; }
};

// Sequences of a step, `each` tokens of each, at one position.
class Batch {
 public:
  Batch(int32_t seqs, int32_t each, int32_t position, int32_t drafts)
      : seqs_(seqs),
        each_(each),
        q_begin_(numbers(seqs + 1, [&](int32_t i) { return i * each; })),
        slots_(numbers(seqs, [](int32_t i) { return i; })),
        positions_(numbers(seqs * each, [&](int32_t i) { return position + i % each; })),
        drafts_(numbers(seqs, [&](int32_t) { return drafts; })) {}

  StateParams params() const {
    StateParams p;
    p.q_begin = q_begin_.data();
    p.table_row = slots_.data();
    p.positions = positions_.data();
    p.state = slots_.data();
    p.num_draft = drafts_.data();
    p.seqs = seqs_;
    p.tokens = seqs_ * each_;
    return p;
  }
  int64_t tokens() const { return int64_t{seqs_} * each_; }
  int64_t seqs() const { return seqs_; }

 private:
  template <typename Of>
  static std::vector<int32_t> numbers(int32_t count, const Of& of) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = of(i);
    return values;
  }
  const int32_t seqs_;
  const int32_t each_;
  const Buffer<int32_t> q_begin_;
  const Buffer<int32_t> slots_;
  const Buffer<int32_t> positions_;
  const Buffer<int32_t> drafts_;
};

class Mixers {
 public:
  Mixers(const MixerShape& shape, int64_t most_seqs, int64_t most_tokens, int32_t kept_rows)
      : shape_(shape),
        kept_rows_(kept_rows),
        pool_(most_seqs * shape.layers * shape.bytes()),
        kept_(kept_rows == 0 ? 1 : most_seqs * kept_rows * shape.layers * shape.kept_floats()),
        rows_(most_tokens * shape.row_width()),
        mixed_(most_tokens * shape.channels),
        out_(most_tokens * std::max<int64_t>(shape.values(), shape.channels)),
        chunks_(std::max<int64_t>(chunk_bytes(static_cast<int32_t>(most_tokens), shape.value_heads),
                                  1)),
        weights_(std::vector<float>(
            static_cast<size_t>(std::max(shape.channels * shape.length, shape.channels)), 0.3f)) {
    const Numbers some(int64_t{4} << 20, false);
    const auto* const from = some.bytes.data();
    auto* const to = reinterpret_cast<uint8_t*>(rows_.data());
    for (size_t at = 0; at < rows_.bytes(); at += some.bytes.size()) {
      must(cudaMemcpy(to + at, from, std::min(some.bytes.size(), rows_.bytes() - at),
                      cudaMemcpyHostToDevice),
           "fill");
    }
  }

  // kWalk: recur, of which no run goes by chunks; kSolve, kPass: the kernels of those that do.
  enum Kernel : unsigned {
    kConvolve = 1,
    kRecur = 2,
    kGate = 4,
    kAll = 7,
    kWalk = 8,
    kSolve = 16,
    kPass = 32
  };

  void enqueue(const Batch& batch, unsigned kernels, int32_t columns, cudaStream_t stream) const {
    for (int i = 0; i < shape_.layers; ++i) {
      if ((kernels & kConvolve) != 0) convolve(batch, i, stream);
      if (shape_.value_heads == 0) continue;
      for (const Kernel kernel : {kRecur, kWalk, kSolve, kPass}) {
        if ((kernels & kernel) != 0) recur(batch, i, kernel, columns, stream);
      }
      if ((kernels & kGate) != 0) gate(batch, stream);
    }
  }

  // What layer 0 has written of `batch`: rows, and states behind them.
  struct Result {
    std::vector<float> out;
    std::vector<float> states;
  };
  Result result(const Batch& batch, cudaStream_t stream) const {
    must(cudaStreamSynchronize(stream), "run");
    std::vector<uint16_t> rows(static_cast<size_t>(batch.tokens() * shape_.values()));
    must(cudaMemcpy(rows.data(), out_.data(), 2 * rows.size(), cudaMemcpyDeviceToHost), "rows");
    Result result;
    for (const uint16_t bits : rows) {
      result.out.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
    }
    const auto of_one = static_cast<size_t>(shape_.matrix_bytes() / 4);
    result.states.resize(static_cast<size_t>(batch.seqs()) * of_one);
    for (int64_t i = 0; i < batch.seqs(); ++i) {
      must(cudaMemcpy(result.states.data() + static_cast<size_t>(i) * of_one,
                      pool_.data() + i * shape_.layers * shape_.bytes() + shape_.matrix_begin() +
                          ops::kStateLine,
                      4 * of_one, cudaMemcpyDeviceToHost),
           "states");
    }
    return result;
  }

 private:
  StateParams state_of(const Batch& batch, int layer, int64_t begin, int64_t kept_begin) const {
    StateParams p = batch.params();
    p.pool_stride = shape_.layers * shape_.bytes();
    p.pool = pool_.data() + layer * shape_.bytes() + begin;
    if (kept_rows_ == 0) return p;
    p.kept_rows = kept_rows_;
    p.row_stride = shape_.kept_floats();
    p.slot_stride = kept_rows_ * p.row_stride * shape_.layers;
    p.kept = kept_.data() + layer * kept_rows_ * p.row_stride + kept_begin;
    return p;
  }

  void convolve(const Batch& batch, int layer, cudaStream_t stream) const {
    ConvolveParams p;
    p.state = state_of(batch, layer, 0, 0);
    p.x = rows_.data();
    p.x_stride = shape_.row_width();
    p.weight = weights_.data();
    p.channels = shape_.channels;
    p.length = shape_.length;
    p.silu = shape_.value_heads > 0;
    p.out = mixed_.data();
    must(launch_convolve(p, stream), "convolve");
    if (kept_rows_ == 0) return;
    must(launch_keep_rows({p.state, {{p.x, p.x_stride, p.channels}}}, stream), "keep rows");
  }

  // Of kSum, as mixers of that kind have it, v lies in front of k and q.
  void recur(const Batch& batch, int layer, Kernel kernel, int32_t columns,
             cudaStream_t stream) const {
    const bool is_sum = shape_.rule == ops::RecurRule::kSum;
    const int32_t keys = shape_.key_heads * shape_.key_dim;
    const auto values = static_cast<int32_t>(shape_.values());
    RecurParams p;
    p.state = state_of(batch, layer, shape_.matrix_begin(), shape_.channels);
    p.qkv = mixed_.data();
    p.qkv_stride = shape_.channels;
    p.q_begin = is_sum ? values + keys : 0;
    p.k_begin = is_sum ? values : keys;
    p.v_begin = is_sum ? 0 : 2 * keys;
    p.gates.rows = rows_.data() + shape_.channels + values;
    p.gates.stride = shape_.row_width();
    p.gates.b_rows = p.gates.rows;
    p.gates.b_stride = p.gates.stride;
    p.gates.a_begin = is_sum ? 0 : shape_.value_heads;
    p.gates.b_begin = is_sum ? -1 : 0;
    p.key_heads = shape_.key_heads;
    p.value_heads = shape_.value_heads;
    p.key_dim = shape_.key_dim;
    p.value_dim = shape_.value_dim;
    p.rule = shape_.rule;
    p.step_high = INFINITY;
    p.a_log = weights_.data();
    p.step_bias = weights_.data();
    p.skip = is_sum ? weights_.data() : nullptr;
    p.out = out_.data();
    p.columns = columns;
    p.chunks = kernel == kWalk ? nullptr : chunks_.data();
    if (kernel == kSolve) return must(launch_solve_chunks(p, stream), "solve chunks");
    if (kernel == kPass) {
      return must(launch_pass_states(p, kMultiprocessors, stream), "pass states");
    }
    must(launch_recur(p, kMultiprocessors, stream), "recur");
    if (kept_rows_ == 0) return;
    const auto* const qkv = mixed_.data();
    const auto* const gates = rows_.data() + shape_.channels + values;
    KeepRowsParams keep{p.state,
                        {{qkv + p.q_begin, p.qkv_stride, keys},
                         {qkv + p.k_begin, p.qkv_stride, keys},
                         {qkv + p.v_begin, p.qkv_stride, values},
                         {gates + p.gates.a_begin, p.gates.stride, p.value_heads}}};
    if (!is_sum) keep.runs[4] = {gates, p.gates.stride, p.value_heads};
    must(launch_keep_rows(keep, stream), "keep rows");
  }

  void gate(const Batch& batch, cudaStream_t stream) const {
    GateRowsParams p;
    p.x = p.out = out_.data();
    p.x_stride = p.width = shape_.values();
    p.gate = rows_.data() + shape_.channels;
    p.gate_stride = shape_.row_width();
    p.function = ops::GateFunction::kSilu;
    p.norm = weights_.data();
    p.eps = 1e-6f;
    p.gates_first = shape_.rule == ops::RecurRule::kSum;
    p.run = p.gates_first ? p.width : shape_.value_dim;
    p.rows = batch.tokens();
    must(launch_gate_rows(p, stream), "gate rows");
  }

  const MixerShape shape_;
  const int32_t kept_rows_;
  Buffer<uint8_t> pool_;
  Buffer<float> kept_;
  Buffer<uint16_t> rows_;   // [tokens, row_width]: inputs of the convolution, gates, a and b
  Buffer<uint16_t> mixed_;  // behind the convolution
  Buffer<uint16_t> out_;
  Buffer<uint8_t> chunks_;
  Buffer<float> weights_;
};

struct StepCase {
  int32_t seqs;
  int32_t each;
  int32_t drafts;
};

void bench_case(const MixerShape& shape, const StepCase& one, const Buffer<uint8_t>& flush,
                cudaStream_t stream) {
  const bool is_prompt = one.each > kFirstTokens;
  const Mixers mixers(shape, one.seqs, int64_t{one.seqs} * std::max(one.each, kFirstTokens),
                      one.drafts > 0 ? 1 + one.drafts : 0);
  mixers.enqueue(Batch(one.seqs, kFirstTokens, 0, 0), Mixers::kAll, 0, stream);
  const Batch batch(one.seqs, one.each, is_prompt ? 0 : kFirstTokens, one.drafts);
  std::vector<std::unique_ptr<Graph>> graphs;
  const auto add = [&](unsigned kernels, int32_t columns) {
    graphs.push_back(
        std::make_unique<Graph>(stream, [&] { mixers.enqueue(batch, kernels, columns, stream); }));
  };
  add(Mixers::kAll, 0);
  add(Mixers::kConvolve, 0);
  if (shape.value_heads > 0) {
    for (const int32_t columns : {0, 1, 2, 4}) {
      add(columns == 0 ? Mixers::kRecur : Mixers::kWalk, columns);
    }
    add(Mixers::kGate, 0);
    if (is_prompt) {
      add(Mixers::kSolve, 0);
      add(Mixers::kPass, 0);
    }
  }
  std::vector<double> us = time_graphs(graphs, 11, flush, stream);
  for (double& one_us : us) one_us /= shape.layers;
  const auto floor_of = [&](int64_t bytes) {
    return static_cast<double>(bytes) / kStateBytesPerSecond * 1e6;
  };
  const int64_t seqs = batch.seqs();
  const int64_t tokens = batch.tokens();
  const double floor = floor_of(2 * seqs * (shape.window_bytes() + shape.matrix_bytes()) +
                                2 * tokens * (2 * shape.channels + 3 * shape.values()));
  std::printf("  %4d x %4d, drafts %d: all %7.1f  floor %6.1f  %5.1f %%  convolve %6.1f", one.seqs,
              one.each, one.drafts, us[0], floor, 100 * floor / us[0], us[1]);
  if (shape.value_heads > 0) {
    const double of_state = floor_of(2 * seqs * shape.matrix_bytes());
    std::printf(
        "  recur %7.1f (floor %6.1f, %5.1f %%; walked by 1, 2, 4 columns: %.1f %.1f %.1f)  gate "
        "%5.1f",
        us[2], of_state, 100 * of_state / us[2], us[3], us[4], us[5], us[6]);
    if (is_prompt) std::printf("  solve %.1f  pass %.1f", us[7], us[8]);
  }
  std::printf("\n");
  std::fflush(stdout);
}

double root_mean_square(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return std::sqrt(sum / static_cast<double>(x.size()));
}
double largest_difference(const std::vector<float>& x, const std::vector<float>& y) {
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(double{x[i]} - y[i]);
    most = difference <= most ? most : difference;  // NaN stays
  }
  return most;
}

// By chunks and walked, from the same states.
void compare_forms(const MixerShape& shape, int32_t seqs, int32_t each, cudaStream_t stream) {
  const Mixers mixers(shape, seqs, int64_t{seqs} * each, 0);
  Mixers::Result results[2];
  for (int walked = 0; walked < 2; ++walked) {
    mixers.enqueue(Batch(seqs, kFirstTokens, 0, 0), Mixers::kAll, 0, stream);
    const Batch batch(seqs, each, kFirstTokens, 0);
    mixers.enqueue(batch, Mixers::kConvolve | (walked == 0 ? Mixers::kRecur : Mixers::kWalk), 0,
                   stream);
    results[walked] = mixers.result(batch, stream);
  }
  std::printf("  %d x %d by chunks and walked: out %.2g of %.3g, state %.2g of %.3g\n", seqs, each,
              largest_difference(results[0].out, results[1].out), root_mean_square(results[1].out),
              largest_difference(results[0].states, results[1].states),
              root_mean_square(results[1].states));
  std::fflush(stdout);
}

int run_states_bench(std::string_view part) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "stream");
  const Buffer<uint8_t> flush(kFlushBytes);
  using enum ops::RecurRule;
  for (const MixerShape& shape :
       {MixerShape{"Qwen3.5-35B-A3B", kDelta, 16, 32, 128, 128, 8192, 4, 6},
        {"Qwen3.6-27B", kDelta, 16, 48, 128, 128, 10240, 4, 6},
        {"Granite 4.0 H Tiny", kSum, 1, 48, 128, 64, 3328, 4, 8},
        {"Granite 4.0 H Small", kSum, 1, 128, 128, 64, 8448, 4, 6},
        {"LFM2-1.2B", kSum, 1, 0, 0, 0, 2048, 3, 10}}) {
    if (std::string_view(shape.name).find(part) == std::string_view::npos) continue;
    std::printf("%s: us a layer of sequences x tokens\n", shape.name);
    for (const StepCase& one : {StepCase{1, 1, 0},
                                {8, 1, 0},
                                {32, 1, 0},
                                {128, 1, 0},
                                {32, 4, 3},
                                {1, 2048, 0},
                                {4, 512, 0}}) {
      bench_case(shape, one, flush, stream);
    }
    if (shape.value_heads == 0) continue;
    for (const auto& [seqs, each] : {std::pair(1, 64), {1, 2048}, {3, 333}, {1, 8191}}) {
      compare_forms(shape, seqs, each, stream);
    }
  }
  return 0;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::run_states_bench(argc > 1 ? argv[1] : "");
}
