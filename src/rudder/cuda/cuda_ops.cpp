#include "rudder/cuda/open_cuda_ops.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/log.h"
#include "rudder/cuda/adapter_ops.h"
#include "rudder/cuda/attention_layers.h"
#include "rudder/cuda/check_bounds.h"
#include "rudder/cuda/cublaslt_api.h"
#include "rudder/cuda/device_info.h"
#include "rudder/cuda/device_memory.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/draft_ops.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/expert_ops.h"
#include "rudder/cuda/feature_ops.h"
#include "rudder/cuda/kernels/products/linear_epilogue.h"
#include "rudder/cuda/linear.h"
#include "rudder/cuda/path_params.h"
#include "rudder/cuda/pattern_params.h"
#include "rudder/cuda/peer_comm.h"
#include "rudder/cuda/peer_message.h"
#include "rudder/cuda/qkv_params.h"
#include "rudder/cuda/rank_exchange.h"
#include "rudder/cuda/readers.h"
#include "rudder/cuda/row_params.h"
#include "rudder/cuda/sample_params.h"
#include "rudder/cuda/state_ops.h"
#include "rudder/cuda/step_params.h"
#include "rudder/cuda/stream.h"
#include "rudder/cuda/stream_marks.h"
#include "rudder/cuda/stream_ops.h"
#include "rudder/cuda/tap_params.h"
#include "rudder/cuda/unscaled_product.h"
#include "rudder/cuda/uploader.h"

namespace rudder::cuda {
namespace {

using tensor::DType;
using tensor::View;

class CudaOps final : public ops::Ops,
                      public ops::GraphOps,
                      public ops::TreeOps,
                      public ops::PatternOps,
                      public ops::RankOps {
 public:
  // `comm`: null, or what the rank knows of its group.
  static Result<std::unique_ptr<ops::Ops>> make(const CudaOpsSettings& settings,
                                                std::shared_ptr<PeerComm> comm, bool is_stage);
  ~CudaOps() override {
    use_device(settings_.device);
    if (comm_ != nullptr) comm_->fail({ErrorCode::kCancelled, "a rank of the group has ended", ""});
    cudaStreamSynchronize(stream_->handle());  // before the memory goes
    cudaStreamSynchronize(aside_->handle());
    const std::string hits = expert_ops_.hits_text();
    if (!hits.empty()) log_info("experts that steps hit: {}", hits);
  }
  CudaOps(const CudaOps&) = delete;
  CudaOps& operator=(const CudaOps&) = delete;

  std::string name() const override {
    return fmt::format("cuda-sm{}{}", info_.major * 10 + info_.minor,
                       settings_.linear_dtype == DType::kF8E4M3 ? "-fp8" : "-bf16");
  }
  DType act_dtype() const override { return DType::kBF16; }
  ops::KvFormat kv_format() const override { return settings_.kv; }
  Result<ops::WeightFormat> stored_format(const ops::WeightFormat& file) const override {
    return linear_->stored_format(file);
  }
  Result<ops::WeightFormat> format_for(const ops::WeightFormat& file,
                                       ops::ProductUse use) const override {
    return linear_->format_for(file, use);
  }
  ops::GraphOps* graph_ops() override { return this; }
  // Over scales of tokens the one kernel that takes any row takes no tree.
  ops::TreeOps* tree_ops() override {
    return settings_.batch_invariant && settings_.kv.scales_tokens ? nullptr : this;
  }
  ops::DraftOps* draft_ops() override { return &facets_.drafts; }
  ops::AdapterOps* adapter_ops() override { return &adapter_ops_; }
  ops::ExpertOps* expert_ops() override { return &expert_ops_; }
  ops::StateOps* state_ops() override { return &facets_.states; }
  ops::StreamOps* stream_ops() override { return facets_.streams.get(); }
  ops::FeatureOps* feature_ops() override { return &facets_.features; }
  ops::PatternOps* pattern_ops() override { return this; }
  ops::RankOps* rank_ops() override { return this; }
  ops::ReaderOps* reader_ops() override { return &facets_.readers; }
  ops::Comm* comm() override { return comm_.get(); }
  uint64_t progress() const override { return marks_ == nullptr ? 0 : marks_->num_passed(); }
  int64_t available_memory() const override { return free_memory(settings_.device); }

  Result<View> allocate(DType dtype, tensor::Shape shape) override {
    use_device(settings_.device);
    return memory_.allocate(dtype, shape);
  }
  Result<View> upload(const View& host, DType dtype) override {
    use_device(settings_.device);
    RUDDER_TRY(const View view, memory_.allocate_raw(dtype, host.shape));
    RUDDER_TRY_VOID(upload_cast(uploader_, host, view, stream()));
    return view;
  }
  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    use_device(settings_.device);
    return linear_->make_weight(parts, uploader_);
  }
  Result<View> allocate_staging(int64_t bytes) override {
    use_device(settings_.device);
    return memory_.allocate_pinned(bytes);
  }
  Result<void> prepare(const ops::StepBounds& bounds) override;
  int32_t attention_lookback() const override { return attention_.lookback(); }

  void copy_in(const View& device, const View& staging) override {
    transfer("copy_in", device, staging, cudaMemcpyHostToDevice);
  }
  void copy_out(const View& staging, const View& device) override {
    transfer("copy_out", staging, device, cudaMemcpyDeviceToHost);
  }
  void copy_out_aside(const View& staging, const View& device, ops::Event& done) override {
    RUDDER_CHECK(!is_capturing_ && staging.bytes() == device.bytes(), "copy_out_aside of {} bytes",
                 device.bytes());
    launch("copy_out_aside", {&device},
           [&] { return aside_->copy_out(staging.data, device.data, device.bytes(), stream()); });
    static_cast<CudaEvent&>(done).record(aside_->handle());
  }

  std::unique_ptr<ops::Event> make_event() override {
    use_device(settings_.device);
    return std::make_unique<CudaEvent>(status_, comm_.get());
  }
  void record(ops::Event& event) override {
    scale_product();
    static_cast<CudaEvent&>(event).record(stream());
  }
  Result<std::unique_ptr<ops::Message>> make_message(int64_t bytes) override {
    return PeerMessage::make(settings_.device, bytes);
  }
  void post(ops::Message& message) override {
    launch("post", {}, [&] { return static_cast<PeerMessage&>(message).post(stream()); });
    mark_progress();
  }
  void await(ops::Message& message) override {
    launch("await", {}, [&] { return static_cast<PeerMessage&>(message).await(stream()); });
  }
  void copy(const View& to, const View& from) override {
    transfer("copy", to, from, cudaMemcpyDefault);  // the driver knows whose memory it is
  }
  Result<void> status() override {
    use_device(settings_.device);
    if (!status_.failed()) status_.check(cudaPeekAtLastError(), "status");
    RUDDER_TRY_VOID(status_.status());
    return comm_ == nullptr ? Result<void>() : comm_->status();
  }

  void begin_capture() override {
    scale_product();
    is_capturing_ = true;
    if (exchange_) exchange_->set_capturing(true);
    status_.check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
                  "begin_capture");
  }
  Result<std::unique_ptr<ops::Graph>> end_capture() override {
    scale_product();
    is_capturing_ = false;
    if (exchange_) exchange_->set_capturing(false);
    Result<std::unique_ptr<CudaGraph>> graph = cuda::end_capture(stream());
    RUDDER_TRY_VOID(status_.status());  // an op in between says more than the capture that it ended
    if (!graph) return tl::unexpected(graph.error());
    return std::move(*graph);
  }
  void replay(ops::Graph& graph) override {
    launch("replay", {},
           [&] { return cudaGraphLaunch(static_cast<CudaGraph&>(graph).handle(), stream()); });
  }

  void begin_step(const ops::BeginStepArgs& args) override {
    launch("begin_step", {&args.ids, &args.blocks},
           [&] { return launch_begin_step(begin_step_params(args), stream()); });
  }
  void advance_step(const ops::AdvanceStepArgs& args) override {
    launch("advance_step", {&args.ids, &args.sample_rows},
           [&] { return launch_advance_step(advance_step_params(args), stream()); });
  }
  void embed(const ops::EmbedArgs& args) override;
  void residual_norm(const ops::ResidualNormArgs& args) override;
  void linear(const ops::LinearArgs& args) override {
    if (unscaled_.is(args.out) && args.x.data != args.out.data) unscaled_ = {};  // nobody read it
    run_op("linear", {&args.x, &args.out}, [&] {
      unscaled_ = {args.out, linear_->multiply(args.x, args.x_scale, *args.weight, args.out, 0.0f,
                                               true, "linear")};
    });
  }
  void qkv_prep(const ops::QkvPrepArgs& args) override {
    QkvPrepParams params = qkv_params(args);
    params.qkv_scales = unscaled_.take(args.qkv);
    if (args.norms_span_ranks && exchange_ && RankExchange::needs_squares(params)) {
      launch("gather_squares", {&args.qkv}, [&] { return exchange_->gather_squares(params); });
    }
    launch("qkv_prep", {&args.qkv, &args.kv.storage},
           [&] { return launch_qkv_prep(params, stream()); });
  }
  void begin_attention(const ops::AttentionBatch& batch) override { attention_.begin_step(batch); }
  void attention(const ops::AttentionArgs& args) override {
    run_op("attention", {&args.q, &args.kv.storage}, [&] {
      if (args.q.shape[0] == 0 || status_.failed()) return;
      if (const Result<void> done = attention_.attend(args); !done) status_.keep(done.error());
      mark_progress();
    });
  }
  void keep_paths(const ops::KeepPathsArgs& args) override {
    for (const KeepPathsParams& params : keep_paths_params(args)) {
      launch("keep_paths", {&args.sampled}, [&] { return launch_keep_paths(params, stream()); });
    }
  }
  void patterns(const ops::PatternArgs& args) override {
    launch("patterns", {&args.attention.q, &args.attention.kv.storage}, [&] {
      return launch_patterns(pattern_params(args, attention_.batch(), info_.num_sms), stream());
    });
  }
  void end_patterns(const ops::EndPatternsArgs& args) override {
    launch("end_patterns", {&args.table->ring}, [&] {
      const PatternBatch batch = pattern_batch(args, attention_.batch(), info_.num_sms);
      return launch_end_patterns(batch, args.first_layer, args.end_layer, stream());
    });
    if (exchange_) launch("end_patterns", {&args.table->ring}, [&] { return exchange_->meet(); });
  }
  void gated_act(const ops::GatedActArgs& args) override;
  void quantise(const ops::QuantiseArgs& args) override {
    launch("quantise", {&args.x}, [&] { return launch_quantise(quantise_params(args), stream()); });
  }
  void gather_rows(const ops::GatherRowsArgs& args) override {
    launch("gather_rows", {&args.x, &args.out},
           [&] { return launch_gather_rows(gather_rows_params(args), stream()); });
  }
  void logits(const ops::LogitsArgs& args) override {
    run_op("logits", {&args.x, &args.out}, [&] { linear_->logits(args); });
  }
  void gather_logits(const ops::GatherLogitsArgs& args) override;
  void tap_shares(const ops::TapSharesArgs& args) override;
  void sum_ranks(const View& x) override {
    RUDDER_CHECK(exchange_, "{} is no rank of a group", name());
    const ProductScales scales =
        RankExchange::takes_scales(x) ? unscaled_.take(x) : ProductScales{};
    launch("sum_ranks", {&x}, [&] { return exchange_->sum(x, scales); });
  }
  void sample(const ops::SampleArgs& args) override {
    launch("sample", {&args.logits}, [&] { return launch_sample(sample_params(args), stream()); });
  }
  void score(const ops::ScoreArgs& args) override {
    launch("score", {&args.logits}, [&] { return launch_score(score_params(args), stream()); });
  }

 private:
  CudaOps(const CudaOpsSettings& settings, DeviceInfo info, std::unique_ptr<Stream> stream,
          std::unique_ptr<SideStream> aside, std::shared_ptr<PeerComm> comm)
      : settings_(settings),
        comm_(std::move(comm)),
        info_(std::move(info)),
        stream_(std::move(stream)),
        aside_(std::move(aside)),
        status_(std::to_string(settings_.device)),
        memory_(stream_->handle()),
        uploader_(stream_->handle()),
        attention_(
            memory_, stream_->handle(), info_.num_sms,
            {settings.batch_invariant, settings.plain_attention, settings.least_sparse_pages}) {
    if (comm_ != nullptr) exchange_.emplace(comm_, stream_->handle());
  }

  cudaStream_t stream() const { return stream_->handle(); }

  // An op: what it begins and ends with.
  template <typename Body>
  void run_op(const char* op, std::initializer_list<const View*> views, Body&& body) {
    scale_product();
    status_.note(op);
    body();
    if (!settings_.synchronous || is_capturing_ || status_.failed()) return;
    status_.check(cudaStreamSynchronize(stream()), op, [&] { return shapes(views); });
  }
  // Runs `launcher` unless the device has failed; keeps what went wrong with the op and its shapes.
  template <typename Launcher>
  void launch(const char* op, std::initializer_list<const View*> views, Launcher&& launcher) {
    run_op(op, views, [&] {
      if (!status_.failed()) status_.check(launcher(), op, [&] { return shapes(views); });
    });
  }

  // Of a stage, once a layer and at the end of a step: nothing between two marks takes long.
  void mark_progress() {
    if (marks_ == nullptr || is_capturing_ || status_.failed()) return;
    status_.check(marks_->mark(stream()), "mark");
  }

  // Applies the scales that the last product has left and the op at hand does not take.
  void scale_product() {
    use_device(settings_.device);
    const UnscaledProduct product = std::exchange(unscaled_, {});
    if (product.scales.row == nullptr) return;
    ScaleRowsColsParams params;
    params.y = product.y.data;
    params.x_scale = product.scales.row;
    params.w_scale = product.scales.column;
    params.bias = product.scales.bias;
    params.rows = product.y.shape[0];
    params.cols = product.y.shape[1];
    launch("linear", {&product.y}, [&] { return launch_scale_rows_cols(params, stream()); });
  }

  void transfer(const char* op, const View& to, const View& from, cudaMemcpyKind kind) {
    RUDDER_CHECK(to.bytes() == from.bytes(), "{} of {} bytes to {}", op, from.bytes(), to.bytes());
    if (from.bytes() == 0) return;
    launch(op, {&from},
           [&] { return cudaMemcpyAsync(to.data, from.data, from.bytes(), kind, stream()); });
  }

  const CudaOpsSettings settings_;
  const std::shared_ptr<PeerComm> comm_;  // null: alone
  const DeviceInfo info_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<SideStream> aside_;
  DeviceStatus status_;
  DeviceMemory memory_;
  Uploader uploader_;
  AttentionLayers attention_;
  std::unique_ptr<Linear> linear_;
  UnscaledProduct unscaled_;
  bool is_capturing_ = false;
  bool rounds_ = false;  // what ops keep between their parts, as where they are cut
  std::optional<RankExchange> exchange_;  // none: alone
  const DraftOps::Run enqueue_ = [this](const char* op, std::initializer_list<const View*> views,
                                        const DraftOps::Launcher& launcher) {
    launch(op, views, [&] { return launcher(stream()); });
  };
  ExpertOps expert_ops_{
      *this,    memory_,  uploader_,
      stream(), enqueue_, {info_.num_sms, settings_.batch_invariant, settings_.low_format}};
  AdapterOps adapter_ops_{
      [this](const char* op, const ops::AdaptArgs& args, const AdapterOps::Launcher& launcher) {
        launch(op, {&args.x}, [&] { return launcher(stream(), {}); });
      },
      [this](const char* op, const ops::AdaptArgs& args, const AdapterOps::Launcher& launcher) {
        const UnscaledProduct product =
            unscaled_.is(args.out) ? std::exchange(unscaled_, {}) : UnscaledProduct{};
        launch(op, {&args.x, &args.out}, [&] { return launcher(stream(), product.scales); });
        if (product.scales.row != nullptr) unscaled_ = product;  // who reads it applies them
      }};
  std::unique_ptr<StreamMarks> marks_;  // of a stage
  // That need nothing of each other.
  struct Facets {
    DraftOps drafts;
    StateOps states;
    std::unique_ptr<ops::StreamOps> streams;
    FeatureOps features;
    Readers readers;
  };
  Facets facets_{DraftOps(enqueue_),
                 StateOps(memory_, enqueue_, {info_.num_sms, !settings_.batch_invariant}),
                 make_stream_ops(enqueue_, rounds_), FeatureOps(enqueue_, info_.num_sms),
                 Readers(settings_.device, [this] {
                   CudaOpsSettings settings = settings_;
                   settings.policy = linear_->policy();  // and it measures nothing
                   return CudaOps::make(settings, nullptr, false);
                 })};
};

Result<std::unique_ptr<ops::Ops>> CudaOps::make(const CudaOpsSettings& settings,
                                                std::shared_ptr<PeerComm> comm, bool is_stage) {
  RUDDER_TRY_VOID(check_stored({settings.linear_dtype, settings.head_dtype}, settings.kv));
  RUDDER_TRY(DeviceInfo info, open_device(settings.device));
  RUDDER_TRY(const CublasLtApi* const api, load_cublaslt(settings.cublaslt_path));
  RUDDER_TRY(std::unique_ptr<Stream> stream, Stream::make());
  RUDDER_TRY(std::unique_ptr<SideStream> aside, SideStream::make());
  const PolicyIdentity identity{info.name, info.driver, static_cast<int64_t>(api->version()),
                                kOwnKernelsVersion};
  log_info("{}, {} multiprocessors, driver {}, cuBLASLt {}", info.name, info.num_sms, info.driver,
           identity.library);
  std::unique_ptr<CudaOps> ops(
      new CudaOps(settings, std::move(info), std::move(stream), std::move(aside), std::move(comm)));
  RUDDER_TRY(ops->linear_,
             Linear::make(*api,
                          {settings.linear_dtype, settings.head_dtype, settings.low_format,
                           settings.policy_path, settings.tune, settings.batch_invariant,
                           ops->comm_ != nullptr, ops->info_.num_sms},
                          identity, ops->memory_, ops->stream(), ops->status_, settings.policy));
  if (is_stage) {
    RUDDER_TRY(ops->marks_, StreamMarks::make());
  }
  return ops;
}

Result<void> CudaOps::prepare(const ops::StepBounds& bounds) {
  use_device(settings_.device);
  uploader_.release();
  RUDDER_TRY_VOID(check_sizes(bounds, linear_->multiplies_fp8()));
  rounds_ = rounds_ || (settings_.batch_invariant && bounds.cuts_ops);
  if (exchange_) RUDDER_TRY_VOID(exchange_->prepare(memory_, bounds.max_tokens));
  RUDDER_TRY_VOID(expert_ops_.prepare(bounds));
  RUDDER_TRY_VOID(facets_.states.prepare(bounds));
  RUDDER_TRY_VOID(attention_.prepare(bounds.attention, bounds.max_seqs, bounds.max_tokens));
  RUDDER_TRY_VOID(
      linear_->prepare(bounds.linears, bounds.head, bounds.max_tokens, bounds.max_rows));
  log_debug("kernels of products:\n{}", linear_->to_table());
  RUDDER_CUDA_TRY(cudaStreamSynchronize(stream()), "prepare", "");
  return {};
}

void CudaOps::embed(const ops::EmbedArgs& args) {
  const View& table = args.tied != nullptr ? cuda_weight(*args.tied).weight : args.table;
  launch("embed", {&table, &args.out}, [&] {
    if (table.dtype == DType::kU8) {
      return launch_embed_low_bits(embed_params(args, cuda_weight(*args.tied)), stream());
    }
    if (table.dtype != DType::kF8E4M3) return launch_embed(embed_params(args, table), stream());
    const View& scale = cuda_weight(*args.tied).scale;
    return launch_embed_fp8(embed_params(args, table, scale), stream());
  });
}

// Of a rank the columns of all; of a reader `parts`, which may lie on other GPUs.
void CudaOps::gather_logits(const ops::GatherLogitsArgs& args) {
  if (exchange_) {
    return launch("gather_logits", {&args.part, &args.out},
                  [&] { return exchange_->gather_logits(args); });
  }
  launch("gather_logits", {&args.out},
         [&] { return put_side_by_side(args.parts, args.out, stream()); });
}

void CudaOps::tap_shares(const ops::TapSharesArgs& args) {
  RUDDER_CHECK(exchange_, "{} is no rank of a group", name());
  const int64_t num_tokens = args.x.shape[0];
  const int64_t at_once = args.rows.shape[0];
  for (int64_t first = 0; first < num_tokens; first += at_once) {
    const int64_t count = std::min(at_once, num_tokens - first);
    const View part = args.x.rows(first, count);
    const View whole = args.rows.rows(0, count);
    const View out = args.out.rows(first, count);
    const ops::TapBatch batch = args.taps.batch->tokens(first, count);
    const ops::Taps taps{args.taps.table, &batch, args.taps.point};
    launch("tap_shares", {&part}, [&] { return exchange_->gather_columns(part, whole); });
    residual_norm({.x = whole, .x_taps = {taps}});
    if (args.encodes) facets_.features.encode({.x = whole, .taps = taps});
    launch("tap_shares", {&out}, [&] { return exchange_->keep_columns(whole, out); });
  }
}

void CudaOps::residual_norm(const ops::ResidualNormArgs& args) {
  ResidualNormParams params = residual_norm_params(args);
  params.rounds = rounds_;
  if (args.sums_ranks && exchange_) {
    if (!is_tapped(args) && args.out_act.empty() && exchange_->has_sum_and_norm(params)) {
      const ProductScales scales = unscaled_.take(args.delta);
      return launch("residual_norm", {&args.x, &args.out},
                    [&] { return exchange_->sum_and_norm(params, scales); });
    }
    sum_ranks(args.delta);
  }
  if (!args.out_scale.empty() && !rounds_) params.delta_scales = unscaled_.take(args.delta);
  launch("residual_norm", {&args.x, &args.out}, [&] {
    if (!is_tapped(args)) return launch_residual_norm(params, stream());
    return launch_tapped_residual_norm(params, tap_params(args), stream());
  });
}

void CudaOps::gated_act(const ops::GatedActArgs& args) {
  GatedActParams params = gated_act_params(args);
  params.rounds = rounds_;
  if (!rounds_ && unscaled_.scales.bias == nullptr && takes_scales(params)) {
    params.x_scales = unscaled_.take(args.x);
  }
  launch("gated_act", {&args.x, &args.out}, [&] {
    if (!is_tapped(args)) return launch_gated_act(params, stream());
    return launch_tapped_gated_act(params, tap_params(args), stream());
  });
}

}  // namespace

Result<std::unique_ptr<ops::Ops>> open_cuda_ops(const CudaOpsSettings& settings,
                                                std::shared_ptr<PeerComm> comm, bool is_stage) {
  return CudaOps::make(settings, std::move(comm), is_stage);
}

}  // namespace rudder::cuda
