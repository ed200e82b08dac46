// Checks the kernels of mixtures of experts against sums in double, and times them at the shapes of
// models beside the floor of the bytes that a layer's experts are: a program of its own, so that it
// runs on a bare machine with a GPU. A figure is of a captured graph of some layers, whose weights
// take turns, so that none is in the L2 cache. The L2 cache holds something else when one begins.
// experts_bench [check|bench|codes|few]: few are one to 128 tokens of the shapes with few pairs an
// expert, in tiles of wgmma and in few_pairs.h.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "rudder/cuda/experts_bench.h"
#include "rudder/cuda/kernels/experts/combine_experts.h"
#include "rudder/cuda/kernels/experts/expert_product.h"
#include "rudder/cuda/kernels/experts/route.h"

namespace rudder::cuda {
namespace {

constexpr double kBytesPerSecond = 4.4e12;  // one H200
constexpr double kBf16Flops = 989e12;
constexpr LowBits kInt4 = {LowCode::kU4, 128, true, false};

struct MixtureShape {
  const char* name;
  int64_t experts;
  int64_t k;
  int64_t hidden;
  int64_t width;
  int layers;
};

class Layers {
 public:
  Layers(const MixtureShape& shape, ExpertForm form, bool in_one_order, int64_t most_tokens)
      : shape_(shape),
        form_(form),
        in_one_order_(in_one_order),
        is_fp8_(form == ExpertForm::kE4m3),
        logits_(2 * shape.layers * most_tokens * shape.experts),
        x_(2 * most_tokens * shape.hidden),
        activated_(2 * most_tokens * shape.k * shape.width),
        made_(2 * most_tokens * shape.k * shape.hidden),
        out_(2 * most_tokens * shape.hidden),
        chosen_(most_tokens * shape.k),
        weights_(most_tokens * shape.k),
        scales_(std::vector<float>(
            static_cast<size_t>(std::max(most_tokens * shape.k, 2 * shape.width * shape.experts +
                                                                    shape.hidden * shape.experts)),
            0.01f)),
        room_(most_tokens * shape.k, shape.experts) {
    const Numbers some(int64_t{8} << 20, is_fp8_);
    const Numbers wide(int64_t{4} << 20, false);
    const Numbers codes(int64_t{8} << 20, true);  // scales below 2^(192 - 127), too
    const bool is_of_codes = form == ExpertForm::kE2m1 || form == ExpertForm::kLow;
    const Numbers& weights = is_of_codes ? codes : some;
    for (int i = 0; i < shape.layers; ++i) {
      gate_up_.push_back(std::make_unique<Buffer<uint8_t>>(gate_up_bytes()));
      down_.push_back(std::make_unique<Buffer<uint8_t>>(down_bytes()));
      fill(*gate_up_.back(), weights);
      fill(*down_.back(), weights);
    }
    fill(logits_, wide);
    fill(x_, some);
    fill(activated_, some);
  }
  int64_t gate_up_bytes() const {
    return shape_.experts * expert_bytes(2 * shape_.width, shape_.hidden);
  }
  int64_t down_bytes() const { return shape_.experts * expert_bytes(shape_.hidden, shape_.width); }
  double hit_experts() const { return room_.hit_experts(); }

  // The first so many of: route, gate and up, down, combine; of all layers.
  void enqueue(int64_t tokens, int kernels, cudaStream_t stream) {
    for (int i = 0; i < shape_.layers; ++i) {
      RouteParams route;
      route.renormalises = true;
      route.tokens = tokens;
      route.experts = static_cast<int32_t>(shape_.experts);
      route.k = static_cast<int32_t>(shape_.k);
      route.chosen = chosen_.data();
      route.weights = weights_.data();
      route.list = room_.list(run_pairs(tokens, shape_.k, shape_.experts));
      route.logits = logits_.data() + 2 * i * tokens * shape_.experts;
      must(launch_route(route, stream), "route");
      ExpertProductParams p;
      p.experts = shape_.experts;
      p.form = form_;
      p.list = route.list;
      p.most_runs = most_runs(tokens * shape_.k, shape_.experts, p.list.run_pairs);
      p.low = kInt4;
      p.interleaves = true;
      p.in_one_order = in_one_order_;
      p.w_scale = is_fp8_ || form_ == ExpertForm::kLow ? scales_.data() : nullptr;
      p.x_scale = is_fp8_ ? scales_.data() : nullptr;
      p.x = x_.data();
      p.pairs_each = static_cast<int32_t>(shape_.k);
      p.weight = gate_up_[static_cast<size_t>(i)]->data();
      p.out = 2 * shape_.width;
      p.in = shape_.hidden;
      p.is_gated = true;
      p.y = made_.data();
      if (kernels > 1) must(launch_expert_product(p, 132, stream), "gate and up");
      p.weight = down_[static_cast<size_t>(i)]->data();
      p.x = activated_.data();
      p.pairs_each = 1;
      p.out = shape_.hidden;
      p.in = shape_.width;
      p.is_gated = false;
      p.interleaves = false;
      p.list_is_old = kernels > 1;
      if (kernels > 2) must(launch_expert_product(p, 132, stream), "down");
      CombineExpertsParams sum;
      sum.x = made_.data();
      sum.weights = weights_.data();
      sum.tokens = tokens;
      sum.width = shape_.hidden;
      sum.k = static_cast<int32_t>(shape_.k);
      sum.out = out_.data();
      if (kernels > 3) must(launch_combine_experts(sum, stream), "combine");
    }
  }

 private:
  int64_t expert_bytes(int64_t out, int64_t in) const {
    if (form_ == ExpertForm::kLow) return low_weight_bytes(kInt4, out, in);
    return out * (form_ == ExpertForm::kE2m1 ? code_row_bytes(in) : in * (is_fp8_ ? 1 : 2));
  }
  static void fill(const Buffer<uint8_t>& to, const Numbers& some) {
    for (size_t at = 0; at < to.bytes(); at += some.bytes.size()) {
      must(cudaMemcpy(to.data() + at, some.bytes.data(),
                      std::min(some.bytes.size(), to.bytes() - at), cudaMemcpyHostToDevice),
           "fill");
    }
  }

  const MixtureShape shape_;
  const ExpertForm form_;
  const bool in_one_order_;
  const bool is_fp8_;
  Buffer<uint8_t> logits_;
  Buffer<uint8_t> x_;
  Buffer<uint8_t> activated_;
  Buffer<uint8_t> made_;
  Buffer<uint8_t> out_;
  Buffer<int32_t> chosen_;
  Buffer<float> weights_;
  Buffer<float> scales_;
  ListRoom room_;
  std::vector<std::unique_ptr<Buffer<uint8_t>>> gate_up_;
  std::vector<std::unique_ptr<Buffer<uint8_t>>> down_;
};

void bench_shape(const MixtureShape& shape, ExpertForm form, const std::vector<int64_t>& sizes,
                 const Buffer<uint8_t>& flush, cudaStream_t stream, bool in_one_order = false) {
  constexpr const char* kNames[] = {"bf16", "fp8", "MXFP4", "int4 in groups of 128"};
  Layers layers(shape, form, in_one_order, *std::max_element(sizes.begin(), sizes.end()));
  std::printf(
      "%s %s%s: us a layer of route, gate and up, down, combine; all; floor of bytes; share\n",
      shape.name, kNames[static_cast<size_t>(form)], in_one_order ? ", tiles of wgmma" : "");
  const double expert_bytes = static_cast<double>(layers.gate_up_bytes() + layers.down_bytes()) /
                              static_cast<double>(shape.experts);
  for (const int64_t tokens : sizes) {
    std::vector<std::unique_ptr<Graph>> graphs;
    for (int kernels = 1; kernels <= 4; ++kernels) {
      graphs.push_back(
          std::make_unique<Graph>(stream, [&] { layers.enqueue(tokens, kernels, stream); }));
    }
    const std::vector<double> us = time_graphs(graphs, 15, flush, stream);
    const double per = 1.0 / shape.layers;
    const double mean_hit =
        static_cast<double>(shape.experts) *
        (1 - std::pow(1 - static_cast<double>(shape.k) / static_cast<double>(shape.experts),
                      static_cast<double>(tokens)));
    const double floor = mean_hit * expert_bytes / kBytesPerSecond * 1e6;
    const double flops = 6.0 * static_cast<double>(tokens * shape.k) *
                         static_cast<double>(shape.hidden * shape.width);
    const double peak =
        flops / (us[3] * per * 1e-6) / (kBf16Flops * (form == ExpertForm::kE4m3 ? 2 : 1));
    std::printf(
        "  T %5ld  %6.1f %7.1f %7.1f %6.1f  all %7.1f  floor %6.1f (%.1f hit) %5.1f %%  peak %4.1f "
        "%%\n",
        tokens, us[0] * per, (us[1] - us[0]) * per, (us[2] - us[1]) * per, (us[3] - us[2]) * per,
        us[3] * per, floor, mean_hit, 100 * floor / (us[3] * per), 100 * peak);
  }
  std::printf("  experts hit on average: %.1f\n", layers.hit_experts());
}

// Few pairs an expert, both ways.
void bench_few(const Buffer<uint8_t>& flush, cudaStream_t stream) {
  constexpr MixtureShape kShapes[] = {{"gpt-oss-20b", 32, 4, 2880, 2880, 4},
                                      {"Qwen3-30B-A3B", 128, 8, 2048, 768, 6},
                                      {"Qwen3.5-35B-A3B", 256, 8, 2048, 512, 6},
                                      {"Gemma 4 26B-A4B", 128, 8, 2816, 704, 6}};
  const std::vector<int64_t> sizes = {1, 8, 32, 128, 2048};
  for (const MixtureShape& shape : kShapes) {
    const bool has_codes = shape.experts == 32;  // as people have it
    for (const ExpertForm form :
         {ExpertForm::kE2m1, ExpertForm::kE4m3, ExpertForm::kBf16, ExpertForm::kLow}) {
      if ((form == ExpertForm::kE2m1) != has_codes && form != ExpertForm::kBf16) continue;
      for (const bool in_one_order : {false, true}) {
        if (in_one_order && form != ExpertForm::kE2m1) continue;
        bench_shape(shape, form, sizes, flush, stream, in_one_order);
      }
    }
  }
}

int run_experts_bench(const std::string& what) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "stream");
  if (what != "bench" && what != "codes" && what != "few" && !check_experts(stream)) return 1;
  if (what == "check") return 0;
  const Buffer<uint8_t> flush(kFlushBytes);
  if (what == "few") {
    bench_few(flush, stream);
    return 0;
  }
  const std::vector<int64_t> sizes = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192};
  for (const ExpertForm form : {ExpertForm::kE4m3, ExpertForm::kBf16}) {
    if (what == "codes") break;
    bench_shape({"Qwen3-30B-A3B", 128, 8, 2048, 768, 6}, form, sizes, flush, stream);
  }
  for (const ExpertForm form : {ExpertForm::kBf16, ExpertForm::kE2m1}) {
    bench_shape({"gpt-oss-20b", 32, 4, 2880, 2880, 4}, form, {1, 8, 32, 128, 2048}, flush, stream);
  }
  if (what == "codes") return 0;
  bench_shape({"Mixtral-8x7B", 8, 2, 4096, 14336, 2}, ExpertForm::kE4m3, {1, 8, 32, 128, 2048},
              flush, stream);
  return 0;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::run_experts_bench(argc > 1 ? argv[1] : "");
}
