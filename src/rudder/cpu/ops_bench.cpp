#include "rudder/cpu/ops_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "rudder/base/cpu_time.h"
#include "rudder/base/thread_pool.h"
#include "rudder/cpu/device_memory.h"
#include "rudder/cpu/memory_bandwidth.h"
#include "rudder/ops/make_kv_layer.h"

namespace rudder::cpu {
namespace {

using ops::LinearWeight;
using tensor::DType;
using tensor::host_view;
using tensor::View;

constexpr int32_t kBlockSize = 16;

struct OpTime {
  double seconds = 0;
  double cpu_seconds = 0;
};

double process_seconds() {
  return static_cast<double>(process_cpu_us()) * 1e-6;
}

enum Kind { kEmbed, kNorm, kQkv, kPrep, kAttention, kAttnOut, kGateUp, kAct, kDown, kHead, kKinds };
constexpr std::array<const char*, kKinds> kNames = {
    "embed",      "residual_norm",  "linear qkv", "qkv_prep",    "attention",
    "linear out", "linear gate_up", "gated_act",  "linear down", "logits"};

// Random bf16 in about [-0.06, 0.06]: never zeros, whose time would flatter.
void fill(View view) {
  uint64_t state = 0x9e3779b97f4a7c15u;
  auto* bits = static_cast<uint16_t*>(view.data);
  for (int64_t i = 0; i < view.shape.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    bits[i] = static_cast<uint16_t>((state >> 48 & 0x80ffu) | 0x3c00u);
  }
}

// As a file has it, with random codes and scales of one size.
struct BenchPart {
  Buffer codes, scales, offsets;
  ops::LinearPart part;
};

Result<BenchPart> make_part(const ops::WeightFormat& format, int64_t out, int64_t in) {
  const ops::StoredParts shape = ops::stored_parts(format, out, in);
  BenchPart made;
  RUDDER_TRY(made.codes, Buffer::make(static_cast<size_t>(shape.codes.bytes())));
  RUDDER_TRY(made.scales, Buffer::make(static_cast<size_t>(shape.scales.bytes())));
  RUDDER_TRY(made.offsets, Buffer::make(static_cast<size_t>(shape.offsets.bytes())));
  made.part.format = format;
  made.part.codes = View{made.codes.data(), shape.codes.dtype, {out, shape.codes.columns}};
  if (format.is_wide()) {
    fill(made.part.codes);
    return made;
  }
  fill({made.codes.data(), DType::kBF16, {shape.codes.bytes() / 2}});
  made.part.scales = View{made.scales.data(), shape.scales.dtype, {out, shape.scales.columns}};
  const std::vector<float> sizes(static_cast<size_t>(made.part.scales.shape.numel()), 0.01f);
  if (shape.scales.dtype == DType::kU8) {
    std::memset(made.scales.data(), 120, made.scales.bytes());
  } else {
    RUDDER_TRY_VOID(convert_values(sizes.data(), DType::kF32, made.scales.data(),
                                   shape.scales.dtype, made.part.scales.shape.numel()));
  }
  if (shape.offsets.rows > 0) {
    made.part.offsets =
        View{made.offsets.data(), shape.offsets.dtype, {out, shape.offsets.columns}};
  }
  return made;
}

struct Layer {
  LinearWeight qkv, attn_out, gate_up, down;
  ops::NormSpec norm;
  ops::KvLayer kv;
};

class BenchModel {
 public:
  BenchModel(const BenchShape& shape, std::unique_ptr<ops::Ops> ops)
      : shape_(shape), ops_(std::move(ops)) {}

  Result<void> load(const std::vector<BenchStep>& steps) {
    for (const BenchStep& step : steps) {
      max_tokens_ = std::max(max_tokens_, step.num_seqs * step.q_len);
      max_seqs_ = std::max(max_seqs_, step.num_seqs);
      max_len_ = std::max(max_len_, step.context + step.q_len);
    }
    blocks_per_seq_ = (max_len_ + kBlockSize - 1) / kBlockSize;
    const int64_t q = shape_.num_heads * shape_.head_dim;
    const int64_t kv = shape_.num_kv_heads * shape_.head_dim;
    layers_.resize(static_cast<size_t>(shape_.num_layers));
    for (Layer& layer : layers_) {
      RUDDER_TRY(layer.qkv, weight(q + 2 * kv, shape_.hidden, shape_.qkv_bias));
      RUDDER_TRY(layer.attn_out, weight(shape_.hidden, q, false));
      RUDDER_TRY(layer.gate_up, weight(2 * shape_.mlp_width, shape_.hidden, false));
      RUDDER_TRY(layer.down, weight(shape_.hidden, shape_.mlp_width, false));
      RUDDER_TRY(layer.norm.weight, ops_->allocate(DType::kF32, {shape_.hidden}));
      std::fill_n(layer.norm.weight.as<float>(), shape_.hidden, 1.0f);
      RUDDER_TRY(layer.kv,
                 ops::make_kv_layer(*ops_, max_seqs_ * blocks_per_seq_,
                                    {.block_size = kBlockSize,
                                     .num_kv_heads = static_cast<int32_t>(shape_.num_kv_heads),
                                     .head_dim = static_cast<int32_t>(shape_.head_dim)}));
    }
    RUDDER_TRY(head_, weight(shape_.vocab, shape_.hidden, false));
    RUDDER_TRY(x_, ops_->allocate(DType::kF32, {max_tokens_, shape_.hidden}));
    RUDDER_TRY(branch_, ops_->allocate(DType::kF32, {max_tokens_, shape_.hidden}));
    RUDDER_TRY(qkv_, ops_->allocate(DType::kF32, {max_tokens_, q + 2 * kv}));
    RUDDER_TRY(q_, ops_->allocate(DType::kF32, {max_tokens_, q}));
    RUDDER_TRY(attended_, ops_->allocate(DType::kF32, {max_tokens_, q}));
    RUDDER_TRY(gate_up_, ops_->allocate(DType::kF32, {max_tokens_, 2 * shape_.mlp_width}));
    RUDDER_TRY(acted_, ops_->allocate(DType::kF32, {max_tokens_, shape_.mlp_width}));
    RUDDER_TRY(last_, ops_->allocate(DType::kF32, {max_seqs_, shape_.hidden}));
    RUDDER_TRY(logits_, ops_->allocate(DType::kF32, {max_seqs_, shape_.vocab}));
    RUDDER_TRY(rope_, ops_->allocate(DType::kF32, {max_len_, 2, shape_.head_dim / 2}));
    std::fill_n(rope_.as<float>(), rope_.shape.numel(), 0.7f);
    return {};
  }

  // Runs one step; times of each kind of op.
  std::array<OpTime, kKinds> run(const BenchStep& step) {
    times_ = {};
    const int64_t tokens = step.num_seqs * step.q_len;
    set_inputs(step);
    const View x = x_.rows(0, tokens);
    const View branch = branch_.rows(0, tokens);
    time(kEmbed, [&] { ops_->embed({{}, &head_, host_view(ids_), 1.0f, x}); });
    for (size_t i = 0; i < layers_.size(); ++i) run_layer(layers_[i], tokens, i == 0);
    time(kNorm, [&] { ops_->residual_norm({x, branch, {}, layers_[0].norm, branch, {}}); });
    const View last = last_.rows(0, step.num_seqs);
    time(kHead, [&] {
      ops_->gather_rows({branch, host_view(last_rows_), last});
      ops_->logits({last, {}, &head_, 0.0f, logits_.rows(0, step.num_seqs)});
    });
    return times_;
  }

  // Bytes and flops of each kind of op in one step.
  std::array<OpsBenchRow, kKinds> work(const BenchStep& step) const {
    std::array<OpsBenchRow, kKinds> rows;
    const auto tokens = static_cast<double>(step.num_seqs * step.q_len);
    const auto layers = static_cast<double>(shape_.num_layers);
    const auto hidden = static_cast<double>(shape_.hidden);
    const auto q = static_cast<double>(shape_.num_heads * shape_.head_dim);
    const auto kv = static_cast<double>(shape_.num_kv_heads * shape_.head_dim);
    const auto mlp = static_cast<double>(shape_.mlp_width);
    const auto kv_bytes = static_cast<double>(dtype_bytes(ops_->kv_format().dtype));
    const auto linear = [&](Kind kind, const LinearWeight& weight, double times, double count) {
      const auto in = static_cast<double>(weight.in);
      const auto out = static_cast<double>(weight.out);
      rows[kind].bytes = times * (static_cast<double>(weight.bytes) + 4 * count * (in + out));
      rows[kind].flops = times * 2 * count * in * out;
    };
    linear(kQkv, layers_[0].qkv, layers, tokens);
    linear(kAttnOut, layers_[0].attn_out, layers, tokens);
    linear(kGateUp, layers_[0].gate_up, layers, tokens);
    linear(kDown, layers_[0].down, layers, tokens);
    linear(kHead, head_, 1, static_cast<double>(step.num_seqs));
    rows[kEmbed].bytes = tokens * hidden * 6;
    rows[kNorm].bytes = (2 * layers + 1) * tokens * hidden * 16;
    rows[kPrep].bytes = layers * tokens * (4 * (2 * q + 2 * kv) + 2 * kv * kv_bytes);
    rows[kAct].bytes = layers * tokens * mlp * 12;
    const auto length = static_cast<double>(step.context + step.q_len);
    rows[kAttention].bytes =
        layers * (static_cast<double>(step.num_seqs) * length * 2 * kv * kv_bytes + 8 * tokens * q);
    const double seen = tokens * (length - static_cast<double>(step.q_len - 1) / 2);
    rows[kAttention].flops = layers * 4 * seen * q;
    return rows;
  }

  const ops::Ops& backend() const { return *ops_; }

  int64_t weight_bytes() const {
    int64_t total = head_.bytes;
    for (const Layer& layer : layers_) {
      total += layer.qkv.bytes + layer.attn_out.bytes + layer.gate_up.bytes + layer.down.bytes;
    }
    return total;
  }

 private:
  Result<LinearWeight> weight(int64_t out, int64_t in, bool biased) {
    RUDDER_TRY(const ops::WeightFormat format, bench_format(shape_.weights, in));
    RUDDER_TRY(BenchPart made, make_part(format, out, in));
    RUDDER_TRY(const Buffer bias, Buffer::make(static_cast<size_t>(out) * 2));
    if (biased) made.part.bias = View{bias.data(), DType::kBF16, {out}};
    return ops_->make_linear({&made.part, 1});
  }

  // Token ids, positions and KV slots of the step.
  void set_inputs(const BenchStep& step) {
    ids_.clear();
    positions_.clear();
    slots_.clear();
    last_rows_.clear();
    q_begin_ = {0};
    kv_len_.clear();
    table_rows_.clear();
    table_.resize(static_cast<size_t>(max_seqs_ * blocks_per_seq_));
    std::iota(table_.begin(), table_.end(), 0);
    for (int64_t s = 0; s < step.num_seqs; ++s) {
      for (int64_t i = 0; i < step.q_len; ++i) {
        const int64_t position = step.context + i;
        ids_.push_back(static_cast<int32_t>((s * 7919 + i * 104729) % shape_.vocab));
        positions_.push_back(static_cast<int32_t>(position));
        slots_.push_back(static_cast<int32_t>(s * blocks_per_seq_ * kBlockSize + position));
      }
      q_begin_.push_back(static_cast<int32_t>(ids_.size()));
      last_rows_.push_back(static_cast<int32_t>(ids_.size()) - 1);
      kv_len_.push_back(static_cast<int32_t>(step.context + step.q_len));
      table_rows_.push_back(static_cast<int32_t>(s));
    }
    View table = host_view(table_);
    table.shape = {max_seqs_, blocks_per_seq_};
    ops_->begin_attention({host_view(q_begin_), host_view(kv_len_), host_view(table_rows_), table,
                           static_cast<int32_t>(step.q_len),
                           static_cast<int32_t>(step.context + step.q_len)});
  }

  void run_layer(const Layer& layer, int64_t tokens, bool first) {
    const View x = x_.rows(0, tokens);
    const View branch = branch_.rows(0, tokens);
    const View qkv = qkv_.rows(0, tokens);
    const View q = q_.rows(0, tokens);
    const View attended = attended_.rows(0, tokens);
    const View gate_up = gate_up_.rows(0, tokens);
    const View acted = acted_.rows(0, tokens);
    const auto heads = static_cast<int32_t>(shape_.num_heads);
    const View delta = first ? View{} : branch;
    time(kNorm, [&] { ops_->residual_norm({x, delta, {}, layer.norm, branch, {}}); });
    time(kQkv, [&] { ops_->linear({branch, {}, &layer.qkv, qkv}); });
    time(kPrep, [&] {
      ops_->qkv_prep(
          {qkv, heads, {}, {}, rope_, host_view(positions_), host_view(slots_), layer.kv, q});
    });
    time(kAttention, [&] { ops_->attention({q, layer.kv, heads, 0.125f, 0, 0.0f, attended}); });
    time(kAttnOut, [&] { ops_->linear({attended, {}, &layer.attn_out, branch}); });
    time(kNorm, [&] { ops_->residual_norm({x, branch, {}, layer.norm, branch, {}}); });
    time(kGateUp, [&] { ops_->linear({branch, {}, &layer.gate_up, gate_up}); });
    time(kAct, [&] { ops_->gated_act({gate_up, ops::Activation::kSilu, acted, {}}); });
    time(kDown, [&] { ops_->linear({acted, {}, &layer.down, branch}); });
  }

  template <typename F>
  void time(Kind kind, F f) {
    const auto begin = std::chrono::steady_clock::now();
    const double cpu_begin = process_seconds();
    f();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    times_[kind].seconds += taken.count();
    times_[kind].cpu_seconds += process_seconds() - cpu_begin;
  }

  BenchShape shape_;
  std::unique_ptr<ops::Ops> ops_;
  std::vector<Layer> layers_;
  LinearWeight head_;
  View x_, branch_, qkv_, q_, attended_, gate_up_, acted_, last_, logits_, rope_;
  int64_t max_tokens_ = 1, max_seqs_ = 1, max_len_ = 1, blocks_per_seq_ = 1;
  std::vector<int32_t> ids_, positions_, slots_, q_begin_, kv_len_, table_, table_rows_, last_rows_;
  std::array<OpTime, kKinds> times_ = {};
};

double cpu_total(const std::array<OpTime, kKinds>& times) {
  double total = 0;
  for (const OpTime& time : times) total += time.cpu_seconds;
  return total;
}

void bench_step(BenchModel& model, const BenchStep& step, int repeats, OpsBenchReport& report) {
  model.run(step);
  std::array<OpTime, kKinds> best = model.run(step);
  for (int i = 1; i < repeats; ++i) {
    const std::array<OpTime, kKinds> next = model.run(step);
    if (cpu_total(next) < cpu_total(best)) best = next;
  }
  OpsBenchRow whole;
  whole.step = step;
  whole.op = "step";
  std::array<OpsBenchRow, kKinds> rows = model.work(step);
  for (int kind = 0; kind < kKinds; ++kind) {
    OpsBenchRow& row = rows[static_cast<size_t>(kind)];
    row.step = step;
    row.op = kNames[static_cast<size_t>(kind)];
    row.seconds = best[static_cast<size_t>(kind)].seconds;
    row.cpu_seconds = best[static_cast<size_t>(kind)].cpu_seconds;
    row.floor_seconds =
        std::max(row.bytes / report.read_bandwidth, row.flops / report.product_rate);
    whole.seconds += row.seconds;
    whole.cpu_seconds += row.cpu_seconds;
    whole.bytes += row.bytes;
    whole.flops += row.flops;
    whole.floor_seconds += row.floor_seconds;
    report.rows.push_back(row);
  }
  report.rows.push_back(whole);
}

}  // namespace

Result<ops::WeightFormat> bench_format(const std::string& name, int64_t in) {
  using ops::Codes;
  using ops::Offset;
  using ops::ScaleType;
  constexpr ops::WeightFormat kQ5 = {.codes = Codes::kI8, .scale = ScaleType::kF16, .group = 32};
  const bool has_superblocks = in % 256 == 0;
  if (name == "wide") return ops::WeightFormat{};
  if (name == "q4_0") {
    return ops::WeightFormat{
        .codes = Codes::kU4, .scale = ScaleType::kF16, .group = 32, .offset = Offset::kMiddle};
  }
  if (name == "q4_1") {
    return ops::WeightFormat{
        .codes = Codes::kU4, .scale = ScaleType::kF16, .group = 32, .offset = Offset::kMinimum};
  }
  if (name == "q4_k") {
    if (!has_superblocks) return kQ5;
    return ops::WeightFormat{
        .codes = Codes::kU4, .scale = ScaleType::kF32, .group = 32, .offset = Offset::kMinimum};
  }
  if (name == "q5_0" || name == "q8_0") return kQ5;
  if (name == "q6_k") {
    if (!has_superblocks) return kQ5;
    return ops::WeightFormat{.codes = Codes::kI8, .scale = ScaleType::kF32, .group = 16};
  }
  if (name == "mxfp4") {
    return ops::WeightFormat{.codes = Codes::kU4,
                             .scale = ScaleType::kE8M0,
                             .group = 32,
                             .table = ops::CodeTable::kE2M1};
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is none of wide, q4_0, q4_1, q4_k, q5_0, q6_k, q8_0, mxfp4", name),
              "weights");
}

Result<OpsBenchReport> bench_ops(const OpsBenchArgs& args) {
  RUDDER_TRY(auto ops, make_cpu_ops(args.ops));
  OpsBenchReport report;
  report.backend = ops->name();
  {
    ThreadPool pool(args.ops.num_threads);
    report.num_threads = pool.num_threads();
    const Kernels& kernels = kernels_for(args.ops.isa.value_or(available_isas().back()));
    const size_t buffer = std::max(size_t{512} << 20, 4 * last_cache_bytes());
    RUDDER_TRY(report.read_bandwidth, measure_read_bandwidth(pool, kernels, buffer));
    const Element element = args.ops.dtype == DType::kBF16 ? Element::kBf16 : Element::kF32;
    RUDDER_TRY(report.product_rate, measure_product_rate(pool, kernels, element));
  }
  BenchModel model(args.shape, std::move(ops));
  RUDDER_TRY_VOID(model.load(args.steps));
  report.weight_bytes = model.weight_bytes();
  int64_t num_measured = 0;
  for (const BenchStep& step : args.steps) {
    bench_step(model, step, args.repeats, report);
    args.told(++num_measured, std::ssize(args.steps));
  }
  return report;
}

std::string to_table(const OpsBenchReport& report) {
  std::string out = fmt::format(
      "{}, {} threads; weights {:.1f} MB; read bandwidth {:.1f} GB/s, products in cache {:.0f} "
      "GFLOP/s, both as measured\n",
      report.backend, report.num_threads, static_cast<double>(report.weight_bytes) * 1e-6,
      report.read_bandwidth * 1e-9, report.product_rate * 1e-9);
  const BenchStep* last = nullptr;
  for (const OpsBenchRow& row : report.rows) {
    if (last == nullptr || row.op == kNames[0]) {
      out += fmt::format("\n{} x {} tokens after {}\n{:<16}{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}\n",
                         row.step.num_seqs, row.step.q_len, row.step.context, "op", "ms", "CPU ms",
                         "MB", "GB/s", "GFLOP/s", "floor");
    }
    last = &row.step;
    out += fmt::format("{:<16}{:>10.3f}{:>10.3f}{:>10.1f}{:>10.1f}{:>10.0f}{:>7.0f}%\n", row.op,
                       row.seconds * 1e3, row.cpu_seconds * 1e3, row.bytes * 1e-6,
                       row.bytes / row.seconds * 1e-9, row.flops / row.seconds * 1e-9,
                       100 * row.floor_seconds / row.seconds);
    if (row.op == "step") {
      out += fmt::format("{:.1f} tokens/s\n",
                         static_cast<double>(row.step.num_seqs * row.step.q_len) / row.seconds);
    }
  }
  return out;
}

}  // namespace rudder::cpu
