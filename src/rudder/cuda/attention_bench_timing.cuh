// Times the attention kernels: a step of sequences whose cache lies all over the device's memory, a
// layer after the other in a graph.
#pragma once

#include "rudder/cuda/attention_bench.cuh"
#include "rudder/cuda/kernels/measure/read_memory.h"

namespace {

// What all timings read but those of trained sparsity.
void fill_for_timing(const Device& d) {
  fill_bf16<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(d.cache),
                           static_cast<int64_t>(d.cache_bytes / 2), 7);
  fill_bf16<<<1024, 256>>>(d.q, int64_t{kMaxTokens} * 32 * 512, 9);
  fill_scales<<<256, 256>>>(d.token_scales, kTokenScales, 16, nullptr, 11);
  must(cudaDeviceSynchronize(), "fill");
}

// Median microseconds of one of `launches` that a graph replays.
double time_graph(const Device& d, int launches, const std::function<void(int)>& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must(cudaStreamBeginCapture(d.stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < launches; ++i) launch(i);
  must(cudaStreamEndCapture(d.stream, &graph), "end capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin;
  cudaEvent_t end;
  must(cudaEventCreate(&begin), "event");
  must(cudaEventCreate(&end), "event");
  for (int i = 0; i < 2; ++i) must(cudaGraphLaunch(exec, d.stream), "replay");
  std::vector<double> times;
  for (int i = 0; i < 11; ++i) {
    must(cudaEventRecord(begin, d.stream), "record");
    must(cudaGraphLaunch(exec, d.stream), "replay");
    must(cudaEventRecord(end, d.stream), "record");
    must(cudaEventSynchronize(end), "timed run");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    times.push_back(ms * 1e3 / launches);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return times[times.size() / 2];
}

// What the device reads a second, of the cache.
double read_bytes_a_us(const Device& d) {
  const double us = time_graph(d, 4, [&](int) {
    must(rudder::cuda::launch_read_memory({d.cache, static_cast<int64_t>(d.cache_bytes), d.sms,
                                           reinterpret_cast<uint32_t*>(d.expected)},
                                          d.stream),
         "read");
  });
  return static_cast<double>(d.cache_bytes) / us;
}

struct Shape {
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
};

// Sequences whose blocks lie in a shuffled order; `rotation` tables name different blocks, as far
// as the cache goes.
struct Timed {
  AttentionConfig config;
  Batch batch;
  AttentionParams p;
  int64_t table_words = 0;
  int rotation = 1;
};

// Bytes that one row of keys and values reads, beside its scales.
double row_bytes(const Shape& shape, KvType type) {
  return 2.0 * shape.kv_heads *
         (shape.head_dim * element_bytes(type) + (scales_tokens(type) ? 4 : 0));
}

// A sequence of `q_len` rows for each of `kv_lens`.
Timed prepare_timed(const Device& d, const Shape& shape, KvType type, int32_t q_len,
                    const std::vector<int32_t>& kv_lens, PrefillKernel kernel) {
  Timed t;
  t.config.num_heads = shape.heads;
  t.config.num_kv_heads = shape.kv_heads;
  t.config.head_dim = shape.head_dim;
  t.config.kv_type = type;
  t.config.prefill_kernel = kernel;
  t.config.num_sms = d.sms;
  const auto seqs = static_cast<int32_t>(kv_lens.size());
  for (int32_t s = 0; s < seqs; ++s) {
    t.batch.add(q_len, kv_lens[s]);
    t.batch.table_row.push_back(s);
  }
  const int64_t block_bytes =
      int64_t{2} * shape.kv_heads * 16 * shape.head_dim * element_bytes(type);
  const int32_t per_seq = (*std::max_element(kv_lens.begin(), kv_lens.end()) + 15) / 16;
  const int64_t blocks = int64_t{per_seq} * seqs;
  const int64_t all =
      std::min<int64_t>(static_cast<int64_t>(d.cache_bytes) / block_bytes,
                        scales_tokens(type) ? kTokenScales / (2 * shape.kv_heads * 16) : INT64_MAX);
  t.table_words = blocks;
  t.rotation =
      static_cast<int>(std::clamp<int64_t>((int64_t{256} << 20) / (blocks * block_bytes), 1, 20));
  std::vector<int32_t> ids(static_cast<size_t>(blocks * t.rotation));
  const int64_t pool = std::min<int64_t>(all, std::max<int64_t>(blocks * t.rotation, 1 << 15));
  std::vector<int32_t> order(static_cast<size_t>(pool));
  for (int64_t i = 0; i < pool; ++i) order[i] = static_cast<int32_t>(i);
  std::shuffle(order.begin(), order.end(), g_random);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = order[i % order.size()];
  upload(d.tables, ids);
  upload_batch(d, t.batch);
  AttentionParams& p = t.p;
  p.config = t.config;
  p.bounds = {seqs, t.batch.tokens(), q_len};
  must(make_kv_tensor_map(d.cache, type, all, shape.kv_heads, shape.head_dim, &p.kv), "map");
  p.block_table = d.tables;
  p.max_blocks = per_seq;
  p.kv_storage = d.cache;
  if (scales_tokens(type)) {
    p.scales.tokens = d.token_scales;
    p.scales.token_pitch = int64_t{2} * shape.kv_heads * 16;
  }
  p.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  p.q = d.q;
  p.out = d.out;
  p.workspace = {d.workspace, kMaxSeqs, kMaxTokens};
  return t;
}

// Of equal lengths.
Timed prepare_timed(const Device& d, const Shape& shape, KvType type, int32_t seqs, int32_t q_len,
                    int32_t kv_len, PrefillKernel kernel) {
  return prepare_timed(d, shape, type, q_len, std::vector<int32_t>(seqs, kv_len), kernel);
}

double time_layers(const Device& d, const Timed& t, int launches) {
  AttentionWorkParams work = work_params_of(d, t.config, t.batch);
  work.bounds = t.p.bounds;
  work.ancestors = t.p.ancestors;
  must(launch_attention_work(work, d.stream), "work list");
  return time_graph(d, launches, [&](int i) {
    AttentionParams p = t.p;
    p.block_table = d.tables + i % t.rotation * t.table_words;
    p.reads_ahead = i > 0;
    must(launch_attention(p, d.stream), "attention");
  });
}

// Contexts that differ, as those of a server do.
struct Contexts {
  int32_t least;
  int32_t most;
};
constexpr Contexts kMixedContexts[] = {{32, 576}, {16, 256}, {100, 3000}};

// Drawn evenly; the same whatever was timed before.
std::vector<int32_t> drawn_lengths(const Contexts& contexts, int32_t seqs) {
  std::mt19937 random(7);
  const auto span = static_cast<uint32_t>(contexts.most - contexts.least + 1);
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < seqs; ++i) {
    lengths.push_back(contexts.least + static_cast<int32_t>(random() % span));
  }
  return lengths;
}

}  // namespace
