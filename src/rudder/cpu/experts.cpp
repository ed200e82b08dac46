#include "rudder/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/cpu/tap_program.h"

namespace rudder::cpu {
namespace {

using tensor::DType;
using tensor::View;

struct ExpertWeights final : ops::PackedWeight {
  std::vector<ops::LinearWeight> of_expert;
};

// The `count` largest of `values`, largest first; of equal ones the first. Those that `takes`
// refuses are left out.
template <typename Takes>
void largest(const std::vector<float>& values, int64_t count, Takes takes,
             std::vector<int32_t>& out) {
  out.clear();
  for (int32_t e = 0; e < static_cast<int32_t>(values.size()); ++e) {
    if (takes(e)) out.push_back(e);
  }
  std::stable_sort(out.begin(), out.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  out.resize(static_cast<size_t>(count));
}

void softmax(float* values, size_t count) {
  const float most = *std::max_element(values, values + count);
  float total = 0;
  for (size_t i = 0; i < count; ++i) total += values[i] = std::exp(values[i] - most);
  for (size_t i = 0; i < count; ++i) values[i] /= total;
}

// Which groups take part, by the sum of the two largest of each.
std::vector<bool> kept_groups(const std::vector<float>& scores, int32_t groups, int32_t kept) {
  const size_t size = scores.size() / static_cast<size_t>(groups);
  std::vector<float> of_group;
  for (size_t begin = 0; begin < scores.size(); begin += size) {
    std::vector<float> run(scores.begin() + static_cast<std::ptrdiff_t>(begin),
                           scores.begin() + static_cast<std::ptrdiff_t>(begin + size));
    const auto two = std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(size));
    std::partial_sort(run.begin(), run.begin() + two, run.end(), std::greater<>());
    of_group.push_back(std::accumulate(run.begin(), run.begin() + two, 0.0f));
  }
  std::vector<int32_t> order;
  largest(
      of_group, kept, [](int32_t) { return true; }, order);
  std::vector<bool> out(of_group.size(), false);
  for (const int32_t group : order) out[static_cast<size_t>(group)] = true;
  return out;
}

// One token's choice. Formulas: ops::RouterKind.
class Router {
 public:
  explicit Router(const ops::RouteTappedArgs& args)
      : args_(args.route), logits_taps_(args.logits), chosen_taps_(args.chosen) {}

  void run(int64_t t) {
    const int64_t count = args_.logits.shape[1];
    const auto k = static_cast<size_t>(args_.chosen.shape[1]);
    float* const logits = args_.logits.as<float>() + t * count;
    run_taps(logits_taps_, t, logits, count);
    weights_.assign(logits, logits + count);
    if (args_.kind == ops::RouterKind::kSoftmaxThenTop) {
      softmax(weights_.data(), weights_.size());
    } else if (args_.kind == ops::RouterKind::kSigmoid) {
      for (float& value : weights_) value = 1.0f / (1.0f + std::exp(-value));
    }
    scores_ = weights_;
    for (size_t e = 0; e < scores_.size() && !args_.correction.empty(); ++e) {
      scores_[e] += args_.correction.as<float>()[e];
    }
    run_choices(logits_taps_, t, logits, scores_);
    choose(static_cast<int64_t>(k));
    if (!chosen_taps_.empty()) {
      named_.assign(order_.begin(), order_.end());
      run_taps(chosen_taps_, t, named_.data(), static_cast<int64_t>(k));
    }
    float* const out = args_.weights.as<float>() + t * static_cast<int64_t>(k);
    for (size_t j = 0; j < k; ++j) {
      args_.chosen.as<int32_t>()[static_cast<size_t>(t) * k + j] = order_[j];
      out[j] = weights_[static_cast<size_t>(order_[j])];
    }
    if (args_.kind == ops::RouterKind::kTopThenSoftmax) softmax(out, k);
    if (args_.renormalises) {
      const float total = std::accumulate(out, out + k, 0.0f) + ops::kLeastRouterSum;
      for (size_t j = 0; j < k; ++j) out[j] /= total;
    }
    for (size_t j = 0; j < k; ++j) out[j] *= args_.scale;
    if (args_.expert_scales.empty()) return;
    const auto* const scales = args_.expert_scales.as<float>();
    for (size_t j = 0; j < k; ++j) out[j] *= scales[order_[j]];
  }

 private:
  void choose(int64_t k) {
    if (args_.groups == 1)
      return largest(
          scores_, k, [](int32_t) { return true; }, order_);
    const std::vector<bool> kept = kept_groups(scores_, args_.groups, args_.kept_groups);
    const auto size = static_cast<int32_t>(scores_.size()) / args_.groups;
    largest(
        scores_, k, [&](int32_t e) { return kept[static_cast<size_t>(e / size)]; }, order_);
  }

  const ops::RouteArgs& args_;
  const ops::Taps& logits_taps_;
  const ops::Taps& chosen_taps_;
  std::vector<float> weights_;
  std::vector<float> scores_;
  std::vector<int32_t> order_;
  std::vector<float> named_;  // order_, as a row that is captured
};

}  // namespace

Result<ops::LinearWeight> Experts::make_experts(std::span<const ops::LinearPart> parts,
                                                int64_t experts) {
  const size_t each = parts.size() / static_cast<size_t>(experts);
  RUDDER_CHECK(each > 0 && parts.size() % static_cast<size_t>(experts) == 0,
               "{} parts of {} experts", parts.size(), experts);
  auto packed = std::make_shared<ExpertWeights>();
  ops::LinearWeight weight;
  for (size_t first = 0; first < parts.size(); first += each) {
    RUDDER_TRY(ops::LinearWeight one, backend_.make_linear(parts.subspan(first, each)));
    weight.bytes += one.bytes;
    packed->of_expert.push_back(std::move(one));
  }
  const ops::LinearWeight& one = packed->of_expert.front();
  weight.in = one.in;
  weight.out = one.out;
  weight.format = one.format;
  weight.input = one.input;
  weight.rounds_x = one.rounds_x;
  weight.packed = std::move(packed);
  return weight;
}

void Experts::route_tapped(const ops::RouteTappedArgs& tapped) {
  const ops::RouteArgs& args = tapped.route;
  const int64_t experts = args.logits.shape[1];
  RUDDER_CHECK(args.chosen.shape[1] <= experts / args.groups * args.kept_groups &&
                   experts % args.groups == 0,
               "{} of {} experts in {} groups", args.chosen.shape[1], experts, args.groups);
  if (args.router != nullptr) {
    backend_.linear({.x = args.x, .x_scale = {}, .weight = args.router, .out = args.logits});
  }
  Router router(tapped);
  for (int64_t t = 0; t < args.logits.shape[0]; ++t) router.run(t);
}

void Experts::expert_linear(const ops::ExpertLinearArgs& args) {
  const auto& experts = static_cast<const ExpertWeights&>(*args.weight->packed).of_expert;
  const int64_t in = args.weight->in;
  const int64_t weight_out = args.weight->out;
  const int64_t out = args.activation ? weight_out / 2 : weight_out;
  const int64_t num_pairs = args.chosen.shape.numel();
  const int64_t rows_each = args.x.shape[0] == num_pairs ? 1 : args.chosen.shape[1];
  // Behind those of the weight's experts are the pairs of all others.
  const auto expert_of = [&](int64_t pair) {
    const int64_t expert = args.chosen.as<int32_t>()[pair] - args.first;
    const bool has_it = expert >= 0 && expert < std::ssize(experts);
    return has_it ? static_cast<size_t>(expert) : experts.size();
  };
  begins_.assign(experts.size() + 2, 0);
  for (int64_t pair = 0; pair < num_pairs; ++pair) ++begins_[expert_of(pair) + 1];
  std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
  pairs_.resize(static_cast<size_t>(num_pairs));
  std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    pairs_[static_cast<size_t>(next[expert_of(pair)]++)] = pair;
  }
  for (int64_t i = begins_[experts.size()]; i < num_pairs; ++i) {
    std::fill_n(args.out.as<float>() + pairs_[static_cast<size_t>(i)] * out, out, 0.0f);
  }
  for (size_t e = 0; e < experts.size(); ++e) {
    const int64_t count = begins_[e + 1] - begins_[e];
    if (count == 0) continue;
    const std::span<const int64_t> pairs(pairs_.data() + begins_[e], static_cast<size_t>(count));
    rows_.in.resize(static_cast<size_t>(count * in));
    rows_.out.resize(static_cast<size_t>(count * weight_out));
    float* to = rows_.in.data();
    for (const int64_t pair : pairs) {
      to = std::copy_n(args.x.as<float>() + pair / rows_each * in, in, to);
    }
    backend_.linear({.x = {rows_.in.data(), DType::kF32, {count, in}},
                     .x_scale = {},
                     .weight = &experts[e],
                     .out = {rows_.out.data(), DType::kF32, {count, weight_out}}});
    if (args.activation) {
      rows_.activated.resize(static_cast<size_t>(count * out));
      backend_.gated_act({.x = {rows_.out.data(), DType::kF32, {count, weight_out}},
                          .activation = *args.activation,
                          .out = {rows_.activated.data(), DType::kF32, {count, out}},
                          .out_scale = {}});
    }
    const float* from = args.activation ? rows_.activated.data() : rows_.out.data();
    for (const int64_t pair : pairs) {
      std::copy_n(from, out, args.out.as<float>() + pair * out);
      from += out;
    }
  }
}

void Experts::combine_experts(const ops::CombineExpertsArgs& args) {
  const int64_t k = args.weights.shape[1];
  const int64_t hidden = args.out.shape[1];
  for (int64_t t = 0; t < args.out.shape[0]; ++t) {
    sum_.assign(static_cast<size_t>(hidden), 0.0f);
    for (int64_t j = 0; j < k; ++j) {
      const float weight = args.weights.as<float>()[t * k + j];
      const float* const x = args.x.as<float>() + (t * k + j) * hidden;
      for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += weight * x[i];
    }
    if (!args.shared.empty()) {
      const float* const shared = args.shared.as<float>() + t * hidden;
      const float share = args.shared_gate.empty()
                              ? 1.0f
                              : 1.0f / (1.0f + std::exp(-args.shared_gate.as<float>()[t]));
      for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += share * shared[i];
    }
    std::ranges::copy(sum_, args.out.as<float>() + t * hidden);
  }
}

}  // namespace rudder::cpu
