#include "rudder/cuda/expert_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rudder/base/check.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/experts/combine_experts.h"
#include "rudder/cuda/kernels/experts/expert_product.h"
#include "rudder/cuda/kernels/experts/open_experts.h"
#include "rudder/cuda/kernels/experts/route.h"
#include "rudder/cuda/linear.h"
#include "rudder/cuda/load_scratch.h"
#include "rudder/cuda/low_weight.h"
#include "rudder/cuda/tap_params.h"

namespace rudder::cuda {
namespace {

using tensor::DType;
using tensor::View;

constexpr const char* kExpertsField = "experts";
static_assert(ops::kMxfp4.group == kCodeGroup);

cudaError_t no_memory(cudaStream_t /*stream*/) {
  return cudaErrorMemoryAllocation;
}

int64_t experts_of(const ops::LinearWeight& weight) {
  const CudaWeight& stored = cuda_weight(weight);
  const int64_t first = stored.weight.shape[0];
  return stored.low.code == LowCode::kNone ? first / weight.out : first;
}

ExpertForm expert_form_of(const ops::LinearWeight& weight) {
  if (weight.format == ops::kMxfp4) return ExpertForm::kE2m1;
  if (cuda_weight(weight).low.code != LowCode::kNone) return ExpertForm::kLow;
  return weight.input == ops::InputForm::kF8Rows ? ExpertForm::kE4m3 : ExpertForm::kBf16;
}

tl::unexpected<Error> no_products_of(const ops::WeightFormat& one, const ops::WeightFormat& other) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("the CUDA backend has no products of experts of {} beside {}",
                          ops::format_name(one), ops::format_name(other)),
              "quantization");
}

}  // namespace

Result<ops::LinearWeight> ExpertOps::make_experts(std::span<const ops::LinearPart> parts,
                                                  int64_t experts) {
  RUDDER_CHECK(experts > 0 && parts.size() % static_cast<size_t>(experts) == 0,
               "{} parts of {} experts", parts.size(), experts);
  if (experts > kMostExperts) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the CUDA backend takes mixtures of up to {} experts, not {}",
                            kMostExperts, experts),
                kExpertsField);
  }
  const Stored stored = stored_as(parts[0].format);
  for (const ops::LinearPart& part : parts) {
    RUDDER_TRY_VOID(backend_.format_for(part.format, ops::ProductUse::kExperts));
    if (stored_as(part.format) != stored) return no_products_of(parts[0].format, part.format);
  }
  if (stored == Stored::kCodes) return make_codes(parts, experts);
  if (stored == Stored::kLow) return make_low(parts, experts);
  RUDDER_TRY(ops::LinearWeight weight, backend_.make_linear(parts));
  if (!expert_product_takes(expert_form_of(weight), weight.in, weight.out, false)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the CUDA backend takes rows of experts of whole 16 bytes, not of {} "
                            "elements",
                            weight.in),
                kExpertsField);
  }
  weight.out /= experts;
  return weight;
}

ExpertOps::Stored ExpertOps::stored_as(const ops::WeightFormat& file) const {
  if (file == ops::kMxfp4) return Stored::kCodes;
  if (file == ops::kFp8Rows) return Stored::kWide;
  return file.is_wide() && settings_.low.is_wide() ? Stored::kWide : Stored::kLow;
}

Result<ops::LinearWeight> ExpertOps::make_low(std::span<const ops::LinearPart> parts,
                                              int64_t experts) {
  const size_t of_expert = parts.size() / static_cast<size_t>(experts);
  ops::LinearWeight weight;
  weight.in = parts[0].in();
  for (const ops::LinearPart& part : parts.first(of_expert)) weight.out += part.out();
  if (!expert_product_takes(ExpertForm::kLow, weight.in, weight.out, false)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the CUDA backend takes experts of few bits of whole 16 rows and of up "
                            "to {} inputs, by 8, not of [{} -> {}]",
                            kMostLowIn, weight.in, weight.out),
                kExpertsField);
  }
  auto packed = std::make_shared<CudaWeight>();
  packed->interleaves = of_expert == 2 && parts[0].out() == parts[1].out();
  RUDDER_TRY(weight.format,
             make_low_weight(parts, experts, settings_.low, memory_, uploader_, stream_, *packed));
  RUDDER_TRY(packed->bias, upload_biases(parts, memory_, uploader_, stream_));
  for (const View* view : {&packed->weight, &packed->scale, &packed->bias}) {
    if (!view->empty()) weight.bytes += static_cast<int64_t>(view->bytes());
  }
  weight.packed = packed;
  return weight;
}

Result<ops::LinearWeight> ExpertOps::make_codes(std::span<const ops::LinearPart> parts,
                                                int64_t experts) {
  const size_t of_expert = parts.size() / static_cast<size_t>(experts);
  ops::LinearWeight weight;
  weight.in = parts[0].in();
  weight.format = ops::kMxfp4;
  int64_t most_rows = 0;
  for (const ops::LinearPart& part : parts.first(of_expert)) {
    weight.out += part.out();
    most_rows = std::max(most_rows, part.out());
    if (part.out() % kCodeRows == 0) continue;
    return fail(ErrorCode::kUnsupported,
                fmt::format("the CUDA backend takes experts of {} of whole {} rows, not of {}",
                            ops::format_name(ops::kMxfp4), kCodeRows, part.out()),
                kExpertsField);
  }
  auto packed = std::make_shared<CudaWeight>();
  const int64_t row_bytes = code_row_bytes(weight.in);
  RUDDER_TRY(packed->weight, memory_.allocate_raw(DType::kU8, {experts * weight.out, row_bytes}));
  LoadScratch scratch(stream_);
  PackExpertCodesParams pack;
  RUDDER_TRY(uint8_t* const codes, scratch.allocate<uint8_t>(most_rows * weight.in / 2));
  RUDDER_TRY(uint8_t* const scales, scratch.allocate<uint8_t>(most_rows * weight.in / kCodeGroup));
  pack.codes = codes;
  pack.scales = scales;
  pack.in = weight.in;
  pack.out = weight.out;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ops::LinearPart& part = parts[i];
    const auto* const of_groups = part.scales.as<uint8_t>();
    const auto num_groups = static_cast<int64_t>(part.scales.bytes());
    if (std::any_of(of_groups, of_groups + num_groups,
                    [](uint8_t scale) { return scale > kMostCodeScale; })) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("the CUDA backend takes scales of experts up to 2^{}", kMostCodeScale - 127),
          "quantization");
    }
    RUDDER_TRY_VOID(
        uploader_.copy(part.codes.data, codes, static_cast<int64_t>(part.codes.bytes())));
    RUDDER_TRY_VOID(uploader_.copy(of_groups, scales, num_groups));
    if (i % of_expert == 0) pack.first_row = 0;
    pack.rows = part.out();
    const auto expert = static_cast<int64_t>(i / of_expert);
    pack.to = static_cast<uint8_t*>(packed->weight.data) + expert * weight.out * row_bytes;
    RUDDER_CUDA_TRY(launch_pack_expert_codes(pack, stream_), "make_experts", "");
    pack.first_row += part.out();
  }
  RUDDER_TRY(packed->bias, upload_biases(parts, memory_, uploader_, stream_));
  weight.bytes = static_cast<int64_t>(packed->weight.bytes() + packed->bias.bytes());
  weight.packed = packed;
  return weight;
}

Result<void> ExpertOps::prepare(const ops::StepBounds& bounds) {
  if (bounds.experts.empty()) return {};
  if (bounds.max_chosen > kMostChosen) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the CUDA backend takes {} experts of a token at most, not {}",
                            kMostChosen, bounds.max_chosen),
                kExpertsField);
  }
  int64_t most = 0;
  for (const ops::LinearWeight& weight : bounds.experts) {
    most = std::max(most, experts_of(weight));
  }
  return reserve(int64_t{bounds.max_tokens} * bounds.max_chosen, most);
}

Result<void> ExpertOps::reserve(int64_t pairs, int64_t experts) {
  if (pairs <= room_pairs_ && experts <= room_experts_) return {};
  pairs = std::max(pairs, room_pairs_);
  experts = std::max(experts, room_experts_);
  constexpr int64_t kFewest = 8;  // of a run
  const int64_t runs = most_runs(pairs, experts, kFewest);
  RUDDER_TRY(const View all_runs,
             memory_.allocate_raw(DType::kU8, {runs * int64_t{sizeof(ExpertRun)}}));
  RUDDER_TRY(const View numbers, memory_.allocate_raw(DType::kI32, {1 + 2 * pairs}));
  RUDDER_TRY(const View counts, memory_.allocate(DType::kI32, {experts + 1}));
  RUDDER_TRY(const View hits, memory_.allocate(DType::kI32, {4 * kHitSizes}));
  room_.runs = static_cast<ExpertRun*>(all_runs.data);
  room_.num_runs = pointer<int32_t>(numbers);
  room_.pairs = room_.num_runs + 1;
  room_.offsets = room_.pairs + pairs;
  room_.counts = pointer<int32_t>(counts);
  room_.hits = static_cast<int64_t*>(hits.data);
  room_pairs_ = pairs;
  room_experts_ = experts;
  return {};
}

ExpertList ExpertOps::list_of(int64_t tokens, int64_t chosen, int64_t experts) const {
  ExpertList list = room_;
  list.run_pairs = run_pairs(tokens, chosen, experts);
  return list;
}

RouteParams ExpertOps::route_params(const ops::RouteArgs& args) const {
  RouteParams params;
  params.correction = pointer<float>(args.correction);
  params.kind = args.kind;
  params.renormalises = args.renormalises;
  params.scale = args.scale;
  params.expert_scales = pointer<float>(args.expert_scales);
  params.groups = args.groups;
  params.kept_groups = args.kept_groups;
  params.tokens = args.logits.shape[0];
  params.experts = static_cast<int32_t>(args.logits.shape[1]);
  params.k = static_cast<int32_t>(args.chosen.shape[1]);
  params.chosen = pointer<int32_t>(args.chosen);
  params.weights = pointer<float>(args.weights);
  params.list = list_of(params.tokens, params.k, params.experts);
  return params;
}

void ExpertOps::run_router(const ops::RouteArgs& args, RouteParams& params, bool chooses) {
  params.logits = args.logits.data;
  if (args.router != nullptr) {
    backend_.linear({.x = args.x, .x_scale = {}, .weight = args.router, .out = args.logits});
  }
  if (!chooses) return;
  run_("route", {&args.logits, &args.chosen},
       [&](cudaStream_t stream) { return launch_route(params, stream); });
}

void ExpertOps::route(const ops::RouteArgs& args) {
  if (!reserve(args.chosen.shape.numel(), args.logits.shape[1])) {
    return run_("route", {&args.chosen}, no_memory);
  }
  RouteParams params = route_params(args);
  run_router(args, params, true);
  listed_ = {args.chosen.data, params.tokens, params.experts, false};
}

// The logits are those that route() would choose by, so that tokens without programs have its bits.
void ExpertOps::route_tapped(const ops::RouteTappedArgs& args) {
  const ops::RouteArgs& route = args.route;
  if (!reserve(route.chosen.shape.numel(), route.logits.shape[1])) {
    return run_("route_tapped", {&route.chosen}, no_memory);
  }
  RouteParams params = route_params(route);
  run_router(route, params, false);
  run_("route_tapped", {&route.logits, &route.chosen},
       [&](cudaStream_t stream) { return launch_route_tapped(params, tap_params(args), stream); });
  listed_ = {route.chosen.data, params.tokens, params.experts, false};
}

void ExpertOps::expert_linear(const ops::ExpertLinearArgs& args) {
  const ops::LinearWeight& weight = *args.weight;
  const CudaWeight& stored = cuda_weight(weight);
  const int64_t tokens = args.chosen.shape[0];
  const int64_t chosen = args.chosen.shape[1];
  const int64_t experts = experts_of(weight);
  RUDDER_CHECK(args.x.dtype == input_dtype(weight) && args.x.shape[1] == weight.in,
               "expert_linear of {}", shapes({&args.x, &args.out}));
  RUDDER_CHECK(args.first == 0, "experts from {} on", args.first);
  if (tokens == 0) return;
  if (!reserve(tokens * chosen, experts)) return run_("expert_linear", {&args.chosen}, no_memory);
  ExpertProductParams params;
  params.list = list_of(tokens, chosen, experts);
  const bool is_listed =
      listed_.chosen == args.chosen.data && listed_.tokens == tokens && listed_.experts == experts;
  if (!is_listed) {
    RouteParams route;
    route.tokens = tokens;
    route.experts = static_cast<int32_t>(experts);
    route.k = static_cast<int32_t>(chosen);
    route.chosen = pointer<int32_t>(args.chosen);
    route.list = params.list;
    listed_ = {};
    run_("expert_linear", {&args.chosen},
         [&](cudaStream_t stream) { return launch_route(route, stream); });
  }
  params.weight = stored.weight.data;
  params.w_scale = pointer<float>(stored.scale);
  params.bias = stored.bias.data;
  params.x = args.x.data;
  params.x_scale = pointer<float>(args.x_scale);
  params.pairs_each = args.x.shape[0] == tokens * chosen ? 1 : static_cast<int32_t>(chosen);
  params.experts = experts;
  params.out = weight.out;
  params.in = weight.in;
  params.form = expert_form_of(weight);
  params.low = stored.low;
  params.interleaves = stored.interleaves;
  params.in_one_order = settings_.batch_invariant;
  params.is_gated = args.activation.has_value();
  params.activation = args.activation.value_or(ops::Activation::kSilu);
  params.most_runs = most_runs(tokens * chosen, experts, params.list.run_pairs);
  params.list_is_old = is_listed && listed_.is_old;
  params.y = args.out.data;
  run_("expert_linear", {&args.x, &args.out}, [&](cudaStream_t stream) {
    return launch_expert_product(params, settings_.num_sms, stream);
  });
  listed_.is_old = true;
}

void ExpertOps::combine_experts(const ops::CombineExpertsArgs& args) {
  CombineExpertsParams params;
  params.x = args.x.data;
  params.weights = pointer<float>(args.weights);
  params.shared = args.shared.data;
  params.shared_gate = args.shared_gate.data;
  params.tokens = args.out.shape[0];
  params.width = args.out.shape[1];
  params.k = static_cast<int32_t>(args.weights.shape[1]);
  params.out = args.out.data;
  run_("combine_experts", {&args.x, &args.out},
       [&](cudaStream_t stream) { return launch_combine_experts(params, stream); });
}

namespace {

OpenWeight open_weight(const ops::LinearWeight& weight) {
  const CudaWeight& stored = cuda_weight(weight);
  return {.form = expert_form_of(weight),
          .weight = stored.weight.data,
          .w_scale = pointer<float>(stored.scale),
          .bias = stored.bias.data,
          .out = weight.out,
          .in = weight.in};
}

// Whether both products of the expert that every token has run with those of the chosen ones.
bool opens_shared(const ops::OpenExpertsArgs& args) {
  const OpenWeight first = open_weight(*args.shared.weight);
  const OpenWeight next = open_weight(*args.shared.next);
  return open_takes(first) && open_takes(next) &&
         first.form == expert_form_of(*args.first.weight) &&
         next.form == expert_form_of(*args.next);
}

}  // namespace

bool ExpertOps::open_experts(const ops::OpenExpertsArgs& args) {
  const ops::ExpertLinearArgs& first = args.first;
  const bool has_shared = args.shared.weight != nullptr;
  if (settings_.batch_invariant || first.chosen.shape[0] != 1 ||
      !open_takes(open_weight(*first.weight)) || (has_shared && !opens_shared(args)) ||
      !close_takes(open_weight(*args.next), has_shared ? args.shared.next->in : 0)) {
    return false;
  }
  if (!reserve(first.chosen.shape.numel(), experts_of(*first.weight))) return false;
  OpenExpertsParams params;
  if (args.route.logits.empty()) {
    params.route.tokens = first.chosen.shape[0];
    params.route.experts = static_cast<int32_t>(experts_of(*first.weight));
    params.route.k = static_cast<int32_t>(first.chosen.shape[1]);
    params.route.chosen = pointer<int32_t>(first.chosen);
    params.route.list = list_of(params.route.tokens, params.route.k, params.route.experts);
  } else {
    params.route = route_params(args.route);
    run_router(args.route, params.route, false);
  }
  params.product = open_weight(*first.weight);
  params.activation = *first.activation;
  params.x = first.x.data;
  params.x_scale = pointer<float>(first.x_scale);
  params.y = first.out.data;
  if (has_shared) {
    params.shared = open_weight(*args.shared.weight);
    params.shared_activation = args.shared.activation;
    params.shared_y = args.shared.out.data;
  }
  params.num_sms = settings_.num_sms;
  run_("open_experts", {&first.x, &first.out},
       [&](cudaStream_t stream) { return launch_open_experts(params, stream); });
  listed_ = {};
  return true;
}

bool ExpertOps::close_experts(const ops::CloseExpertsArgs& args) {
  const ops::ExpertLinearArgs& second = args.second;
  const bool has_shared = args.shared.weight != nullptr;
  CloseExpertsParams params;
  params.product = open_weight(*second.weight);
  params.k = static_cast<int32_t>(second.chosen.shape[1]);
  if (settings_.batch_invariant || second.chosen.shape[0] != 1 ||
      !close_takes(params.product, has_shared ? args.shared.weight->in : 0)) {
    return false;
  }
  params.chosen = pointer<int32_t>(second.chosen);
  params.weights = pointer<float>(args.sum.weights);
  params.x = second.x.data;
  params.shared = args.sum.shared.data;
  params.shared_gate = args.sum.shared_gate.data;
  params.y = args.sum.out.data;
  if (has_shared) {
    params.shared_weight = open_weight(*args.shared.weight);
    params.shared_x = args.shared.x.data;
    if (args.shared.gate != nullptr) {
      params.gate_weight = cuda_weight(*args.shared.gate).weight.data;
      params.gate_x = args.shared.gate_x.data;
      params.gate_in = args.shared.gate->in;
    }
  }
  params.num_sms = settings_.num_sms;
  run_("close_experts", {&second.x, &args.sum.out},
       [&](cudaStream_t stream) { return launch_close_experts(params, stream); });
  return true;
}

std::string ExpertOps::hits_text() const {
  std::array<int64_t, 2 * kHitSizes> hits = {};
  if (room_.hits == nullptr) return {};
  if (cudaMemcpy(hits.data(), room_.hits, sizeof(hits), cudaMemcpyDeviceToHost) != cudaSuccess) {
    return {};
  }
  std::string out;
  for (size_t size = 0; size < kHitSizes; ++size) {
    const int64_t lists = hits[2 * size];
    if (lists == 0) continue;
    out += fmt::format("{}{:.1f} of {} in {} routings of up to {} tokens", out.empty() ? "" : ", ",
                       static_cast<double>(hits[2 * size + 1]) / static_cast<double>(lists),
                       room_experts_, lists, int64_t{1} << size);
  }
  return out;
}

}  // namespace rudder::cuda
