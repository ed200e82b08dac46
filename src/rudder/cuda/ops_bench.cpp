#include "rudder/cuda/ops_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "rudder/cuda/bench_weights.h"
#include "rudder/cuda/linear.h"
#include "rudder/ops/make_kv_layer.h"

namespace rudder::cuda {
namespace {

using ops::LinearWeight;
using tensor::DType;
using tensor::View;

constexpr int32_t kBlockSize = 16;

struct Layer {
  LinearWeight qkv, attn_out, gate_up, down;
  ops::NormSpec norm, q_norm, k_norm;
  ops::NormSpec clip_norm, clip_qk_norm;  // UClipNorm beside them
  ops::KvLayer kv;
};

// Bytes and flops that an op has at least.
struct Work {
  double bytes = 0;
  double flops = 0;
};

class BenchModel {
 public:
  BenchModel(const BenchShape& shape, const std::optional<ops::WeightFormat>& stored,
             std::unique_ptr<ops::Ops> ops)
      : shape_(shape),
        weights_(stored),
        is_fp8_(!stored && ops->stored_format({}) == ops::kFp8Rows),
        ops_(std::move(ops)) {}

  Result<void> load(const std::vector<BenchStep>& steps);
  // Fills the step's inputs: positions, slots of the cache, block table.
  Result<void> set_step(const BenchStep& step);

  // An op as `enqueue` puts it on the stream for every layer.
  struct Op {
    const char* name;
    int64_t calls;
    Work work;  // of all calls
    std::function<void()> enqueue;
    bool is_in_step = true;  // false: beside the op of the step that it is compared with
  };
  std::vector<Op> ops_of_step();
  void enqueue_step();

  ops::Ops& backend() { return *ops_; }
  bool multiplies_fp8() const { return is_fp8_; }
  int64_t weight_bytes() const;

 private:
  int64_t q_width() const { return shape_.num_heads * shape_.head_dim; }
  int64_t kv_width() const { return shape_.num_kv_heads * shape_.head_dim; }
  int64_t tokens() const { return step_.num_seqs * step_.q_len; }

  Result<LinearWeight> weight(int64_t out, int64_t in, bool bias);
  Result<ops::NormSpec> norm(int64_t width, bool clips = false);
  Result<View> act(int64_t width) {
    return ops_->upload(weights_.wide(max_tokens_, width), DType::kBF16);
  }
  Result<View> i32(const std::vector<int32_t>& values);
  View x_of(const LinearWeight& weight, const View& wide, const View& narrow) const;
  View scale_of(const LinearWeight& weight) const;

  void residual_norm(const ops::NormSpec& norm, const LinearWeight& next);
  void linear(const LinearWeight& weight, const View& wide, const View& narrow, const View& out);
  void qkv_prep(const Layer& layer, const ops::NormSpec& q_norm, const ops::NormSpec& k_norm);
  void attention(const Layer& layer);
  void gated_act(const Layer& layer);
  void quantise_attended(const Layer& layer);
  void logits();
  Work linear_work(const LinearWeight& weight, int64_t count, double out_bytes) const;

  const BenchShape shape_;
  BenchWeights weights_;  // of layers
  const bool is_fp8_;
  const std::unique_ptr<ops::Ops> ops_;
  std::vector<Layer> layers_;
  LinearWeight head_;
  View x_, normed_, qkv_, q_, attended_, gate_up_, acted_, last_, logits_, rope_;
  View normed8_, attended8_, acted8_, last8_, scale_;
  View ids_, positions_, kv_slot_, last_rows_;
  ops::AttentionBatch batch_;
  BenchStep step_;
  int64_t max_tokens_ = 1, max_seqs_ = 1, max_len_ = 1, blocks_per_seq_ = 1;
};

Result<LinearWeight> BenchModel::weight(int64_t out, int64_t in, bool bias) {
  const ops::LinearPart part = weights_.part(out, in, bias);
  return ops_->make_linear({&part, 1});
}

Result<ops::NormSpec> BenchModel::norm(int64_t width, bool clips) {
  std::vector<float> ones(static_cast<size_t>(width), 1.0f);
  RUDDER_TRY(const View view, ops_->upload({ones.data(), DType::kF32, {width}}, DType::kF32));
  return ops::NormSpec{view, 1e-6f, clips ? view : View{}};
}

Result<View> BenchModel::i32(const std::vector<int32_t>& values) {
  return ops_->upload(tensor::host_view(values), DType::kI32);
}

Result<void> BenchModel::load(const std::vector<BenchStep>& steps) {
  for (const BenchStep& step : steps) {
    max_tokens_ = std::max(max_tokens_, step.num_seqs * step.q_len);
    max_seqs_ = std::max(max_seqs_, step.num_seqs);
    max_len_ = std::max(max_len_, step.context + step.q_len);
  }
  int64_t blocks = 1;
  for (const BenchStep& step : steps) {
    const int64_t per_seq = (step.context + step.q_len + kBlockSize - 1) / kBlockSize;
    blocks = std::max(blocks, step.num_seqs * per_seq);
  }
  layers_.resize(static_cast<size_t>(shape_.num_layers));
  for (Layer& layer : layers_) {
    RUDDER_TRY(layer.qkv, weight(q_width() + 2 * kv_width(), shape_.hidden, shape_.qkv_bias));
    RUDDER_TRY(layer.attn_out, weight(shape_.hidden, q_width(), false));
    RUDDER_TRY(layer.gate_up, weight(2 * shape_.mlp_width, shape_.hidden, false));
    RUDDER_TRY(layer.down, weight(shape_.hidden, shape_.mlp_width, false));
    RUDDER_TRY(layer.norm, norm(shape_.hidden));
    RUDDER_TRY(layer.clip_norm, norm(shape_.hidden, true));
    RUDDER_TRY(layer.clip_qk_norm, norm(shape_.head_dim, true));
    if (shape_.qk_norm) {
      RUDDER_TRY(layer.q_norm, norm(shape_.head_dim));
      RUDDER_TRY(layer.k_norm, norm(shape_.head_dim));
    }
    RUDDER_TRY(layer.kv,
               ops::make_kv_layer(*ops_, blocks,
                                  {.block_size = kBlockSize,
                                   .num_kv_heads = static_cast<int32_t>(shape_.num_kv_heads),
                                   .head_dim = static_cast<int32_t>(shape_.head_dim)}));
  }
  const ops::LinearPart head = ops::wide_part(weights_.wide(shape_.vocab, shape_.hidden));
  RUDDER_TRY(head_, ops_->make_linear({&head, 1}));
  RUDDER_TRY(x_, act(shape_.hidden));
  RUDDER_TRY(normed_, act(shape_.hidden));
  RUDDER_TRY(qkv_, act(q_width() + 2 * kv_width()));
  RUDDER_TRY(q_, act(q_width()));
  RUDDER_TRY(attended_, act(q_width()));
  RUDDER_TRY(gate_up_, act(2 * shape_.mlp_width));
  RUDDER_TRY(acted_, act(shape_.mlp_width));
  RUDDER_TRY(last_, act(shape_.hidden));
  for (const auto& [narrow, width] : {std::pair(&normed8_, shape_.hidden),
                                      {&attended8_, q_width()},
                                      {&acted8_, shape_.mlp_width},
                                      {&last8_, shape_.hidden}}) {
    RUDDER_TRY(*narrow, ops_->allocate(DType::kF8E4M3, {max_tokens_, width}));
  }
  RUDDER_TRY(scale_, ops_->allocate(DType::kF32, {max_tokens_}));
  RUDDER_TRY(logits_, ops_->allocate(DType::kF32, {max_seqs_, shape_.vocab}));
  std::vector<float> rope(static_cast<size_t>(max_len_ * shape_.head_dim), 0.7f);
  RUDDER_TRY(rope_, ops_->upload({rope.data(), DType::kF32, {max_len_, 2, shape_.head_dim / 2}},
                                 DType::kF32));
  const std::vector<ops::AttentionShape> shapes = {
      {static_cast<int32_t>(shape_.num_heads), 0, layers_[0].kv}};
  std::vector<LinearWeight> linears;
  for (const Layer& layer : layers_) {
    for (const LinearWeight* weight : {&layer.qkv, &layer.attn_out, &layer.gate_up, &layer.down}) {
      linears.push_back(*weight);
    }
  }
  return ops_->prepare({.max_tokens = static_cast<int32_t>(max_tokens_),
                        .max_rows = static_cast<int32_t>(max_seqs_),
                        .max_seqs = static_cast<int32_t>(max_seqs_),
                        .hidden = shape_.hidden,
                        .max_linear_in = std::max(shape_.mlp_width, shape_.hidden),
                        .head = &head_,
                        .linears = linears,
                        .attention = shapes});
}

Result<void> BenchModel::set_step(const BenchStep& step) {
  step_ = step;
  blocks_per_seq_ = (step.context + step.q_len + kBlockSize - 1) / kBlockSize;
  std::vector<int32_t> ids, positions, slots, last_rows, q_begin = {0}, kv_len, rows, table;
  for (int64_t s = 0; s < step.num_seqs; ++s) {
    for (int64_t i = 0; i < step.q_len; ++i) {
      const int64_t position = step.context + i;
      ids.push_back(static_cast<int32_t>((s * 7919 + i * 104729) % shape_.vocab));
      positions.push_back(static_cast<int32_t>(position));
      slots.push_back(static_cast<int32_t>(s * blocks_per_seq_ * kBlockSize + position));
    }
    q_begin.push_back(static_cast<int32_t>(ids.size()));
    last_rows.push_back(static_cast<int32_t>(ids.size()) - 1);
    kv_len.push_back(static_cast<int32_t>(step.context + step.q_len));
    rows.push_back(static_cast<int32_t>(s));
    for (int64_t b = 0; b < blocks_per_seq_; ++b) {
      table.push_back(static_cast<int32_t>(s * blocks_per_seq_ + b));
    }
  }
  RUDDER_TRY(ids_, i32(ids));
  RUDDER_TRY(positions_, i32(positions));
  RUDDER_TRY(kv_slot_, i32(slots));
  RUDDER_TRY(last_rows_, i32(last_rows));
  RUDDER_TRY(batch_.q_begin, i32(q_begin));
  RUDDER_TRY(batch_.kv_len, i32(kv_len));
  RUDDER_TRY(batch_.table_row, i32(rows));
  RUDDER_TRY(batch_.block_table, i32(table));
  batch_.block_table.shape = {step.num_seqs, blocks_per_seq_};
  batch_.max_q_len = static_cast<int32_t>(step.q_len);
  batch_.max_kv_len = static_cast<int32_t>(step.context + step.q_len);
  return {};
}

View BenchModel::x_of(const LinearWeight& weight, const View& wide, const View& narrow) const {
  return weight.input == ops::InputForm::kF8Rows ? narrow : wide;
}

View BenchModel::scale_of(const LinearWeight& weight) const {
  return weight.input == ops::InputForm::kF8Rows ? scale_.rows(0, tokens()) : View{};
}

void BenchModel::residual_norm(const ops::NormSpec& norm, const LinearWeight& next) {
  ops::ResidualNormArgs args;
  args.x = x_.rows(0, tokens());
  args.delta = normed_.rows(0, tokens());
  args.norm = norm;
  args.out = x_of(next, normed_, normed8_).rows(0, tokens());
  args.out_scale = scale_of(next);
  args.next = &next;
  ops_->residual_norm(args);
}

void BenchModel::linear(const LinearWeight& weight, const View& wide, const View& narrow,
                        const View& out) {
  ops_->linear({.x = x_of(weight, wide, narrow).rows(0, tokens()),
                .x_scale = scale_of(weight),
                .weight = &weight,
                .out = out.rows(0, tokens())});
}

void BenchModel::qkv_prep(const Layer& layer, const ops::NormSpec& q_norm,
                          const ops::NormSpec& k_norm) {
  ops_->qkv_prep({.qkv = qkv_.rows(0, tokens()),
                  .num_heads = static_cast<int32_t>(shape_.num_heads),
                  .q_norm = q_norm,
                  .k_norm = k_norm,
                  .rope = rope_,
                  .rope_row = positions_,
                  .kv_slot = kv_slot_,
                  .kv = layer.kv,
                  .q_out = q_.rows(0, tokens())});
}

void BenchModel::attention(const Layer& layer) {
  ops::AttentionArgs args;
  args.q = q_.rows(0, tokens());
  args.kv = layer.kv;
  args.num_heads = static_cast<int32_t>(shape_.num_heads);
  args.scale = 0.088f;
  args.out = attended_.rows(0, tokens());
  ops_->attention(args);
}

void BenchModel::gated_act(const Layer& layer) {
  ops_->gated_act({.x = gate_up_.rows(0, tokens()),
                   .activation = ops::Activation::kSilu,
                   .out = x_of(layer.down, acted_, acted8_).rows(0, tokens()),
                   .out_scale = scale_of(layer.down),
                   .next = &layer.down});
}

void BenchModel::quantise_attended(const Layer& layer) {
  ops_->quantise({.x = attended_.rows(0, tokens()),
                  .out = attended8_.rows(0, tokens()),
                  .out_scale = scale_.rows(0, tokens()),
                  .next = &layer.attn_out});
}

void BenchModel::logits() {
  const int64_t rows = step_.num_seqs;
  ops_->gather_rows({normed_, last_rows_, last_.rows(0, rows)});
  View x = last_.rows(0, rows);
  View scale;
  if (head_.input == ops::InputForm::kF8Rows) {
    scale = scale_.rows(0, rows);
    ops_->quantise({x, last8_.rows(0, rows), scale, &head_});
    x = last8_.rows(0, rows);
  }
  ops_->logits(
      {.x = x, .x_scale = scale, .head = &head_, .softcap = 0, .out = logits_.rows(0, rows)});
}

Work BenchModel::linear_work(const LinearWeight& weight, int64_t count, double out_bytes) const {
  const auto x_bytes = as_double(static_cast<int64_t>(dtype_bytes(input_dtype(weight))));
  return {as_double(weight.bytes) + as_double(count) * (x_bytes * as_double(weight.in) +
                                                        out_bytes * as_double(weight.out)),
          2.0 * as_double(count) * as_double(weight.in) * as_double(weight.out)};
}

std::vector<BenchModel::Op> BenchModel::ops_of_step() {
  const int64_t count = shape_.num_layers;
  const double layers = as_double(count);
  const double rows = as_double(tokens());
  const double q = as_double(q_width());
  const double kv = as_double(kv_width());
  const double x_bytes = is_fp8_ ? 1 : 2;
  const double kv_bytes =
      as_double(ops_->kv_format().row_bytes(shape_.head_dim)) / as_double(shape_.head_dim);
  const double length = as_double(step_.context + step_.q_len);
  const double seen = rows * (length - as_double(step_.q_len - 1) / 2);
  const auto each = [this](auto f) {
    return [this, f] {
      for (const Layer& layer : layers_) f(layer);
    };
  };
  const auto product = [&](const char* name, LinearWeight Layer::*weight, View* wide, View* narrow,
                           View* out) {
    Work work = linear_work(layers_[0].*weight, tokens(), 2);
    work.bytes *= layers;
    work.flops *= layers;
    return Op{name, count, work,
              each([=, this](const Layer& layer) { linear(layer.*weight, *wide, *narrow, *out); })};
  };
  std::vector<Op> ops;
  ops.push_back({"embed", 1, {rows * as_double(shape_.hidden) * 4, 0}, [this] {
                   ops_->embed({{}, &head_, ids_, 1.0f, x_.rows(0, tokens())});
                 }});
  const auto norms = [&](const char* name, ops::NormSpec Layer::*norm, bool is_in_step) {
    return Op{name,
              2 * count + 1,
              {(2 * layers + 1) * rows * as_double(shape_.hidden) * (6 + x_bytes), 0},
              [this, norm] {
                for (const Layer& layer : layers_) {
                  residual_norm(layer.*norm, layer.qkv);
                  residual_norm(layer.*norm, layer.gate_up);
                }
                residual_norm(layers_[0].*norm, head_);
              },
              is_in_step};
  };
  ops.push_back(norms("residual_norm", &Layer::norm, true));
  ops.push_back(norms("norm by UClip", &Layer::clip_norm, false));
  ops.push_back(product("linear qkv", &Layer::qkv, &normed_, &normed8_, &qkv_));
  const Work prep = {layers * rows * (2 * (2 * q + 2 * kv) + 2 * kv * kv_bytes), 0};
  ops.push_back({"qkv_prep", count, prep, each([this](const Layer& layer) {
                   qkv_prep(layer, layer.q_norm, layer.k_norm);
                 })});
  ops.push_back({"prep with UClip", count, prep, each([this](const Layer& layer) {
                   qkv_prep(layer, layer.clip_qk_norm, layer.clip_qk_norm);
                 }),
                 false});
  ops.push_back({"attention",
                 count,
                 {layers * (as_double(step_.num_seqs) * length * 2 * kv * kv_bytes + 4 * rows * q),
                  layers * 4 * seen * q},
                 [this] {
                   ops_->begin_attention(batch_);
                   for (const Layer& layer : layers_) attention(layer);
                 }});
  if (is_fp8_) {
    ops.push_back({"quantise", count, {layers * rows * q * 3, 0}, each([this](const Layer& layer) {
                     quantise_attended(layer);
                   })});
  }
  ops.push_back(product("linear out", &Layer::attn_out, &attended_, &attended8_, &normed_));
  ops.push_back(product("linear gate_up", &Layer::gate_up, &normed_, &normed8_, &gate_up_));
  ops.push_back({"gated_act",
                 count,
                 {layers * rows * as_double(shape_.mlp_width) * (4 + x_bytes), 0},
                 each([this](const Layer& layer) { gated_act(layer); })});
  ops.push_back(product("linear down", &Layer::down, &acted_, &acted8_, &normed_));
  ops.push_back({"logits", 1, linear_work(head_, step_.num_seqs, 4), [this] { logits(); }});
  return ops;
}

void BenchModel::enqueue_step() {
  ops_->embed({{}, &head_, ids_, 1.0f, x_.rows(0, tokens())});
  ops_->begin_attention(batch_);
  for (const Layer& layer : layers_) {
    residual_norm(layer.norm, layer.qkv);
    linear(layer.qkv, normed_, normed8_, qkv_);
    qkv_prep(layer, layer.q_norm, layer.k_norm);
    attention(layer);
    if (is_fp8_) quantise_attended(layer);
    linear(layer.attn_out, attended_, attended8_, normed_);
    residual_norm(layer.norm, layer.gate_up);
    linear(layer.gate_up, normed_, normed8_, gate_up_);
    gated_act(layer);
    linear(layer.down, acted_, acted8_, normed_);
  }
  residual_norm(layers_[0].norm, head_);
  logits();
}

int64_t BenchModel::weight_bytes() const {
  int64_t total = head_.bytes;
  for (const Layer& layer : layers_) {
    total += layer.qkv.bytes + layer.attn_out.bytes + layer.gate_up.bytes + layer.down.bytes;
  }
  return total;
}

Result<void> wait(ops::Ops& ops) {
  const auto event = ops.make_event();
  ops.record(*event);
  return event->wait();
}

// Seconds of one replay of the work that `enqueue` puts on the stream; the mean of several.
Result<double> seconds_of(ops::Ops& ops, const std::function<void()>& enqueue, int repeats) {
  enqueue();  // once outside a capture: kernels are loaded, room is made
  RUDDER_TRY_VOID(wait(ops));
  ops.graph_ops()->begin_capture();
  enqueue();
  RUDDER_TRY(const std::unique_ptr<ops::Graph> graph, ops.graph_ops()->end_capture());
  ops.graph_ops()->replay(*graph);
  RUDDER_TRY_VOID(wait(ops));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) ops.graph_ops()->replay(*graph);
  RUDDER_TRY_VOID(wait(ops));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / repeats;
}

Result<void> bench_step(BenchModel& model, const BenchStep& step, int repeats,
                        OpsBenchReport& report) {
  RUDDER_TRY_VOID(model.set_step(step));
  const double product_rate =
      model.multiplies_fp8() ? report.ceilings.fp8_flops : report.ceilings.bf16_flops;
  OpsBenchRow whole{step, "step", 1, 0, 0, 0, 0};
  for (const BenchModel::Op& op : model.ops_of_step()) {
    OpsBenchRow row{step, op.name, op.calls, 0, op.work.bytes, op.work.flops, 0};
    RUDDER_TRY(row.seconds, seconds_of(model.backend(), op.enqueue, repeats));
    const bool is_attention = row.op == "attention";
    row.floor_seconds =
        std::max(row.bytes / report.ceilings.read_bytes_per_second,
                 row.flops / (is_attention ? report.ceilings.bf16_flops : product_rate));
    report.rows.push_back(row);
    if (!op.is_in_step) continue;
    whole.bytes += row.bytes;
    whole.flops += row.flops;
    whole.floor_seconds += row.floor_seconds;
  }
  RUDDER_TRY(whole.seconds, seconds_of(
                                model.backend(), [&] { model.enqueue_step(); }, repeats));
  report.rows.push_back(whole);
  return {};
}

}  // namespace

Result<OpsBenchReport> bench_ops(const OpsBenchArgs& args) {
  OpsBenchReport report;
  RUDDER_TRY(report.ceilings, measure_ceilings(args.ops.cublaslt_path));
  RUDDER_TRY(std::unique_ptr<ops::Ops> ops, make_cuda_ops(args.ops));
  report.backend = ops->name();
  BenchModel model(args.shape, args.stored, std::move(ops));
  RUDDER_TRY_VOID(model.load(args.steps));
  report.weight_bytes = model.weight_bytes();
  int64_t num_measured = 0;
  for (const BenchStep& step : args.steps) {
    RUDDER_TRY_VOID(bench_step(model, step, args.repeats, report));
    args.told(++num_measured, std::ssize(args.steps));
  }
  return report;
}

}  // namespace rudder::cuda
