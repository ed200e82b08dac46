// Times what adapters add to the products of a layer of Llama-3.1-8B's shape, at rank 16: shrink in
// front of each and expand behind it, with kernels in place of the products that leave memory idle.
// A program of its own, so that it runs on a bare machine with a GPU. adapters_bench [rounds]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/kernels/adapters/adapters.h"
#include "rudder/cuda/kernels/measure/pause.h"
#include "rudder/ops/adapter_batch.h"

namespace rudder::cuda {
namespace {

constexpr int kRank = 16;
constexpr int kTableLayers = 8;
constexpr int kMostAdapters = 32;
constexpr int64_t kMostAdapted = 128;
constexpr int64_t kWidestAdapted = 28672;
constexpr int64_t kProductCycles = 20000;

struct Adapted {
  int64_t in;
  int parts;
  int64_t part_end[kMostAdapterParts];

  int64_t out() const { return part_end[parts - 1]; }
};
constexpr Adapted kAdaptedProducts[] = {{4096, 3, {4096, 5120, 6144}},
                                        {4096, 1, {4096, 0, 0}},
                                        {4096, 2, {14336, 28672, 0}},
                                        {14336, 1, {4096, 0, 0}}};

// Matrices of a product and their scales; no adapter has gains.
struct Matrices {
  explicit Matrices(const Adapted& product)
      : a(kMostAdapters * product.parts * kRank * product.in, 0x11),
        b(kMostAdapters * product.out() * kRank, 0x11),
        scales(scales_of(product)),
        gains(kMostAdapters * product.out()) {}
  static std::vector<float> scales_of(const Adapted& product) {
    std::vector<float> scales;
    for (int i = 0; i < kMostAdapters * product.parts; ++i) {
      scales.push_back(0.5f);
      scales.push_back(0.0f);
    }
    return scales;
  }

  Buffer<uint16_t> a;
  Buffer<uint16_t> b;
  Buffer<float> scales;
  Buffer<float> gains;
};

int run_adapters_bench(int rounds) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "stream");
  std::vector<std::unique_ptr<Matrices>> tables;
  for (int i = 0; i < kTableLayers; ++i) {
    for (const Adapted& product : kAdaptedProducts)
      tables.push_back(std::make_unique<Matrices>(product));
  }
  const Buffer<uint16_t> x(kMostAdapted * kWidestAdapted, 0x22);
  const Buffer<uint16_t> y(kMostAdapted * kWidestAdapted, 0x22);
  const Buffer<float> mid(kMostAdapted * kMostAdapterParts * kRank);
  const Buffer<uint8_t> flush(kFlushBytes);
  for (const int adapters : {1, kMostAdapters}) {
    for (const int64_t tokens : {1, 32, 128}) {
      if (adapters > tokens) continue;
      std::vector<int32_t> rows;
      rows.reserve(static_cast<size_t>(tokens));
      for (int64_t t = 0; t < tokens; ++t) rows.push_back(static_cast<int32_t>(t % adapters));
      std::vector<int32_t> order(rows.size());
      std::vector<ops::AdapterGroup> groups(rows.size());
      ops::group_tokens(rows, order, groups);
      groups.resize(static_cast<size_t>(ops::most_adapter_groups(tokens, adapters)));
      const Buffer<int32_t> d_order(order);
      const Buffer<ops::AdapterGroup> d_groups(groups);
      const auto enqueue = [&](bool shrinks, bool expands) {
        size_t at = 0;
        for (int layer = 0; layer < kTableLayers; ++layer) {
          for (const Adapted& product : kAdaptedProducts) {
            const Matrices& table = *tables[at++];
            AdapterParams p;
            p.x = x.data();
            p.order = d_order.data();
            p.groups = d_groups.data();
            p.tokens = tokens;
            p.in = product.in;
            p.out = product.out();
            p.most_groups = static_cast<int>(groups.size());
            p.a = table.a.data();
            p.b = table.b.data();
            p.scales = table.scales.data();
            p.gains = table.gains.data();
            p.parts = product.parts;
            p.rank = kRank;
            std::ranges::copy(product.part_end, p.part_end);
            p.mid = mid.data();
            p.y = y.data();
            if (shrinks) must(launch_shrink_adapters(p, stream), "shrink");
            must(launch_pause(kProductCycles, true, 132, stream), "product");
            if (expands) must(launch_expand_adapters(p, stream), "expand");
          }
        }
      };
      std::vector<std::unique_ptr<Graph>> graphs;
      for (const int kernels : {0, 1, 2}) {
        graphs.push_back(
            std::make_unique<Graph>(stream, [&] { enqueue(kernels > 0, kernels > 1); }));
      }
      const std::vector<double> us = time_graphs(graphs, rounds, flush, stream);
      std::printf("%2d adapters, %3ld tokens: us a layer: shrink %.2f, expand %.2f\n", adapters,
                  tokens, (us[1] - us[0]) / kTableLayers, (us[2] - us[1]) / kTableLayers);
    }
  }
  return 0;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::run_adapters_bench(argc > 1 ? std::atoi(argv[1]) : 15);
}
