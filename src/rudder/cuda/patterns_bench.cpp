// Times the attention patterns of a step on a device, in the shape of an 8B model: kLayers layers,
// of which some are asked for. A program of its own, so that it runs on a bare machine with a GPU.
// patterns_bench [rounds]
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/kernels/patterns/patterns.h"

namespace rudder::cuda {
namespace {

constexpr int kLayers = 32;
constexpr int kHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kAskedLayers[] = {0, 1, kLayers};
constexpr int kAskedHeads[] = {1, 4, kHeads};

struct Step {
  int num_seqs;  // of one new token each
  int context;
  bool is_fp8;
};

// A record of all layers and heads, whatever is asked for.
int64_t record_units(const Step& step) {
  return int64_t{kLayers} * kHeads * step.context / tap::kCaptureAlign;
}

// What is asked of each layer.
std::vector<ops::PatternEntry> entries_of(const Step& step, int layers, int heads) {
  std::vector<ops::PatternEntry> entries(kLayers);
  for (int layer = 0; layer < layers; ++layer) {
    ops::PatternEntry& entry = entries[static_cast<size_t>(layer)];
    entry.offset = static_cast<int32_t>(layer * record_units(step) / kLayers);
    entry.keys = step.context;
    for (int head = 0; head < heads; ++head) entry.heads[head / 32] |= 1U << (head % 32);
  }
  return entries;
}

double floor_us(const Step& step, int layers, int heads) {
  const double rows = static_cast<double>(step.num_seqs) * layers * step.context;
  const int kv_heads = (heads + kHeads / kKvHeads - 1) / (kHeads / kKvHeads);
  return 1e6 * rows * (kv_heads * kHeadDim * (step.is_fp8 ? 1 : 2) + heads * 2) /
         kReadBytesPerSecond;
}

void time_patterns(const Step& step, int rounds, const Buffer<uint8_t>& flush,
                   cudaStream_t stream) {
  const int seqs = step.num_seqs;
  const int blocks = step.context / kAttentionBlockSize;  // of a sequence
  const int64_t layer_bytes =
      int64_t{seqs} * step.context * 2 * kKvHeads * kHeadDim * (step.is_fp8 ? 1 : 2);
  const Buffer<uint8_t> kv(layer_bytes * kLayers, 0x3c);
  const Buffer<uint16_t> q(int64_t{seqs} * kHeads * kHeadDim, 0x3c);
  const Buffer<uint16_t> ring(seqs * record_units(step) * tap::kCaptureAlign);
  const Buffer<float2> sums(seqs * record_units(step));
  std::vector<int32_t> numbers(static_cast<size_t>(seqs) * static_cast<size_t>(blocks) + 1);
  std::iota(numbers.begin(), numbers.end(), 0);
  const Buffer<int32_t> counted(numbers);
  std::vector<int32_t> begins;
  begins.reserve(static_cast<size_t>(seqs));
  for (int s = 0; s < seqs; ++s) begins.push_back(static_cast<int32_t>(s * record_units(step)));
  const Buffer<int32_t> capture_begin(begins);
  const Buffer<int32_t> capture_set(seqs);
  const Buffer<int32_t> kv_len(std::vector<int32_t>(static_cast<size_t>(seqs), step.context));

  std::vector<std::unique_ptr<Buffer<ops::PatternEntry>>> asks;
  std::vector<std::unique_ptr<Graph>> graphs;
  for (const int layers : kAskedLayers) {
    for (const int heads : kAskedHeads) {
      asks.push_back(std::make_unique<Buffer<ops::PatternEntry>>(entries_of(step, layers, heads)));
      graphs.push_back(std::make_unique<Graph>(stream, [&] {
        PatternParams params;
        for (int layer = 0; layer < kLayers; ++layer) {
          params.q = q.data();
          params.kv = kv.data() + layer * layer_bytes;
          params.kv_type = step.is_fp8 ? KvType::kFp8E4m3 : KvType::kBf16;
          params.batch.q_begin = counted.data();
          params.batch.kv_len = kv_len.data();
          params.table_row = counted.data();
          params.block_table = counted.data();
          params.max_blocks = blocks;
          params.batch.num_seqs = seqs;
          params.batch.num_tokens = seqs;
          params.num_heads = kHeads;
          params.num_kv_heads = kKvHeads;
          params.head_dim = kHeadDim;
          params.block_size = kAttentionBlockSize;
          params.scale = 0.0883883f;
          params.batch.capture_set = capture_set.data();
          params.batch.capture_begin = capture_begin.data();
          params.batch.entries = asks.back()->data();
          params.batch.num_layers = kLayers;
          params.layer = layer;
          params.batch.ring = ring.data();
          params.batch.sums = sums.data();
          must(launch_patterns(params, stream), "patterns");
        }
        must(launch_end_patterns(params.batch, 0, kLayers, stream), "sums");
      }));
    }
  }
  const std::vector<double> us = time_graphs(graphs, rounds, flush, stream);
  size_t i = 0;
  for (const int layers : kAskedLayers) {
    for (const int heads : kAskedHeads) {
      std::printf("%s%7d%9d%8d%7d%11.2f%11.2f\n", step.is_fp8 ? "fp8 " : "bf16", seqs, step.context,
                  layers, heads, us[i], floor_us(step, layers, heads));
      ++i;
    }
  }
}

int run_steps(int rounds) {
  constexpr Step kSteps[] = {{1, 256, false},    {1, 4096, false}, {1, 32768, false},
                             {1, 131072, false}, {32, 256, false}, {32, 4096, false},
                             {1, 32768, true},   {32, 4096, true}};
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const Buffer<uint8_t> flush(kFlushBytes);
  std::printf("KV  %7s%9s%8s%7s%11s%11s\n", "tokens", "context", "layers", "heads", "us/step",
              "floor us");
  for (const Step& step : kSteps) time_patterns(step, rounds, flush, stream);
  cudaStreamDestroy(stream);
  return 0;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::run_steps(argc > 1 ? std::atoi(argv[1]) : 15);
}
