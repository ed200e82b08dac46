// Times the ops of attention over short rows at the shapes of models: attention beside the floor of
// its bytes and of its sums, and each head's products beside that of their weights. A program of
// its own, so that it runs on a bare machine with a GPU. A figure is of a captured graph of some
// layers, whose caches and weights are different ones. The L2 cache holds something else when one
// begins.
// latents_bench [part of a shape's name]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/experts_bench.h"
#include "rudder/cuda/kernels/latents/latent_attention.h"
#include "rudder/cuda/kernels/latents/latent_product.h"
#include "rudder/cuda/kernels/latents/latent_rows.h"

namespace rudder::cuda {
namespace {

// One H200.
constexpr double kCopyBytesPerSecond = 4.0e12;
constexpr double kFlopPerSecond = 990e12;
constexpr int32_t kBlockTokens = 16;
constexpr int64_t kLeastBytes = int64_t{512} << 20;  // of all layers of a figure, as far as 8 give

struct LatentModel {
  const char* name;
  int32_t heads;
  int32_t nope_dim;
  int32_t value_dim;
  int32_t rank;
  int32_t rope_dim = 64;

  int32_t row() const { return rank + rope_dim; }
  int64_t part_elements(bool absorbs) const {
    return int64_t{heads} * (absorbs ? nope_dim : value_dim) * rank;
  }
};

struct LatentStep {
  int32_t seqs;
  int32_t each;  // tokens of a sequence in the step
  int32_t keys;  // with them
};

void fill_with_numbers(void* to, int64_t bytes) {
  static const Numbers some(int64_t{4} << 20, false);
  for (int64_t at = 0; at < bytes; at += std::ssize(some.bytes)) {
    must(cudaMemcpy(static_cast<uint8_t*>(to) + at, some.bytes.data(),
                    static_cast<size_t>(std::min<int64_t>(std::ssize(some.bytes), bytes - at)),
                    cudaMemcpyHostToDevice),
         "fill");
  }
}

std::vector<int32_t> multiples(int32_t count, int32_t step) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = i * step;
  return values;
}

// Blocks of all sequences, in an order of no pattern.
std::vector<int32_t> shuffled(int32_t count) {
  std::vector<int32_t> values = multiples(count, 1);
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[next_random() % i]);
  return values;
}

void bench_attention(const LatentModel& model, const LatentStep& one, const Buffer<uint8_t>& flush,
                     cudaStream_t stream) {
  const int32_t each_blocks = (one.keys + kBlockTokens - 1) / kBlockTokens;
  const int64_t cache = int64_t{one.seqs} * each_blocks * kBlockTokens * model.row() * 2;
  const auto layers = static_cast<int32_t>(std::clamp<int64_t>(kLeastBytes / cache, 1, 8));
  const int32_t tokens = one.seqs * one.each;
  const Buffer<uint8_t> kv(cache * layers);
  const Buffer<uint16_t> q(int64_t{tokens} * model.heads * model.row());
  const Buffer<uint16_t> out(int64_t{tokens} * model.heads * model.row());
  fill_with_numbers(kv.data(), cache * layers);
  fill_with_numbers(q.data(), static_cast<int64_t>(q.bytes()));
  const Buffer<int32_t> q_begin(multiples(one.seqs + 1, one.each));
  const Buffer<int32_t> kv_len(std::vector<int32_t>(static_cast<size_t>(one.seqs), one.keys));
  const Buffer<int32_t> table_row(multiples(one.seqs, 1));
  const Buffer<int32_t> table(shuffled(one.seqs * each_blocks));
  LatentAttentionParams p;
  p.config = {model.heads, model.row(), model.rank, false, kMultiprocessors};
  p.bounds = {one.seqs, tokens, one.each};
  p.q_begin = q_begin.data();
  p.kv_len = kv_len.data();
  p.table_row = table_row.data();
  p.block_table = table.data();
  p.max_blocks = each_blocks;
  p.block_size = kBlockTokens;
  p.scale = 0.05f;
  p.q = q.data();
  p.out = out.data();
  const auto graph_of = [&](bool is_whole, int plans, int32_t attentions) {
    p.config.whole_sequences = is_whole;
    return std::make_unique<Graph>(stream, [&] {
      for (int i = 0; i < plans; ++i) must(launch_latent_plan(p, stream), "plan");
      for (int32_t i = 0; i < attentions; ++i) {
        LatentAttentionParams of_layer = p;
        of_layer.kv = kv.data() + i * cache;
        of_layer.reads_ahead = i > 0;
        must(launch_latent_attention(of_layer, stream), "attention");
      }
    });
  };
  LatentAttentionConfig most = p.config;
  const Buffer<uint8_t> workspace(static_cast<int64_t>(latent_workspace_bytes(most, one.seqs)));
  p.workspace = workspace.data();
  std::vector<std::unique_ptr<Graph>> graphs;
  graphs.push_back(graph_of(false, 1, 0));
  graphs.push_back(graph_of(false, 1, layers));
  graphs.push_back(graph_of(true, 1, layers));
  const std::vector<double> us = time_graphs(graphs, 11, flush, stream);
  const double split = (us[1] - us[0]) / layers;
  const double whole = (us[2] - us[0]) / layers;
  // Keys that all tokens of a sequence see, and that each sees.
  const double seen = static_cast<double>(one.each) * (one.keys - 0.5 * (one.each - 1));
  const double bytes = static_cast<double>(one.seqs) * one.keys * model.row() * 2 +
                       2.0 * tokens * model.heads * (model.row() + model.rank);
  const double flop = 2.0 * one.seqs * seen * model.heads * (model.row() + model.rank);
  const double floor = std::max(bytes / kCopyBytesPerSecond, flop / kFlopPerSecond) * 1e6;
  std::printf(
      "  %4d x %4d of %6d keys: %8.1f us (whole sequences %8.1f, plan %4.1f)  floor %7.1f  %5.1f %%"
      "  %5.2f TB/s %5.1f %%  %5.0f TFLOP/s %5.1f %%\n",
      one.seqs, one.each, one.keys, split, whole, us[0], floor, 100 * floor / split,
      bytes / split * 1e-6, 100 * bytes / split * 1e6 / kCopyBytesPerSecond, flop / split * 1e-6,
      100 * flop / split * 1e6 / kFlopPerSecond);
  std::fflush(stdout);
}

void bench_products(const LatentModel& model, int32_t tokens, bool is_fp8,
                    const Buffer<uint8_t>& flush, cudaStream_t stream) {
  constexpr int32_t kLayers = 8;
  const int32_t head_rows = model.nope_dim + model.value_dim;
  const int64_t rows = int64_t{model.heads} * head_rows;
  const int64_t bytes = rows * model.rank * (is_fp8 ? 1 : 2);
  const Buffer<uint8_t> weights(bytes * kLayers);
  fill_with_numbers(weights.data(), bytes * kLayers);
  const Buffer<float> scales(std::vector<float>(static_cast<size_t>(rows), 0.01f));
  const int64_t wide = int64_t{model.heads} * model.row();
  const int64_t query = int64_t{model.heads} * (model.nope_dim + model.rope_dim);
  const Buffer<uint16_t> x(tokens * std::max(wide, query));
  const Buffer<uint16_t> out(tokens * std::max(wide, query));
  fill_with_numbers(x.data(), static_cast<int64_t>(x.bytes()));
  const auto product_of = [&](bool absorbs, int32_t layer) {
    LatentProductParams p;
    p.absorbs = absorbs;
    p.tokens = tokens;
    p.num_heads = model.heads;
    p.inner = absorbs ? model.nope_dim : model.rank;
    p.outer = absorbs ? model.rank : model.value_dim;
    p.weight = weights.data() + layer * bytes;
    p.weight_scale = is_fp8 ? scales.data() : nullptr;
    p.first_row = absorbs ? 0 : model.nope_dim;
    p.head_rows = head_rows;
    p.x = x.data();
    p.x_token = absorbs ? query : wide;
    p.x_head = absorbs ? model.nope_dim + model.rope_dim : model.row();
    p.out = out.data();
    p.out_token = absorbs ? wide : int64_t{model.heads} * model.value_dim;
    p.out_head = absorbs ? model.row() : model.value_dim;
    return p;
  };
  const auto graph_of = [&](bool absorbs) {
    return std::make_unique<Graph>(stream, [&] {
      for (int32_t i = 0; i < kLayers; ++i) {
        must(launch_latent_product(product_of(absorbs, i), stream), "product");
      }
    });
  };
  const Buffer<float> norm(std::vector<float>(static_cast<size_t>(model.rank), 1.0f));
  const Buffer<int32_t> slots(multiples(tokens, 1));
  const Buffer<uint16_t> kv(int64_t{tokens + kBlockTokens} * model.row());
  const Buffer<float> angles(
      std::vector<float>(static_cast<size_t>(tokens * model.rope_dim), 0.7f));
  std::vector<std::unique_ptr<Graph>> graphs;
  graphs.push_back(graph_of(true));
  graphs.push_back(graph_of(false));
  graphs.push_back(std::make_unique<Graph>(stream, [&] {
    for (int32_t i = 0; i < kLayers; ++i) {
      LatentRowsParams p;
      p.q = x.data();
      p.latent = x.data();
      p.tokens = tokens;
      p.num_heads = model.heads;
      p.nope_dim = model.nope_dim;
      p.rope_dim = model.rope_dim;
      p.rank = model.rank;
      p.norm = norm.data();
      p.eps = 1e-6f;
      p.rope = angles.data();
      p.half = model.rope_dim / 2;
      p.rope_row = slots.data();
      p.neighbours = true;
      p.kv_slot = slots.data();
      p.kv = kv.data();
      p.q_out = out.data();
      must(launch_latent_prep(product_of(true, i), p, stream), "prep");
    }
  }));
  const std::vector<double> us = time_graphs(graphs, 11, flush, stream);
  std::printf("  %5d tokens, %s:", tokens, is_fp8 ? "fp8 " : "bf16");
  for (const bool absorbs : {true, false}) {
    const double time = us[absorbs ? 0 : 1] / kLayers;
    const double elements = static_cast<double>(model.part_elements(absorbs));
    const double floor = std::max(elements * (is_fp8 ? 1 : 2) / kCopyBytesPerSecond,
                                  2 * elements * tokens / kFlopPerSecond) *
                         1e6;
    std::printf("  %s %6.1f us, floor %5.1f, %5.1f %%", absorbs ? "absorb" : "values", time, floor,
                100 * floor / time);
  }
  std::printf("  absorb with rows %5.1f us\n", us[2] / kLayers);
  std::fflush(stdout);
}

int run_latents_bench(std::string_view part) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "stream");
  const Buffer<uint8_t> flush(kFlushBytes);
  for (const LatentModel& model : {LatentModel{"GLM-4.7-Flash", 20, 192, 256, 512},
                                   {"DeepSeek V2 Lite", 16, 128, 128, 512},
                                   {"DeepSeek V3", 128, 128, 128, 512},
                                   {"Mistral Small 4", 32, 64, 128, 256}}) {
    if (std::string_view(model.name).find(part) == std::string_view::npos) continue;
    std::printf("%s: a layer's attention, of sequences x tokens\n", model.name);
    for (const int32_t seqs : {1, 32, 128}) {
      for (const int32_t keys : {512, 4096, 16384}) {
        bench_attention(model, {seqs, 1, keys}, flush, stream);
      }
    }
    bench_attention(model, {32, 4, 4096}, flush, stream);
    bench_attention(model, {1, 2048, 2048}, flush, stream);
    bench_attention(model, {1, 2048, 8192}, flush, stream);
    std::printf("%s: a layer's products\n", model.name);
    for (const bool is_fp8 : {false, true}) {
      for (const int32_t tokens : {1, 32, 128, 2048}) {
        bench_products(model, tokens, is_fp8, flush, stream);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::run_latents_bench(argc > 1 ? argv[1] : "");
}
