#include "rudder/cpu/fast_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "rudder/base/check.h"
#include "rudder/base/thread_pool.h"
#include "rudder/cpu/adapter_adder.h"
#include "rudder/cpu/attention_patterns.h"
#include "rudder/cpu/device_memory.h"
#include "rudder/cpu/encode.h"
#include "rudder/cpu/host_ops.h"
#include "rudder/cpu/keep_paths.h"
#include "rudder/cpu/kernels.h"
#include "rudder/cpu/make_weight.h"
#include "rudder/cpu/panel_attention.h"
#include "rudder/cpu/plain_attention.h"
#include "rudder/cpu/read_features.h"
#include "rudder/cpu/recurrences.h"
#include "rudder/cpu/sample.h"
#include "rudder/cpu/tap_program.h"

namespace rudder::cpu {
namespace {

using ops::LinearWeight;
using tensor::DType;
using tensor::View;

// A row-by-row op wakes another thread only for this many elements of work.
constexpr int64_t kForkElements = int64_t{1} << 15;

const FastWeight& fast_weight_of(const LinearWeight& weight) {
  return static_cast<const FastWeight&>(*weight.packed);
}

class FastOps final : public HostOps, public ops::ReaderOps {
 public:
  FastOps(Isa isa, DType dtype, ops::KvFormat kv, int num_threads, std::shared_ptr<HostComm> comm)
      : HostOps(std::move(comm)),
        isa_(isa),
        dtype_(dtype),
        kv_(kv),
        kernels_(kernels_for(isa)),
        pool_(num_threads) {}

  std::string name() const override {
    return fmt::format("cpu-{}{}", isa_name(isa_), dtype_ == DType::kF32 ? "-f32" : "");
  }
  DType act_dtype() const override { return DType::kF32; }
  ops::KvFormat kv_format() const override { return kv_; }
  Result<ops::WeightFormat> stored_format(const ops::WeightFormat& file) const override {
    return stored_format_of(file, dtype_);
  }
  ops::ReaderOps* reader_ops() override { return this; }
  ops::AdapterOps* adapter_ops() override { return &adapter_adder_; }
  ops::StateOps* state_ops() override { return &recurrences_; }
  int64_t reader_bytes() const override { return 0; }
  Result<std::unique_ptr<ops::CopyLane>> make_lane() const override {
    return std::make_unique<ops::HostLane>();
  }
  std::unique_ptr<ops::Ops> make_reader() const override {
    return std::make_unique<FastOps>(isa_, dtype_, kv_, 1, nullptr);
  }

  Result<LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    return make_weight(parts, dtype_, pool_);
  }

  void embed(const ops::EmbedArgs& args) override {
    const int64_t hidden = args.out.shape[1];
    for_rows(args.out.shape[0], hidden, [&](int64_t t) {
      const int64_t id = args.ids.as<int32_t>()[t];
      float* out = args.out.as<float>() + t * hidden;
      if (args.tied != nullptr) {
        fast_weight_of(*args.tied).read_row(id, out);
      } else {
        const View row = args.table.rows(id, 1);
        RUDDER_CHECK(convert_values(row.data, row.dtype, out, DType::kF32, hidden).has_value());
      }
      if (args.scale == 1.0f) return;
      for (int64_t i = 0; i < hidden; ++i) out[i] *= args.scale;
    });
  }

  void residual_norm(const ops::ResidualNormArgs& asked) override {
    const ops::ResidualNormArgs args = with_ranks_summed(asked, &pool_);
    RUDDER_CHECK(args.out_scale.empty() && args.out_act.empty(),
                 "no product here takes quantised rows");
    const int64_t hidden = args.x.shape[1];
    for_rows(args.x.shape[0], hidden, [&](int64_t t) {
      float* x = args.x.as<float>() + t * hidden;
      float* out = args.out.empty() ? nullptr : args.out.as<float>() + t * hidden;
      if (!args.delta.empty()) {
        float* delta = args.delta.as<float>() + t * hidden;
        if (!args.delta_norm.empty()) norm(delta, args.delta_norm, hidden, delta);
        if (args.delta_scale != 1.0f) kernels_.scale(delta, args.delta_scale, hidden);
        run_taps(args.delta_taps, t, delta, hidden);
        kernels_.add(x, delta, hidden);
      }
      if (args.sum_scale != 1.0f) kernels_.scale(x, args.sum_scale, hidden);
      for (const ops::Taps& taps : args.x_taps) run_taps(taps, t, x, hidden);
      if (out == nullptr) return;
      if (args.norm.empty()) {
        std::copy_n(x, hidden, out);
      } else {
        norm(x, args.norm, hidden, out);
      }
      run_taps(args.out_taps, t, out, hidden);
    });
  }

  void linear(const ops::LinearArgs& args) override { multiply(*args.weight, args.x, args.out); }

  void qkv_prep(const ops::QkvPrepArgs& asked) override {
    const ops::QkvPrepArgs args = with_spanning_norms_applied(asked);
    const int64_t width = args.qkv.shape[1];
    const bool panels = fits_panels(args.kv);
    for_rows(args.qkv.shape[0], width, [&](int64_t t) {
      if (panels) {
        panel_qkv_prep(kernels_, args, t, t + 1);
      } else {
        plain_qkv_prep(args, t, t + 1);
      }
    });
  }

  void attention(const ops::AttentionArgs& args) override {
    if (fits_panels(args.kv)) {
      panel_attention(kernels_, pool_, dtype_, args, batch());
    } else {
      plain_attention(args, batch(), &pool_);
    }
  }

  void keep_paths(const ops::KeepPathsArgs& args) override {
    cpu::keep_paths(args, [](const ops::KvLayer& kv, int64_t from, int64_t to) {
      if (fits_panels(kv)) {
        panel_move(kv, from, to);
      } else {
        plain_move(kv, from, to);
      }
    });
  }

  void patterns(const ops::PatternArgs& args) override {
    const bool panels = fits_panels(args.attention.kv);
    write_patterns(args, batch(), panels ? panel_key : plain_key, &pool_);
  }

  void gated_act(const ops::GatedActArgs& args) override {
    RUDDER_CHECK(args.out_scale.empty(), "no product here takes quantised rows");
    const int64_t width = args.out.shape[1];
    for_rows(args.out.shape[0], width, [&](int64_t t) {
      const float* gate = args.x.as<float>() + t * 2 * width;
      float* out = args.out.as<float>() + t * width;
      kernels_.gated_act(gate, gate + width, width, args.activation, out);
      run_taps(args.taps, t, out, width);
    });
  }

  void logits(const ops::LogitsArgs& args) override {
    const int64_t vocab = args.out.shape[1];
    multiply(*args.head, args.x, args.out);
    if (args.softcap == 0.0f && args.scale == 1.0f) return;
    for_rows(args.out.shape[0], vocab, [&](int64_t r) {
      float* row = args.out.as<float>() + r * vocab;
      if (args.scale != 1.0f) kernels_.scale(row, args.scale, vocab);
      if (args.softcap != 0.0f) kernels_.soft_cap(row, vocab, args.softcap);
    });
  }

  uint64_t progress() const override { return pool_.progress(); }
  void tap_shares(const ops::TapSharesArgs& args) override { run_share_taps(args, &pool_); }
  void encode(const ops::EncodeArgs& args) override { encode_rows(args, &pool_); }
  void read_features(const ops::ReadFeaturesArgs& args) override {
    cpu::read_features(args, &pool_);
  }
  void sample(const ops::SampleArgs& args) override { sample_rows(args, &pool_); }
  void score(const ops::ScoreArgs& args) override { score_rows(args, &pool_); }

 private:
  // Calls f(row) for each row, on all threads when there is enough work.
  template <typename F>
  void for_rows(int64_t rows, int64_t width, F f) {
    if (rows * width < kForkElements) {
      for (int64_t r = 0; r < rows; ++r) f(r);
      return;
    }
    const int64_t claim = std::max<int64_t>(1, kForkElements / 4 / width);
    pool_.parallel_for((rows + claim - 1) / claim, [&](int64_t i) {
      for (int64_t r = i * claim; r < std::min(rows, (i + 1) * claim); ++r) f(r);
    });
  }

  void multiply(const LinearWeight& weight, const View& x, const View& out) {
    note(fast_weight_of(weight).multiply(kernels_, pool_, scratch_, x.as<float>(), x.shape[0],
                                         out.as<float>(), weight.out));
  }

  void norm(const float* x, const ops::NormSpec& spec, int64_t width, float* out) const {
    norm_row(kernels_, x, spec, width, out);
  }

  Isa isa_;
  DType dtype_;
  ops::KvFormat kv_;
  const Kernels& kernels_;
  ThreadPool pool_;
  ProductScratch scratch_;
  AdapterAdder adapter_adder_{&pool_};
  Recurrences recurrences_{&pool_, [](const LinearWeight& weight, int64_t index, float* to) {
                             fast_weight_of(weight).read_row(index, to);
                           }};
};

}  // namespace

Result<std::unique_ptr<ops::Ops>> make_cpu_ops(const CpuOpsSettings& settings) {
  if (settings.dtype != DType::kBF16 && settings.dtype != DType::kF32) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the CPU backend computes in BF16 or F32, not {}",
                            tensor::dtype_name(settings.dtype)),
                "dtype");
  }
  const std::vector<Isa>& available = available_isas();
  const Isa isa = settings.isa.value_or(available.back());
  if (std::find(available.begin(), available.end(), isa) == available.end()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("this machine does not run {}; its best is {}", isa_name(isa),
                            isa_name(available.back())),
                "cpu_isa");
  }
  const ops::KvFormat kv = settings.kv.value_or(ops::KvFormat{settings.dtype});
  if (!kv.has_codes() && kv != ops::KvFormat{settings.dtype}) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the CPU backend computes in {} and has no KV cache of {}",
                            tensor::dtype_name(settings.dtype), ops::kv_format_name(kv)),
                "kv-cache-dtype");
  }
  return std::make_unique<FastOps>(isa, settings.dtype, kv, settings.num_threads, settings.comm);
}

}  // namespace rudder::cpu
