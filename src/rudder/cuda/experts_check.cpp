// The kernels of mixtures of experts against sums in double, and their bits in tiles of every kind.
#include <cstdio>
#include <utility>
#include <vector>

#include "rudder/cuda/experts_bench.h"
#include "rudder/cuda/kernels/experts/expert_codes.h"
#include "rudder/cuda/kernels/experts/expert_product.h"
#include "rudder/cuda/kernels/experts/route.h"

namespace rudder::cuda {
namespace {

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
  int spread;                  // experts that tokens choose among; 1: all choose the same
  bool has_few_pairs = false;  // in a run: few_pairs.h
};

double silu(double x) {
  return x / (1 + std::exp(-x));
}

std::vector<int32_t> drawn_choices(const ProductCase& c) {
  std::vector<int32_t> chosen(static_cast<size_t>(c.tokens * c.k));
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto first = static_cast<int64_t>(next_random() % static_cast<uint64_t>(c.spread));
    for (int64_t j = 0; j < c.k; ++j) {
      chosen[static_cast<size_t>(t * c.k + j)] =
          static_cast<int32_t>((first + j * (c.experts / c.k)) % c.experts);
    }
  }
  return chosen;
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
  const std::vector<int32_t> chosen = drawn_choices(c);
  const Buffer<uint8_t> d_w(w.bytes);
  const Buffer<uint8_t> d_x(x.bytes);
  const Buffer<float> d_ws(w_scale);
  const Buffer<float> d_xs(x_scale);
  const Buffer<uint16_t> d_bias(bias);
  const Buffer<int32_t> d_chosen(chosen);
  const int64_t columns = c.is_gated ? c.out / 2 : c.out;
  const Buffer<uint16_t> y(pairs * columns, 0xff);
  const auto run = [&](int64_t tokens, int32_t run_size, const Buffer<uint16_t>& to) {
    const bool in_one_order = !c.has_few_pairs;
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
    p.form = c.is_fp8 ? ExpertForm::kE4m3 : ExpertForm::kBf16;
    p.is_gated = c.is_gated;
    p.in_one_order = in_one_order;
    p.list = route.list;
    p.most_runs = most_runs(tokens * c.k, c.experts, run_size);
    p.y = to.data();
    must(launch_route(route, stream), "list");
    must(launch_expert_product(p, 132, stream), "product");
    must(cudaStreamSynchronize(stream), "product's end");
  };
  const int32_t own_size = c.has_few_pairs ? kFewestPairs : run_pairs(c.tokens, c.k, c.experts);
  run(c.tokens, own_size, y);
  const std::vector<uint16_t> got = read(y);
  const Buffer<uint16_t> other(pairs * columns, 0xff);
  const int32_t other_size = own_size == kManyPairs ? 16 : kManyPairs;
  run(c.tokens, c.has_few_pairs ? own_size : other_size, other);
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

double of_e2m1(int code) {
  constexpr double kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -kNumbers[code & 7] : kNumbers[code & 7];
}

// Experts in codes have the bits of the same numbers in bf16.
bool check_codes(int64_t in, int64_t out, int64_t tokens, bool is_gated, cudaStream_t stream) {
  constexpr int64_t kExperts = 6;
  constexpr int64_t kChosen = 2;
  const int64_t pairs = tokens * kChosen;
  const int64_t columns = is_gated ? out / 2 : out;
  std::vector<uint8_t> codes(static_cast<size_t>(kExperts * out * in / 2));
  std::vector<uint8_t> scales(static_cast<size_t>(kExperts * out * in / kCodeGroup));
  for (uint8_t& two : codes) two = static_cast<uint8_t>(next_random());
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(115 + next_random() % 10);
  std::vector<uint16_t> numbers(2 * codes.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double number = of_e2m1(codes[i / 2] >> (i % 2 * 4) & 15);
    numbers[i] = to_bf16(static_cast<float>(std::ldexp(number, scales[i / kCodeGroup] - 127)));
  }
  std::vector<uint16_t> bias(static_cast<size_t>(kExperts * out));
  for (uint16_t& one : bias) one = to_bf16(static_cast<float>(uniform() - 0.5));
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto first = static_cast<int32_t>(next_random() % kExperts);
    chosen.push_back(first);
    chosen.push_back((first + 1) % static_cast<int32_t>(kExperts));
  }
  const Numbers x(tokens * in, false);
  const Buffer<uint8_t> d_codes(codes);
  const Buffer<uint8_t> d_scales(scales);
  const Buffer<uint16_t> d_numbers(numbers);
  const Buffer<uint8_t> d_packed(kExperts * out * code_row_bytes(in), 0xff);
  const Buffer<uint8_t> d_x(x.bytes);
  const Buffer<uint16_t> d_bias(bias);
  const Buffer<int32_t> d_chosen(chosen);
  for (int64_t e = 0; e < kExperts; ++e) {
    PackExpertCodesParams pack;
    pack.codes = d_codes.data() + e * out * in / 2;
    pack.scales = d_scales.data() + e * out * in / kCodeGroup;
    pack.rows = out;
    pack.in = in;
    pack.out = out;
    pack.to = d_packed.data() + e * out * code_row_bytes(in);
    must(launch_pack_expert_codes(pack, stream), "pack");
  }
  std::vector<std::vector<uint16_t>> got;
  const auto run = [&](ExpertForm form, int32_t run_size, bool is_in_tiles) {
    ListRoom room(pairs, kExperts);
    RouteParams route;
    route.tokens = tokens;
    route.experts = kExperts;
    route.k = kChosen;
    route.chosen = d_chosen.data();
    route.list = room.list(run_size);
    const Buffer<uint16_t> y(pairs * columns, 0xff);
    ExpertProductParams p;
    p.form = form;
    p.weight = d_packed.data();
    if (form == ExpertForm::kBf16) p.weight = d_numbers.data();
    p.bias = d_bias.data();
    p.x = d_x.data();
    p.pairs_each = kChosen;
    p.experts = kExperts;
    p.out = out;
    p.in = in;
    p.is_gated = is_gated;
    p.activation = ops::Activation::kClampedSwiglu;
    p.list = route.list;
    p.most_runs = most_runs(pairs, kExperts, route.list.run_pairs);
    p.in_one_order = is_in_tiles;
    p.y = y.data();
    must(launch_route(route, stream), "list");
    must(launch_expert_product(p, 132, stream), "product of codes");
    must(cudaStreamSynchronize(stream), "product's end");
    got.push_back(read(y));
  };
  const int32_t own_size = run_pairs(tokens, kChosen, kExperts);
  run(ExpertForm::kBf16, own_size, true);
  run(ExpertForm::kE2m1, own_size, true);
  for (const int32_t few : {8, 16, is_gated ? 32 : 8}) run(ExpertForm::kE2m1, few, false);
  const bool few_agree = got[2] == got[3] && got[2] == got[4];
  double worst = 0;
  for (size_t i = 0; i < got[0].size(); ++i) {
    const double tiled = of_bf16(got[0][i]);
    const double error = std::abs(of_bf16(got[2][i]) - tiled) / (std::abs(tiled) / 60 + 2e-2);
    worst = std::isnan(error) ? 1e9 : std::max(worst, error);
  }
  if (!few_agree || worst > 1) {
    std::printf("WRONG few codes%s [%ld -> %ld] T %ld: bits %s, error %.2f\n",
                is_gated ? " gated" : "", in, out, tokens, few_agree ? "same" : "DIFFER", worst);
    return false;
  }
  if (got[0] == got[1]) return true;
  size_t differ = 0;
  for (size_t i = 0; i < got[0].size(); ++i) differ += got[0][i] != got[1][i] ? 1 : 0;
  std::printf("WRONG codes%s [%ld -> %ld] T %ld: %zu of %zu differ\n", is_gated ? " gated" : "", in,
              out, tokens, differ, got[0].size());
  return false;
}

}  // namespace

bool check_experts(cudaStream_t stream) {
  bool good = true;
  int cases = 0;
  for (const bool is_fp8 : {false, true}) {
    for (const bool is_gated : {false, true}) {
      for (const auto& [tokens, few] : std::vector<std::pair<int64_t, bool>>{{1, false},
                                                                             {3, false},
                                                                             {8, false},
                                                                             {9, false},
                                                                             {33, false},
                                                                             {64, false},
                                                                             {130, false},
                                                                             {513, false},
                                                                             {1, true},
                                                                             {5, true},
                                                                             {33, true},
                                                                             {130, true}}) {
        const int64_t unit = is_fp8 ? 16 : 8;
        const std::vector<ProductCase> all = {
            {16, 4, 17 * unit, 96, tokens, is_fp8, is_gated, !is_gated, false, 4},
            {8, 2, 8 * unit, 100, tokens, is_fp8, is_gated, false, true, 1},
            {128, 8, 24 * unit, 416, tokens, is_fp8, is_gated, !is_gated, true, 16},
            {12, 1, 130 * unit, 264, tokens, is_fp8, is_gated, true, false, 12}};
        for (ProductCase c : all) {
          c.has_few_pairs = few;
          bool same = false;
          const double worst = check(c, stream, same);
          ++cases;
          if (worst <= 1 && same) continue;
          good = false;
          std::printf("WRONG%s %s%s E %ld k %ld [%ld -> %ld] T %ld: error %.2f, bits %s\n",
                      few ? " few" : "", is_fp8 ? "fp8" : "bf16", is_gated ? " gated" : "",
                      c.experts, c.k, c.in, c.out, tokens, worst, same ? "same" : "DIFFER");
        }
      }
    }
  }
  for (const bool is_gated : {false, true}) {
    for (const int64_t tokens : {1, 8, 9, 40, 130, 600}) {
      good = check_codes(160, 112, tokens, is_gated, stream) && good;
      good = check_codes(2880, 352, tokens, is_gated, stream) && good;
      cases += 2;
    }
  }
  std::printf("%d products checked: %s\n", cases, good ? "good" : "WRONG");
  return good;
}

}  // namespace rudder::cuda
