#include "rudder/cuda/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "rudder/base/check.h"
#include "rudder/base/log.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/products/linear_epilogue.h"
#include "rudder/cuda/kernels/products/low_product.h"
#include "rudder/cuda/kernels/rows/convert.h"
#include "rudder/cuda/low_weight.h"
#include "rudder/cuda/shape_kernels.h"
#include "rudder/cuda/tuner.h"

namespace rudder::cuda {
namespace {

using ops::LinearWeight;
using tensor::DType;
using tensor::View;

bool is_low(const ops::WeightFormat& file) {
  return !file.is_wide() && file != ops::kFp8Rows;
}

std::string shapes_text(const View& x, const LinearWeight& weight, const View& y) {
  return fmt::format("x {} {}, weight [{}, {}], y {} {}", x.shape.to_string(),
                     tensor::dtype_name(x.dtype), weight.out, weight.in, y.shape.to_string(),
                     tensor::dtype_name(y.dtype));
}

// `dtype`: that of wide weights as they are loaded.
Result<ops::WeightFormat> format_as(const ops::WeightFormat& file, DType dtype) {
  if (file == ops::kFp8Rows) return file;
  if (!file.is_wide()) return low_stored_format(file);
  return dtype == DType::kF8E4M3 ? ops::kFp8Rows : ops::wide_format(dtype);
}

}  // namespace

Result<View> upload_biases(std::span<const ops::LinearPart> parts, DeviceMemory& memory,
                           Uploader& uploader, cudaStream_t stream) {
  if (parts[0].bias.empty()) return View{};
  int64_t out = 0;
  for (const ops::LinearPart& part : parts) out += part.out();
  RUDDER_TRY(const View biases, memory.allocate_raw(DType::kBF16, {out}));
  int64_t row = 0;
  for (const ops::LinearPart& part : parts) {
    RUDDER_TRY_VOID(upload_cast(uploader, part.bias, biases.rows(row, part.out()), stream));
    row += part.out();
  }
  return biases;
}

bool fetches_ahead(const LinearWeight* next, int64_t tokens) {
  const ShapeKernels* const kernels = next == nullptr ? nullptr : cuda_weight(*next).kernels;
  return kernels != nullptr && tokens > 0 && kernels->fetches_ahead(tokens);
}

Linear::Linear(const CublasLtApi& api, const LinearSettings& settings, DeviceMemory& memory,
               cudaStream_t stream, DeviceStatus& status, std::shared_ptr<KernelPolicy> policy)
    : api_(api),
      settings_(settings),
      memory_(memory),
      stream_(stream),
      status_(status),
      policy_(std::move(policy)) {}

Linear::~Linear() {
  kernels_.clear();  // before the handle that they use
  if (handle_ != nullptr) api_.destroy(handle_);
}

Result<std::unique_ptr<Linear>> Linear::make(const CublasLtApi& api, const LinearSettings& settings,
                                             const PolicyIdentity& identity, DeviceMemory& memory,
                                             cudaStream_t stream, DeviceStatus& status,
                                             std::shared_ptr<KernelPolicy> policy) {
  LinearSettings own = settings;
  const bool is_reader = policy != nullptr;
  // Kernels with a fixed order are measured among themselves.
  if (own.batch_invariant && !own.policy_path.empty()) own.policy_path += ".invariant";
  if (is_reader) {
    own.tune = false;
  } else {
    policy = std::make_shared<KernelPolicy>(read_policy(own.policy_path, identity));
  }
  std::unique_ptr<Linear> linear(new Linear(api, own, memory, stream, status, std::move(policy)));
  linear->is_reader_ = is_reader;
  const cublasStatus_t made = api.create(&linear->handle_);
  if (made != CUBLAS_STATUS_SUCCESS) {
    return fail(ErrorCode::kInternal,
                fmt::format("cuBLASLt cannot start: {}", api.status_string(made)), "device");
  }
  RUDDER_TRY(const View workspace, memory.allocate_raw(DType::kU8, {kWorkspaceBytes}));
  linear->workspace_ = {workspace.data, workspace.bytes()};
  return linear;
}

Result<ops::WeightFormat> Linear::stored_format(const ops::WeightFormat& file) const {
  if (file.is_wide() && !settings_.low.is_wide()) return low_stored_format(settings_.low);
  return format_as(file, settings_.dtype);
}

Result<ops::WeightFormat> Linear::format_for(const ops::WeightFormat& file,
                                             ops::ProductUse use) const {
  if (use == ops::ProductUse::kHead) return format_as(file, settings_.head_dtype);
  if (use == ops::ProductUse::kExperts && file == ops::kMxfp4) return file;  // expert_ops.h
  return use == ops::ProductUse::kRouter ? format_as(file, DType::kBF16) : stored_format(file);
}

Result<LinearWeight> Linear::make_weight(std::span<const ops::LinearPart> parts,
                                         Uploader& uploader) {
  RUDDER_CHECK(!parts.empty());
  LinearWeight out;
  out.in = parts[0].in();
  for (const ops::LinearPart& part : parts) {
    RUDDER_TRY_VOID(stored_format(part.format));
    RUDDER_CHECK(part.in() == out.in && part.bias.empty() == parts[0].bias.empty());
    RUDDER_CHECK(is_low(part.format) == is_low(parts[0].format) &&
                 part.format.is_wide() == parts[0].format.is_wide());
    RUDDER_CHECK(part.bias.empty() || castable(part.bias.dtype));
    out.out += part.out();
  }
  auto packed = std::make_shared<CudaWeight>();
  RUDDER_TRY(out.format, store_parts(parts, out.out, uploader, *packed));
  RUDDER_TRY(packed->bias, upload_biases(parts, memory_, uploader, stream_));
  out.input = out.format == ops::kFp8Rows ? ops::InputForm::kF8Rows : ops::InputForm::kAct;
  for (const View* view : {&packed->weight, &packed->scale, &packed->bias}) {
    if (!view->empty()) out.bytes += static_cast<int64_t>(view->bytes());
  }
  out.packed = packed;
  is_loading_ = true;
  return out;
}

Result<ops::WeightFormat> Linear::store_parts(std::span<const ops::LinearPart> parts, int64_t out,
                                              Uploader& uploader, CudaWeight& weight) {
  const int64_t in = parts[0].in();
  const bool is_rounded = parts[0].use == ops::ProductUse::kHidden && parts[0].format.is_wide() &&
                          !settings_.low.is_wide();
  if (is_low(parts[0].format) || is_rounded) {
    if (!low_product_takes(in)) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("[{} -> {}]: products of low-bit weights need multiples of 8", in, out),
          "quantization");
    }
    return make_low_weight(parts, 1, settings_.low, memory_, uploader, stream_, weight);
  }
  RUDDER_TRY(const ops::WeightFormat format, format_for(parts[0].format, parts[0].use));
  const bool is_fp8 = format == ops::kFp8Rows;
  const DType dtype = is_fp8 ? DType::kF8E4M3 : DType::kBF16;
  const std::string refusal =
      product_refusal({out, in, dtype, DType::kBF16, false, ScaleMode::kUnit});
  if (!refusal.empty()) return fail(ErrorCode::kUnsupported, refusal, "quantization");
  RUDDER_TRY(weight.weight, memory_.allocate_raw(dtype, {out, in}));
  if (is_fp8) {
    multiplies_fp8_ = true;
    RUDDER_TRY(weight.scale, memory_.allocate_raw(DType::kF32, {out}));
  }
  int64_t row = 0;
  for (const ops::LinearPart& part : parts) {
    RUDDER_TRY_VOID(store_part(part, row, weight, uploader));
    row += part.out();
  }
  return format;
}

Result<void> Linear::store_part(const ops::LinearPart& part, int64_t first_row, CudaWeight& weight,
                                Uploader& uploader) {
  const int64_t rows = part.out();
  const View to = weight.weight.rows(first_row, rows);
  if (!part.format.is_wide()) {
    const View scale = weight.scale.rows(first_row, rows);
    RUDDER_TRY_VOID(
        uploader.copy(part.scales.data, scale.data, static_cast<int64_t>(scale.bytes())));
    return uploader.copy(part.codes.data, to.data, static_cast<int64_t>(to.bytes()));
  }
  if (weight.scale.empty()) return upload_cast(uploader, part.codes, to, stream_);
  const int64_t in = part.in();
  const int64_t row_bytes = in * static_cast<int64_t>(tensor::dtype_bytes(part.codes.dtype));
  return uploader.for_each_piece(part.codes.data, rows * row_bytes, row_bytes,
                                 [&](const void* piece, int64_t offset, int64_t bytes) {
                                   const int64_t row = offset / row_bytes;
                                   QuantiseWeightParams params;
                                   params.from = piece;
                                   params.element = element_of(part.codes.dtype);
                                   params.rows = bytes / row_bytes;
                                   params.width = in;
                                   params.to = static_cast<char*>(to.data) + row * in;
                                   params.scale =
                                       static_cast<float*>(weight.scale.data) + first_row + row;
                                   return launch_quantise_weight(params, stream_);
                                 });
}

Result<ShapeKernels*> Linear::kernels_of(const LinearWeight& weight, DType out_dtype) {
  const CudaWeight& stored = cuda_weight(weight);
  const PolicyKey key{weight.out,           weight.in, input_dtype(weight), out_dtype,
                      !stored.bias.empty(), 0,         low_id(stored.low)};
  if (key.low != 0) RUDDER_TRY_VOID(make_low_room());
  std::unique_ptr<ShapeKernels>& shape_kernels = kernels_[key];
  if (shape_kernels == nullptr) {
    Result<std::unique_ptr<ShapeKernels>> made = ShapeKernels::make(
        {&api_, handle_, stream_, workspace_, settings_.num_sms,
         static_cast<float*>(low_parts_.data), static_cast<uint32_t*>(low_flags_.data)},
        key, settings_.batch_invariant);
    if (made && settings_.batch_invariant && !(*made)->has_fixed_order()) {
      const Result<std::vector<PolicyEntry>> candidates = (*made)->candidates_for_all(1);
      if (candidates) {
        (*made)->settle_for_all(candidates->front());
      } else {
        made = tl::unexpected(candidates.error());
      }
    }
    if (!made) {
      kernels_.erase(key);
      return tl::unexpected(made.error());
    }
    shape_kernels = std::move(*made);
  }
  return shape_kernels.get();
}

Result<void> Linear::make_low_room() {
  if (!low_flags_.empty()) return {};
  RUDDER_TRY(low_parts_, memory_.allocate_raw(DType::kU8, {low_parts_bytes(settings_.num_sms)}));
  RUDDER_TRY(low_flags_, memory_.allocate(DType::kI32, {low_num_flags(settings_.num_sms)}));
  return {};
}

bool Linear::settle_as_known(ShapeKernels& shape_kernels, int64_t bucket) const {
  PolicyKey key = shape_kernels.key();
  key.bucket = bucket;
  const PolicyEntry* known = policy_->find(key);
  return known != nullptr && shape_kernels.settle(bucket, *known);
}

Result<void> Linear::add_job(const LinearWeight& weight, DType out_dtype, int64_t max_tokens,
                             std::vector<Job>& jobs) {
  RUDDER_TRY(ShapeKernels* const shape_kernels, kernels_of(weight, out_dtype));
  if (!is_reader_) cuda_weight(weight).kernels = shape_kernels;
  auto job = std::find_if(jobs.begin(), jobs.end(),
                          [&](Job& j) { return j.shape_kernels == shape_kernels; });
  if (job == jobs.end()) job = jobs.insert(jobs.end(), {shape_kernels, max_tokens, {}});
  job->weights.push_back(weight);
  return {};
}

Result<std::unique_ptr<Tuner>> Linear::make_tuner(std::span<const Job> jobs) const {
  int64_t x_bytes = 0;
  int64_t y_bytes = 0;
  int64_t tokens = 1;
  const auto width = [](DType dtype) { return static_cast<int64_t>(tensor::dtype_bytes(dtype)); };
  for (const Job& job : jobs) {
    const PolicyKey& key = job.shape_kernels->key();
    const int64_t most = bucket_of(job.max_tokens);
    x_bytes = std::max(x_bytes, most * key.in * width(key.dtype));
    y_bytes = std::max(y_bytes, most * key.out * width(key.out_dtype));
    tokens = std::max(tokens, most);
  }
  return Tuner::make(stream_, x_bytes, y_bytes, tokens);
}

Result<void> Linear::prepare(std::span<const LinearWeight> linears, const LinearWeight* head,
                             int64_t max_tokens, int64_t max_rows) {
  finish_loading();
  std::vector<Job> all;
  for (const LinearWeight& weight : linears) {
    RUDDER_TRY_VOID(add_job(weight, DType::kBF16, max_tokens, all));
  }
  if (head != nullptr) RUDDER_TRY_VOID(add_job(*head, DType::kF32, max_rows, all));
  if (settings_.batch_invariant) RUDDER_TRY_VOID(settle_invariant(all));
  RUDDER_TRY_VOID(measure(all));
  return settings_.loads_all ? load_all(all) : Result<void>();
}

// A kernel that ought to be batch-invariant is held to it, on the weights that it will multiply.
Result<void> Linear::settle_invariant(std::span<const Job> jobs) {
  constexpr int kMaxAlgorithms = 8;
  RUDDER_TRY(const std::unique_ptr<Tuner> tuner, make_tuner(jobs));
  for (const Job& job : jobs) {
    if (job.shape_kernels->has_fixed_order()) continue;
    RUDDER_TRY(const std::vector<PolicyEntry> candidates,
               job.shape_kernels->candidates_for_all(kMaxAlgorithms));
    bool is_settled = false;
    for (size_t i = 0; i < candidates.size() && !is_settled; ++i) {
      RUDDER_TRY(is_settled, tuner->rows_are_independent(*job.shape_kernels, candidates[i],
                                                         job.max_tokens, job.weights.front()));
      if (is_settled) job.shape_kernels->settle_for_all(candidates[i]);
    }
    if (is_settled) continue;
    const PolicyKey& key = job.shape_kernels->key();
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("none of the library's {} kernels for weights [{}, {}] of {} gives a row "
                    "the same bits in every batch",
                    candidates.size(), key.out, key.in, tensor::dtype_name(key.dtype)),
        "batch-invariant");
  }
  return {};
}

Result<void> Linear::measure(std::span<const Job> jobs) {
  Result<std::unique_ptr<Tuner>> tuner(nullptr);
  size_t measured = 0;
  for (const Job& job : jobs) {
    if (job.shape_kernels->settled_for_all()) continue;
    for (int64_t bucket = 1; bucket <= bucket_of(job.max_tokens); bucket = bucket_of(bucket + 1)) {
      if (settle_as_known(*job.shape_kernels, bucket)) continue;
      if (settings_.tune && tuner && *tuner == nullptr) {
        tuner = make_tuner(jobs);
        if (!tuner) log_warn("kernels are not measured: {}", tuner.error().message);
      }
      if (!settings_.tune || !tuner) {
        RUDDER_TRY_VOID(job.shape_kernels->settle_by_guess(bucket));
        continue;
      }
      RUDDER_TRY(const PolicyEntry best,
                 (*tuner)->fastest(*job.shape_kernels, bucket, job.weights));
      RUDDER_CHECK(job.shape_kernels->settle(bucket, best));
      PolicyKey key = job.shape_kernels->key();
      key.bucket = bucket;
      policy_->set(key, best);
      ++measured;
    }
  }
  return keep_policy(measured);
}

Result<void> Linear::load_all(std::span<const Job> jobs) {
  RUDDER_TRY(const std::unique_ptr<Tuner> tuner, make_tuner(jobs));
  for (const Job& job : jobs) {
    for (int64_t bucket = 1; bucket <= bucket_of(job.max_tokens); bucket = bucket_of(bucket + 1)) {
      RUDDER_TRY_VOID(tuner->run_once(*job.shape_kernels, bucket, job.weights.front()));
    }
  }
  return {};
}

Result<void> Linear::keep_policy(size_t measured) const {
  if (measured == 0) return {};
  log_info("measured {} products on this GPU", measured);
  if (settings_.policy_path.empty()) return {};
  const Result<void> written = write_policy(settings_.policy_path, *policy_);
  // The measurements hold for this run all the same.
  if (!written) log_warn("{}", written.error().to_string());
  return {};
}

void Linear::finish_loading() {
  is_loading_ = false;
  status_.check(cudaStreamSynchronize(stream_), "make_linear");
}

ProductScales Linear::multiply(const View& x, const View& x_scale, const LinearWeight& weight,
                               const View& y, float softcap, bool reader_scales, const char* op) {
  if (y.shape[0] == 0 || status_.failed()) return {};
  if (is_loading_) finish_loading();
  RUDDER_CHECK(x.dtype == input_dtype(weight), "{} of {}", op, shapes_text(x, weight, y));
  const CudaWeight& stored = cuda_weight(weight);
  const auto* x_scales = static_cast<const float*>(x_scale.data);
  const auto* w_scales = static_cast<const float*>(stored.scale.data);
  const Result<ShapeKernels*> shape_kernels = kernels_of(weight, y.dtype);
  const int64_t bucket = bucket_of(y.shape[0]);
  if (shape_kernels && !(*shape_kernels)->settled_for_all() &&
      (*shape_kernels)->settled(bucket) == nullptr) {
    settle_as_known(**shape_kernels, bucket);
  }
  const Result<bool> left = shape_kernels ? (*shape_kernels)
                                                ->run({.x = x.data,
                                                       .x_scale = x_scales,
                                                       .weight = stored.weight.data,
                                                       .w_scale = w_scales,
                                                       .bias = stored.bias.data,
                                                       .y = y.data,
                                                       .tokens = y.shape[0],
                                                       .softcap = softcap,
                                                       .reader_scales = reader_scales})
                                          : Result<bool>(tl::unexpected(shape_kernels.error()));
  if (left) return *left ? ProductScales{x_scales, w_scales, stored.bias.data} : ProductScales{};
  Error error = left.error();
  error.message += fmt::format("; {} of {}", op, shapes_text(x, weight, y));
  status_.keep(std::move(error));
  return {};
}

void Linear::logits(const ops::LogitsArgs& args) {
  const bool scales = args.scale != 1.0f;
  multiply(args.x, args.x_scale, *args.head, args.out, scales ? 0.0f : args.softcap, false,
           "logits");
  if (!scales || status_.failed()) return;
  ScaleRowsColsParams params;
  params.y = args.out.data;
  params.y_is_f32 = true;
  params.rows = args.out.shape[0];
  params.cols = args.out.shape[1];
  params.factor = args.scale;
  params.softcap = args.softcap;
  status_.check(launch_scale_rows_cols(params, stream_), "logits",
                [&] { return shapes_text(args.x, *args.head, args.out); });
}

std::string Linear::to_table() const {
  constexpr std::string_view kNames[] = {"gemv", "cublaslt", "cublaslt, scales",
                                         "ring", "low bits", "tile"};
  std::string out;
  for (const auto& [key, shape_kernels] : kernels_) {
    if (shape_kernels->settled_for_all()) {
      out += fmt::format("{:>6} x {:<6} {:<7} any tokens, one kernel\n", key.out, key.in,
                         tensor::dtype_name(key.dtype));
      continue;
    }
    for (int64_t bucket = 1; bucket <= int64_t{1} << 20; bucket = bucket_of(bucket + 1)) {
      const PolicyEntry* entry = shape_kernels->settled(bucket);
      if (entry == nullptr) continue;
      out += fmt::format("{:>6} x {:<6} {:<7} {:>5} tokens  {:<16} {:8.1f} us\n", key.out, key.in,
                         tensor::dtype_name(key.dtype), bucket,
                         kNames[static_cast<size_t>(entry->kernel)], entry->microseconds);
    }
  }
  return out;
}

}  // namespace rudder::cuda
