// Checks the kernels of mixtures of experts against sums in double, and times them at the shapes of
// models beside the floor of the bytes that a layer's experts are: a program of its own, so that it
// runs on a bare machine with a GPU. A figure is of a captured graph of some layers, whose weights
// take turns, so that none is in the L2 cache. The L2 cache holds something else when one begins.
// experts_bench [check|bench]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/kernels/experts/combine_experts.h"
#include "rudder/cuda/kernels/experts/expert_product.h"
#include "rudder/cuda/kernels/experts/route.h"
#include "rudder/cuda/kernels/experts/route_few.h"

namespace rudder::cuda {
namespace {

constexpr double kBytesPerSecond = 4.4e12;  // one H200
constexpr double kBf16Flops = 989e12;

uint64_t next_random() {
  static uint64_t state = 0x9E3779B97F4A7C15;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state >> 11;
}
double uniform() {
  return static_cast<double>(next_random() & 0xffffff) / 0x1000000;
}

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
double of_bf16(uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(uint32_t{bits} << 16));
}
double of_e4m3(uint8_t byte) {
  const int exponent = byte >> 3 & 15;
  const int mantissa = byte & 7;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return byte < 0x80 ? size : -size;
}

// Numbers of one of the two types, about normal.
struct Numbers {
  bool is_fp8 = false;
  std::vector<uint8_t> bytes;

  Numbers(int64_t count, bool fp8)
      : is_fp8(fp8), bytes(static_cast<size_t>(fp8 ? count : 2 * count)) {
    if (fp8) {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(next_random()) & 0xBF;  // below 2
      return;
    }
    for (size_t i = 0; i < bytes.size(); i += 2) {
      const uint16_t one =
          to_bf16(static_cast<float>(uniform() + uniform() - uniform() - uniform()));
      std::memcpy(&bytes[i], &one, 2);
    }
  }
  double at(int64_t i) const {
    if (is_fp8) return of_e4m3(bytes[static_cast<size_t>(i)]);
    uint16_t one = 0;
    std::memcpy(&one, &bytes[static_cast<size_t>(2 * i)], 2);
    return of_bf16(one);
  }
};

// Device memory of the list of so many pairs.
class ListRoom {
 public:
  ListRoom(int64_t pairs, int64_t experts)
      : runs_(most_runs(pairs, experts, 8)),
        numbers_(1 + 2 * pairs),
        counts_(experts + 1),
        hits_(2 * kHitSizes) {}
  ExpertList list(int32_t run) {
    return {runs_.data(),
            numbers_.data(),
            numbers_.data() + 1,
            numbers_.data() + 1 + (static_cast<int64_t>(numbers_.bytes() / 4) - 1) / 2,
            counts_.data(),
            hits_.data(),
            run};
  }
  double hit_experts() const {
    std::vector<int64_t> hits(2 * kHitSizes);
    must(cudaMemcpy(hits.data(), hits_.data(), hits_.bytes(), cudaMemcpyDeviceToHost), "hits");
    double lists = 0;
    double named = 0;
    for (size_t i = 0; i < hits.size(); i += 2) {
      lists += static_cast<double>(hits[i]);
      named += static_cast<double>(hits[i + 1]);
    }
    return named / std::max(lists, 1.0);
  }

 private:
  Buffer<ExpertRun> runs_;
  Buffer<int32_t> numbers_;
  Buffer<int32_t> counts_;
  Buffer<int64_t> hits_;
};

template <typename T>
std::vector<T> read(const Buffer<T>& buffer) {
  std::vector<T> out(buffer.bytes() / sizeof(T));
  must(cudaMemcpy(out.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost), "read");
  return out;
}

struct ProductCase {
  int64_t experts;
  int64_t k;
  int64_t in;
  int64_t out;
  int64_t tokens;
  bool is_fp8;
  bool is_gated;
  bool own_rows;  // a row of x a pair
  bool has_bias;
  int spread;  // experts that tokens choose among; 1: all choose the same
};

double silu(double x) {
  return x / (1 + std::exp(-x));
}

// The largest error over what is allowed; above 1 it is wrong. Also whether the first token alone,
// and in a tile of the other kind, has the same bits.
double check(const ProductCase& c, cudaStream_t stream, bool& same_bits) {
  const int64_t pairs = c.tokens * c.k;
  const int64_t rows = c.own_rows ? pairs : c.tokens;
  const Numbers w(c.experts * c.out * c.in, c.is_fp8);
  const Numbers x(rows * c.in, c.is_fp8);
  std::vector<float> w_scale(static_cast<size_t>(c.experts * c.out));
  std::vector<float> x_scale(static_cast<size_t>(rows));
  std::vector<uint16_t> bias(w_scale.size());
  for (float& scale : w_scale) scale = static_cast<float>(0.01 + 0.01 * uniform());
  for (float& scale : x_scale) scale = static_cast<float>(0.5 + uniform());
  for (uint16_t& one : bias) one = to_bf16(static_cast<float>(uniform() - 0.5));
  std::vector<int32_t> chosen(static_cast<size_t>(pairs));
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto first = static_cast<int64_t>(next_random() % static_cast<uint64_t>(c.spread));
    for (int64_t j = 0; j < c.k; ++j) {
      chosen[static_cast<size_t>(t * c.k + j)] =
          static_cast<int32_t>((first + j * (c.experts / c.k)) % c.experts);
    }
  }
  const Buffer<uint8_t> d_w(w.bytes);
  const Buffer<uint8_t> d_x(x.bytes);
  const Buffer<float> d_ws(w_scale);
  const Buffer<float> d_xs(x_scale);
  const Buffer<uint16_t> d_bias(bias);
  const Buffer<int32_t> d_chosen(chosen);
  const int64_t columns = c.is_gated ? c.out / 2 : c.out;
  const Buffer<uint16_t> y(pairs * columns, 0xff);
  const auto run = [&](int64_t tokens, int32_t run_size, const Buffer<uint16_t>& to) {
    ListRoom room(tokens * c.k, c.experts);
    RouteParams route;
    route.tokens = tokens;
    route.experts = static_cast<int32_t>(c.experts);
    route.k = static_cast<int32_t>(c.k);
    route.chosen = d_chosen.data();
    route.list = room.list(run_size);
    ExpertProductParams p;
    p.weight = d_w.data();
    p.w_scale = c.is_fp8 ? d_ws.data() : nullptr;
    p.bias = c.has_bias ? d_bias.data() : nullptr;
    p.x = d_x.data();
    p.x_scale = c.is_fp8 ? d_xs.data() : nullptr;
    p.pairs_each = c.own_rows ? 1 : static_cast<int32_t>(c.k);
    p.experts = c.experts;
    p.out = c.out;
    p.in = c.in;
    p.is_fp8 = c.is_fp8;
    p.is_gated = c.is_gated;
    p.list = route.list;
    p.most_runs = most_runs(tokens * c.k, c.experts, run_size);
    p.y = to.data();
    must(launch_route(route, stream), "list");
    must(launch_expert_product(p, 132, stream), "product");
    must(cudaStreamSynchronize(stream), "product's end");
  };
  const int32_t own_size = run_pairs(c.tokens, c.k, c.experts);
  run(c.tokens, own_size, y);
  const std::vector<uint16_t> got = read(y);
  const Buffer<uint16_t> other(pairs * columns, 0xff);
  run(c.tokens, own_size == kManyPairs ? 16 : kManyPairs, other);
  same_bits = read(other) == got;
  const Buffer<uint16_t> alone(c.k * columns, 0xff);
  run(1, 8, alone);
  same_bits =
      same_bits && std::equal(got.begin(), got.begin() + c.k * columns, read(alone).begin());
  double worst = 0;
  const int64_t step = std::max<int64_t>(1, pairs / 40);
  for (int64_t pair = 0; pair < pairs; pair += step) {
    const int64_t row = c.own_rows ? pair : pair / c.k;
    const int64_t e = chosen[static_cast<size_t>(pair)];
    const auto sum_of = [&](int64_t n, double& magnitude) {
      double sum = 0;
      magnitude = 0;
      for (int64_t i = 0; i < c.in; ++i) {
        const double term = x.at(row * c.in + i) * w.at((e * c.out + n) * c.in + i);
        sum += term;
        magnitude += std::abs(term);
      }
      const auto at = static_cast<size_t>(e * c.out + n);
      const double scale = c.is_fp8 ? double{w_scale[at]} * x_scale[static_cast<size_t>(row)] : 1;
      magnitude *= scale;
      return sum * scale + (c.has_bias ? of_bf16(bias[at]) : 0);
    };
    for (int64_t n = 0; n < columns; n += 3) {
      double magnitude = 0;
      double up_magnitude = 0;
      double expected = sum_of(n, magnitude);
      // Tensor cores keep 14 bits of sums of fp8.
      const double unit = c.is_fp8 ? std::ldexp(1.0, -11) : 2e-5;
      double slack = unit * magnitude;
      if (c.is_gated) {
        const double up = sum_of(columns + n, up_magnitude);
        slack = unit * (magnitude * (std::abs(up) + 1) + up_magnitude * (std::abs(expected) + 1));
        expected = silu(expected) * up;
      }
      const double error =
          std::abs(of_bf16(got[static_cast<size_t>(pair * columns + n)]) - expected);
      const double allowed = slack + std::abs(expected) / 250 + 1e-6;
      worst = std::isnan(error) ? 1e9 : std::max(worst, error / allowed);
    }
  }
  return worst;
}

bool check_few(int64_t experts, int64_t in, int64_t tokens, cudaStream_t stream);

bool check_all(cudaStream_t stream) {
  bool good = true;
  int cases = 0;
  for (const bool is_fp8 : {false, true}) {
    for (const bool is_gated : {false, true}) {
      for (const int64_t tokens : {1, 3, 8, 9, 33, 64, 130, 513}) {
        const int64_t unit = is_fp8 ? 16 : 8;
        const std::vector<ProductCase> all = {
            {16, 4, 17 * unit, 96, tokens, is_fp8, is_gated, !is_gated, false, 4},
            {8, 2, 8 * unit, 100, tokens, is_fp8, is_gated, false, true, 1},
            {128, 8, 24 * unit, 416, tokens, is_fp8, is_gated, !is_gated, true, 16},
            {12, 1, 130 * unit, 264, tokens, is_fp8, is_gated, true, false, 12}};
        for (const ProductCase& c : all) {
          bool same = false;
          const double worst = check(c, stream, same);
          ++cases;
          if (worst <= 1 && same) continue;
          good = false;
          std::printf("WRONG %s%s E %ld k %ld [%ld -> %ld] T %ld: error %.2f, bits %s\n",
                      is_fp8 ? "fp8" : "bf16", is_gated ? " gated" : "", c.experts, c.k, c.in,
                      c.out, tokens, worst, same ? "same" : "DIFFER");
        }
      }
    }
  }
  for (const int64_t tokens : {1, 2, 7, 8}) {
    good = check_few(24, 64, tokens, stream) && good;
    good = check_few(128, 2048, tokens, stream) && good;
    good = check_few(300, 328, tokens, stream) && good;
  }
  std::printf("%d products checked: %s\n", cases, good ? "good" : "WRONG");
  return good;
}

// The router's product and choice in one kernel: its logits, and the choice by route.h of these.
bool check_few(int64_t experts, int64_t in, int64_t tokens, cudaStream_t stream) {
  constexpr int64_t kChosen = 6;
  const Numbers w(experts * in, false);
  const Numbers x(tokens * in, false);
  const Buffer<uint8_t> d_w(w.bytes);
  const Buffer<uint8_t> d_x(x.bytes);
  const Buffer<uint16_t> logits(tokens * experts, 0xff);
  ListRoom room(tokens * kChosen, experts);
  std::vector<std::vector<int32_t>> chosen;
  std::vector<std::vector<float>> weights;
  for (const bool fused : {true, false}) {
    const Buffer<int32_t> d_chosen(tokens * kChosen, 0xff);
    const Buffer<float> d_weights(tokens * kChosen, 0xff);
    RouteFewParams p;
    p.x = d_x.data();
    p.weight = d_w.data();
    p.in = in;
    p.logits = logits.data();
    p.route.renormalises = true;
    p.route.tokens = tokens;
    p.route.experts = static_cast<int32_t>(experts);
    p.route.k = kChosen;
    p.route.chosen = d_chosen.data();
    p.route.weights = d_weights.data();
    p.route.list = room.list(8);
    if (fused) {
      must(launch_route_few(p, stream), "route few");
    } else {
      p.route.logits = logits.data();
      must(launch_route(p.route, stream), "route");
    }
    must(cudaStreamSynchronize(stream), "route's end");
    chosen.push_back(read(d_chosen));
    weights.push_back(read(d_weights));
  }
  double worst = 0;
  const std::vector<uint16_t> got = read(logits);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t e = 0; e < experts; ++e) {
      double sum = 0;
      for (int64_t i = 0; i < in; ++i) sum += x.at(t * in + i) * w.at(e * in + i);
      const double error = std::abs(of_bf16(got[static_cast<size_t>(t * experts + e)]) - sum);
      worst = std::isnan(error) ? 1e9 : std::max(worst, error / (std::abs(sum) / 250 + 1e-3));
    }
  }
  if (worst <= 1 && chosen[0] == chosen[1] && weights[0] == weights[1]) return true;
  std::printf("WRONG router E %ld in %ld T %ld: error %.2f, chosen %s\n", experts, in, tokens,
              worst, chosen[0] == chosen[1] ? "same" : "DIFFER");
  return false;
}

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
  Layers(const MixtureShape& shape, bool is_fp8, int64_t most_tokens)
      : shape_(shape),
        is_fp8_(is_fp8),
        logits_(2 * shape.layers * most_tokens * shape.experts),
        x_(2 * most_tokens * shape.hidden),
        router_(2 * shape.experts * shape.hidden),
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
    const Numbers some(int64_t{8} << 20, is_fp8);
    const Numbers wide(int64_t{4} << 20, false);
    for (int i = 0; i < shape.layers; ++i) {
      gate_up_.push_back(std::make_unique<Buffer<uint8_t>>(gate_up_bytes()));
      down_.push_back(std::make_unique<Buffer<uint8_t>>(gate_up_bytes() / 2));
      fill(*gate_up_.back(), some);
      fill(*down_.back(), some);
    }
    fill(logits_, wide);
    fill(x_, some);
    fill(activated_, some);
    fill(router_, wide);
  }
  int64_t gate_up_bytes() const {
    return shape_.experts * 2 * shape_.width * shape_.hidden * (is_fp8_ ? 1 : 2);
  }
  double hit_experts() const { return room_.hit_experts(); }

  // The first so many of: route, gate and up, down, combine; of all layers. 0: the router's product
  // and choice of few tokens; they are what begins all four, too.
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
      if (kernels == 0 || (kernels == 4 && tokens <= kFewRouted)) {
        RouteFewParams few;
        few.x = x_.data();
        few.weight = router_.data();
        few.in = shape_.hidden;
        few.logits = logits_.data();
        few.route = route;
        must(launch_route_few(few, stream), "route few");
      } else {
        route.logits = logits_.data() + 2 * i * tokens * shape_.experts;
        must(launch_route(route, stream), "route");
      }
      ExpertProductParams p;
      p.experts = shape_.experts;
      p.is_fp8 = is_fp8_;
      p.list = route.list;
      p.most_runs = most_runs(tokens * shape_.k, shape_.experts, p.list.run_pairs);
      p.w_scale = is_fp8_ ? scales_.data() : nullptr;
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
  static void fill(const Buffer<uint8_t>& to, const Numbers& some) {
    for (size_t at = 0; at < to.bytes(); at += some.bytes.size()) {
      must(cudaMemcpy(to.data() + at, some.bytes.data(),
                      std::min(some.bytes.size(), to.bytes() - at), cudaMemcpyHostToDevice),
           "fill");
    }
  }

  const MixtureShape shape_;
  const bool is_fp8_;
  Buffer<uint8_t> logits_;
  Buffer<uint8_t> x_;
  Buffer<uint8_t> router_;
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

void bench_shape(const MixtureShape& shape, bool is_fp8, const std::vector<int64_t>& sizes,
                 const Buffer<uint8_t>& flush, cudaStream_t stream) {
  Layers layers(shape, is_fp8, *std::max_element(sizes.begin(), sizes.end()));
  std::printf(
      "%s %s: us a layer of route, gate and up, down, combine; all; floor of bytes; share\n",
      shape.name, is_fp8 ? "fp8" : "bf16");
  const double expert_bytes =
      1.5 * static_cast<double>(layers.gate_up_bytes()) / static_cast<double>(shape.experts);
  for (const int64_t tokens : sizes) {
    std::vector<std::unique_ptr<Graph>> graphs;
    for (int kernels = 1; kernels <= 4; ++kernels) {
      graphs.push_back(
          std::make_unique<Graph>(stream, [&] { layers.enqueue(tokens, kernels, stream); }));
    }
    if (tokens <= kFewRouted) {
      graphs.push_back(std::make_unique<Graph>(stream, [&] { layers.enqueue(tokens, 0, stream); }));
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
    const double peak = flops / (us[3] * per * 1e-6) / (kBf16Flops * (is_fp8 ? 2 : 1));
    std::printf(
        "  T %5ld  %6.1f %7.1f %7.1f %6.1f  all %7.1f  floor %6.1f (%.1f hit) %5.1f %%  peak %4.1f "
        "%%\n",
        tokens, us[0] * per, (us[1] - us[0]) * per, (us[2] - us[1]) * per, (us[3] - us[2]) * per,
        us[3] * per, floor, mean_hit, 100 * floor / (us[3] * per), 100 * peak);
    if (us.size() > 4) std::printf("           router and choice in one: %.1f\n", us[4] * per);
  }
  std::printf("  experts hit on average: %.1f\n", layers.hit_experts());
}

int run_experts_bench(const std::string& what) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "stream");
  if (what != "bench" && !check_all(stream)) return 1;
  if (what == "check") return 0;
  const Buffer<uint8_t> flush(kFlushBytes);
  const std::vector<int64_t> sizes = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192};
  for (const bool is_fp8 : {true, false}) {
    bench_shape({"Qwen3-30B-A3B", 128, 8, 2048, 768, 6}, is_fp8, sizes, flush, stream);
  }
  bench_shape({"gpt-oss-20b", 32, 4, 2880, 2880, 4}, false, {1, 32, 128, 2048}, flush, stream);
  bench_shape({"Mixtral-8x7B", 8, 2, 4096, 14336, 2}, true, {1, 8, 32, 128, 2048}, flush, stream);
  return 0;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::run_experts_bench(argc > 1 ? argv[1] : "");
}
