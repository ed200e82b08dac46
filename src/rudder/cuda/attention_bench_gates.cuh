// Gates beside softmaxes: times both in turn, and counts what a gate leaves unread.
#pragma once

#include "rudder/cuda/attention_bench_timing.cuh"

namespace {

// In a trained model most scores are below 0. With these means and sigma 1 about as many weights
// are zero as in the demo (96.4 %, models/demo-hp1), which no sigma gives on scores around 0: one
// score in eight is above 0 behind two that are not.
void fill_as_trained(const Device& d, KvType type) {
  const bool is_fp8 = type == KvType::kFp8E4m3;
  const auto count = static_cast<int64_t>(d.cache_bytes / (is_fp8 ? 1 : 2));
  fill_cache<<<1024, 256>>>(d.cache, is_fp8, count, 1, 1, nullptr, 7, 0.5f);
  fill_bf16<<<1024, 256>>>(d.q, int64_t{kMaxTokens} * 32 * 128, 9, -0.37f);
  must(cudaDeviceSynchronize(), "fill");
}

struct Zeros {
  double weights;  // share
  double tokens;   // of those that no head weighs
};

Zeros measured_zeros(const Device& d, const Timed& t) {
  constexpr int32_t kSeqs = 2;
  const int32_t kv_len = t.batch.kv_len[0];
  const int32_t seqs = std::min(kSeqs, t.batch.seqs());
  unsigned long long* counts = device_array<unsigned long long>(2);
  must(cudaMemset(counts, 0, 16), "memset");
  must(cudaFuncSetAttribute(count_zeros, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 * 1024),
       "shared memory");
  count_zeros<<<dim3(seqs, t.config.num_kv_heads), 256, kv_len * 4>>>(
      t.p, d.cache, t.config.kv_type == KvType::kFp8E4m3, kv_len, counts);
  unsigned long long found[2];
  must(cudaMemcpy(found, counts, 16, cudaMemcpyDeviceToHost), "counts");
  cudaFree(counts);
  const double tokens = double(seqs) * kv_len * t.config.num_kv_heads;
  return {found[0] / (tokens * t.config.num_heads / t.config.num_kv_heads), found[1] / tokens};
}

// A gate of length 3 with the rectifier; its sigma decides how many weights are zero.
void set_gate(const Device& d, Timed& t, float sigma, float low) {
  std::vector<float> scales(2 * kMaxHeads, 1.0f);
  std::fill(scales.begin(), scales.begin() + kMaxHeads, sigma);
  upload(d.gate_scales, scales);
  t.p.gate.least_sparse_pages =
      rudder::cuda::least_sparse_pages_of(t.config.head_dim, t.config.kv_type);
  t.p.gate.length = 3;
  t.p.gate.relu_pre = true;
  t.p.gate.low = low;
  t.p.gate.sigma = d.gate_scales;
  t.p.gate.gamma = d.gate_scales + kMaxHeads;
}

// Medians of the two in turn.
struct InTurn {
  double softmax;
  double gate;
};
InTurn time_in_turn(const Device& d, Timed& t, int launches) {
  const rudder::cuda::GateParams gate = t.p.gate;
  std::vector<double> times[2];
  for (int i = 0; i < 6; ++i) {
    t.p.gate = i % 2 == 0 ? rudder::cuda::GateParams{} : gate;
    times[i % 2].push_back(time_layers(d, t, launches));
  }
  for (auto& list : times) std::sort(list.begin(), list.end());
  t.p.gate = gate;
  return {times[0][1], times[1][1]};
}

void bench_gated_decode(const Device& d, const Shape& shape, KvType type, int32_t seqs,
                        int32_t kv) {
  snprintf(g_now, sizeof g_now, "gated decode %d x %d", seqs, kv);
  alarm(60);
  Timed t = prepare_timed(d, shape, type, seqs, 1, kv, PrefillKernel::kMmaSync);
  const double bytes =
      2.0 * seqs * kv * shape.kv_heads * shape.head_dim * (type == KvType::kBf16 ? 2 : 1);
  printf("  heads %d/%d hd %d %s %d x %d:", shape.heads, shape.kv_heads, shape.head_dim,
         type == KvType::kBf16 ? "bf16" : "fp8", seqs, kv);
  const auto time_gate = [&](float sigma, float low) {
    set_gate(d, t, sigma, low);
    const Zeros zeros = measured_zeros(d, t);
    const InTurn us = time_in_turn(d, t, 20);
    const double read = bytes * (0.5 + 0.5 * (1 - zeros.tokens));
    printf(" [p zero %.0f%%, unread %.0f%%: softmax %.1f, gate %.1f us, %.2f, %.0f GB/s]",
           100 * zeros.weights, 100 * zeros.tokens, us.softmax, us.gate, us.gate / us.softmax,
           read / us.gate * 1e-3);
  };
  time_gate(0.0f, -1.0f);  // nothing is zero
  for (const float sigma : {0.0f, 1.0f, 1.5f, 2.0f, 2.6f}) time_gate(sigma, 0.0f);
  fill_as_trained(d, type);
  time_gate(1.0f, 0.0f);
  fill_for_timing(d);
  printf("\n");
  fflush(stdout);
  alarm(0);
}

// Where reading values sparsely begins to pay: the same decode with and without.
void bench_sparse_threshold(const Device& d, const Shape& shape, KvType type) {
  printf("  heads %d/%d hd %d %s, sigma 1.5, dense and sparse:", shape.heads, shape.kv_heads,
         shape.head_dim, kv_type_name(type));
  for (const auto& [seqs, kv] : {std::pair{1, 2048},
                                 {4, 1024},
                                 {32, 128},
                                 {32, 256},
                                 {32, 384},
                                 {32, 512},
                                 {32, 768},
                                 {32, 1024},
                                 {128, 128},
                                 {128, 256}}) {
    snprintf(g_now, sizeof g_now, "threshold %d x %d", seqs, kv);
    alarm(30);
    Timed t = prepare_timed(d, shape, type, seqs, 1, kv, PrefillKernel::kMmaSync);
    set_gate(d, t, 1.5f, 0.0f);
    double us[2];
    for (const int sparse : {0, 1}) {
      t.p.gate.least_sparse_pages = sparse != 0 ? 1 : 1 << 30;
      us[sparse] = time_layers(d, t, 20);
    }
    const double pages = double(seqs) * ((kv + 15) / 16) * shape.kv_heads / (2 * d.sms);
    printf(" %dx%d (%.0f pages) %.1f %.1f;", seqs, kv, pages, us[0], us[1]);
    alarm(0);
  }
  printf("\n");
  fflush(stdout);
}

struct Prompts {
  int32_t seqs;
  int32_t tokens;
  int32_t prefix;  // tokens in front of them
};

void bench_gated_prefill(const Device& d, const std::vector<KvType>& types,
                         const std::vector<Shape>& shapes, const std::vector<Prompts>& points) {
  printf("prefill, causal: TFLOP/s of softmax, gate\n");
  for (const Shape shape : shapes) {
    for (const KvType type : types) {
      printf("  heads %d/%d %s:", shape.heads, shape.kv_heads, kv_type_name(type));
      for (const auto& [seqs, tokens, prefix] : points) {
        snprintf(g_now, sizeof g_now, "gated prefill %d x %d behind %d", seqs, tokens, prefix);
        alarm(60);
        Timed t =
            prepare_timed(d, shape, type, seqs, tokens, tokens + prefix, PrefillKernel::kWgmma);
        set_gate(d, t, 1.5f, 0.0f);
        const InTurn us = time_in_turn(d, t, tokens > 8192 ? 1 : 8);
        const double flop = 4e-6 * shape.heads * shape.head_dim * seqs * double(tokens) *
                            (prefix + (tokens + 1) / 2.0);
        printf(" %dx%d", seqs, tokens);
        if (prefix > 0) printf("+%d", prefix);
        printf(" %.0f, %.0f;", flop / us.softmax, flop / us.gate);
        alarm(0);
      }
      printf("\n");
      fflush(stdout);
    }
  }
}

void bench_gated_decodes(const Device& d, const std::vector<KvType>& types) {
  printf("gated decode, us a layer\n");
  for (const KvType type : types) {
    for (const Shape shape : {Shape{16, 8, 128}, Shape{8, 4, 128}, Shape{28, 4, 128},
                              Shape{32, 8, 64}, Shape{8, 4, 256}}) {
      for (const auto& [seqs, kv] : {std::pair{32, 128}, {32, 1024}, {128, 1024}, {1, 32768}}) {
        bench_gated_decode(d, shape, type, seqs, kv);
      }
    }
    for (const Shape shape :
         {Shape{16, 8, 128}, Shape{8, 4, 128}, Shape{32, 8, 64}, Shape{8, 4, 256}}) {
      bench_sparse_threshold(d, shape, type);
    }
  }
}

}  // namespace
