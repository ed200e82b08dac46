// Checks the attention kernels against a plain one on the device, then times them. A program of its
// own, so that it runs on a bare machine with a GPU.
// attention_bench [check] [bench] [decode] [prefill] [gates|trees] [mma|wgmma] [bf16|fp8] [wide]:
// checks or timings only, of timings one kind only; `gates` beside the softmax kernels in turn,
// `trees` of drafts beside chains; `mma` and `wgmma` leave the other tiled kernel out, `bf16` and
// `fp8` timings of gates with the other cache; `wide` heads of 512 alone, timings beside heads of
// 256. Exit status 1 when a check fails, 3 when a kernel hangs.
#include "rudder/cuda/attention_bench.cuh"
#include "rudder/cuda/kernels/read_memory.h"

namespace {

// --- checks ---

std::mt19937 g_random(20250101);

int32_t pick(std::initializer_list<int32_t> from) {
  return from.begin()[g_random() % from.size()];
}

enum class Kind { kDecode, kVerify, kPrefill, kMixed };
const char* name_of(Kind kind) {
  const char* names[] = {"decode", "verify", "prefill", "mixed"};
  return names[static_cast<int>(kind)];
}

void add_sequence(Batch& batch, Kind kind, int32_t room) {
  if (kind == Kind::kMixed) kind = static_cast<Kind>(g_random() % 3);
  int32_t q_len = 1;
  if (kind == Kind::kVerify) q_len = 2 + static_cast<int32_t>(g_random() % 7);
  if (kind == Kind::kPrefill) q_len = pick({9, 15, 16, 17, 63, 64, 65, 100, 128, 200, 257});
  q_len = std::min(q_len, room);
  const int32_t kv =
      pick({0, 1, 15, 16, 17, 31, 63, 64, 127, 128, 129, 255, 256, 500, 1000, 2047, 3000});
  if (kv == 0 && kind == Kind::kDecode) {
    batch.add(1, 0);
    return;
  }
  // Of prefills the draw is the prefix.
  batch.add(q_len, kind == Kind::kPrefill ? kv + q_len : std::max(kv, q_len));
}

struct Case {
  AttentionConfig config;
  float softcap = 0;
  float scale = 1;
  rudder::cuda::GateParams gate;  // without sigma and gamma
  Batch batch;
  std::string text() const {
    char line[240];
    snprintf(line, sizeof line,
             "hd %d %s heads %d/%d window %d cap %g gate %d%s from %g, sparse from %d, seqs %d "
             "tokens %d whole %d %s",
             config.head_dim, config.kv_type == KvType::kBf16 ? "bf16" : "fp8", config.num_heads,
             config.num_kv_heads, config.window, softcap, gate.length, gate.relu_pre ? " relu" : "",
             gate.low, gate.least_sparse_pages, batch.seqs(), batch.tokens(),
             config.whole_sequences,
             config.prefill_kernel == PrefillKernel::kWgmma ? "wgmma" : "mma");
    return line;
  }
};

// Blocks of the sequences in a shuffled order; block 0 is all NaN, and every entry that no row sees
// names it. Fills the cache.
AttentionParams prepare(const Device& d, Case& c) {
  const AttentionConfig& config = c.config;
  Batch& batch = c.batch;
  const int32_t max_blocks = 256;
  std::vector<int32_t> tables(static_cast<size_t>(batch.seqs() + 1) * max_blocks, 0);
  std::vector<int32_t> ids;
  int32_t blocks = 1;
  for (int32_t kv : batch.kv_len) blocks += (kv + 15) / 16;
  for (int32_t b = 1; b < blocks; ++b) ids.push_back(b);
  std::shuffle(ids.begin(), ids.end(), g_random);
  std::vector<int32_t> valid(static_cast<size_t>(blocks), 0);
  batch.table_row.clear();
  size_t next = 0;
  for (int32_t s = 0; s < batch.seqs(); ++s) {
    batch.table_row.push_back(batch.seqs() - s);
    const int32_t q_len = batch.q_begin[s + 1] - batch.q_begin[s];
    const int32_t position = batch.kv_len[s] - q_len;
    // With whole_sequences tiles of keys begin where they always do, also in front of the window.
    const bool skips = config.window > 0 && !config.whole_sequences;
    const int32_t first = skips ? std::max(0, position - config.window + 1) : 0;
    for (int32_t b = 0; b * 16 < batch.kv_len[s]; ++b) {
      const int32_t id = ids[next++];
      if (b < first / 16) continue;
      tables[static_cast<size_t>(batch.seqs() - s) * max_blocks + b] = id;
      valid[id] = std::min(16, batch.kv_len[s] - b * 16);
    }
  }
  upload(d.tables, tables);
  upload(d.valid, valid);
  upload_batch(d, batch);
  const int32_t block_elements = 2 * config.num_kv_heads * 16 * config.head_dim;
  fill_cache<<<1024, 256>>>(d.cache, config.kv_type == KvType::kFp8E4m3,
                            int64_t{blocks} * block_elements, block_elements, config.head_dim,
                            d.valid, g_random());
  const int64_t q_count = int64_t{batch.tokens()} * config.num_heads * config.head_dim;
  fill_bf16<<<256, 256>>>(d.q, q_count, g_random());
  std::vector<float> scales;
  for (int i = 0; i < 2 * kMaxHeads; ++i) scales.push_back(0.5f + 0.1f * (i % 7));
  upload(d.scales, scales);
  // With a sigma below 0 the filter adds to scores, with one above the length nothing is left of
  // them.
  if (g_random() % 3 == 0) {
    for (int i = 0; i < kMaxHeads; i += 3) scales[i] = i % 2 == 0 ? -0.4f : 9.0f;
  }
  upload(d.gate_scales, scales);
  AttentionParams p;
  p.config = config;
  p.bounds = {batch.seqs(), batch.tokens(), batch.max_q_len};
  must(make_kv_tensor_map(d.cache, config.kv_type, blocks, config.num_kv_heads, config.head_dim,
                          &p.kv),
       "tensor map");
  if (config.kv_type == KvType::kFp8E4m3) {
    p.k_scale = d.scales;
    p.v_scale = d.scales + kMaxHeads;
  }
  p.block_table = d.tables;
  p.max_blocks = max_blocks;
  p.kv_storage = d.cache;
  p.scale = c.scale;
  p.softcap = c.softcap;
  p.gate = c.gate;
  p.gate.sigma = d.gate_scales;
  p.gate.gamma = d.gate_scales + kMaxHeads;
  p.q = d.q;
  p.out = d.out;
  p.workspace = {d.workspace, kMaxSeqs, kMaxTokens};
  return p;
}

std::vector<uint16_t> run_once(const Device& d, const AttentionParams& p, int64_t count) {
  must(cudaMemsetAsync(d.out, 0xff, count * 2, d.stream), "memset");
  must(launch_attention(p, d.stream), "attention");
  must(cudaStreamSynchronize(d.stream), "attention run");
  std::vector<uint16_t> out(static_cast<size_t>(count));
  must(cudaMemcpy(out.data(), d.out, count * 2, cudaMemcpyDeviceToHost), "download");
  return out;
}

struct Verdict {
  double worst = 0;  // relative error of a row: |out - expected| / |expected|, norms
  bool is_good = true;
  bool same_twice = true;
  int cases = 0;
  std::string worst_case;
};

// Of a row's relative error. fp8 tensor cores keep some 13 bits of a sum, relative to its largest
// part: where parts cancel, or a gate leaves little of a score, weights are off by more.
double limit_of(const Case& c) {
  if (!may_round(c.config)) return 1e-2;
  return c.gate.length > 0 ? 5e-2 : 1e-2 + 4e-5 * c.config.head_dim;
}

void check(const Device& d, Case& c, Verdict& verdict) {
  snprintf(g_now, sizeof g_now, "%s", c.text().c_str());
  alarm(20);
  AttentionParams p = prepare(d, c);
  const int64_t width = int64_t{c.config.num_heads} * c.config.head_dim;
  const int64_t count = width * c.batch.tokens();
  must(launch_attention_work(work_params_of(d, c.config, c.batch), d.stream), "work list");
  const std::vector<uint16_t> out = run_once(d, p, count);
  // A second layer under the same work list.
  p.reads_ahead = true;
  verdict.same_twice &= run_once(d, p, count) == out;
  // The same step again.
  must(launch_attention_work(work_params_of(d, c.config, c.batch), d.stream), "work list");
  p.reads_ahead = false;
  verdict.same_twice &= run_once(d, p, count) == out;
  if (c.gate.length > 0) {  // values that nobody weighs make no difference, read or not
    p.gate.least_sparse_pages = c.gate.least_sparse_pages > 1 ? 1 : 1000000;
    verdict.same_twice &= run_once(d, p, count) == out;
  }
  std::vector<double> errors = row_errors(d, p, out, false);
  if (may_round(c.config)) {  // a row that was split has its q as it came, others have it rounded
    const std::vector<double> rounded = row_errors(d, p, out, true);
    for (size_t i = 0; i < errors.size(); ++i) errors[i] = std::min(errors[i], rounded[i]);
  }
  const double worst = *std::max_element(errors.begin(), errors.end());
  verdict.is_good &= worst < limit_of(c);
  ++verdict.cases;
  if (worst >= verdict.worst) {
    verdict.worst = worst;
    verdict.worst_case = c.text();
  }
  alarm(0);
}

Case make_case(int32_t head_dim, KvType type, Kind kind, PrefillKernel kernel, bool is_gated,
               int32_t sms) {
  Case c;
  c.config.head_dim = head_dim;
  c.config.kv_type = type;
  c.config.prefill_kernel = kernel;
  c.config.num_sms = pick({sms, sms, 8});
  const int32_t group = pick({1, 2, 3, 4, 7, 8, 16});
  c.config.num_kv_heads = group >= 8 ? pick({1, 2}) : pick({1, 2, 3, 4});
  c.config.section_bytes = pick({1, 100'000, 300'000, 1 << 30});
  c.config.num_heads = c.config.num_kv_heads * group;
  c.config.window = pick({0, 0, 0, 1, 40, 128, 1000});
  c.config.whole_sequences = g_random() % 4 == 0;
  c.softcap = pick({0, 0, 30});
  // With a large scale maxima grow by more than a kernel lets them lag.
  const float spread = c.softcap > 0 ? 4.0f : g_random() % 2 == 0 ? 1.5f : 8.0f;
  c.scale = spread / std::sqrt(static_cast<float>(head_dim));
  if (is_gated) {
    c.softcap = 0;
    c.gate.length = pick({1, 2, 3, 3, 4, 5, 6, 7, 8});
    c.gate.relu_pre = g_random() % 2 == 0;
    if (g_random() % 3 == 0) c.gate.low = -0.5f;
    c.gate.least_sparse_pages = pick({1, 1, 1000000});
  }
  const int32_t seqs = pick({1, 2, 5, 13, 40});
  while (c.batch.seqs() < seqs && c.batch.tokens() < 600) add_sequence(c.batch, kind, 600);
  return c;
}

std::vector<int32_t> g_head_dims = {64, 96, 128, 256, 512};
bool is_wide(int32_t head_dim) {
  return head_dim > 256;  // without gates
}

// Prompts whose tiles are many more than blocks, so that these take one after the other, and few
// tiles behind long contexts, whose keys are cut.
bool check_long(const Device& d, int32_t head_dim, KvType type, bool is_gated) {
  Verdict v;
  for (const auto& [seqs, q_len, kv_len, group] : {std::tuple{4, 1024, 1024, 7},
                                                   {3, 700, 1333, 1},
                                                   {2, 1025, 1025, 4},
                                                   {1, 300, 3900, 4},
                                                   {2, 150, 2500, 7},
                                                   {1, 600, 4000, 4},
                                                   {1, 1500, 4000, 7}}) {
    Case c = make_case(head_dim, type, Kind::kPrefill, PrefillKernel::kWgmma, is_gated, d.sms);
    c.config.num_kv_heads = group == 1 ? 16 : 4;
    c.config.num_heads = c.config.num_kv_heads * group;
    c.config.num_sms = kv_len > 2000 ? d.sms : pick({d.sms, 20});
    c.config.window = pick({0, 0, 300});
    c.batch = Batch{};
    for (int i = 0; i < seqs; ++i) c.batch.add(q_len, kv_len);
    check(d, c, v);
  }
  const bool pass = v.is_good && v.same_twice;
  printf("%s hd %3d %-4s %-7s long prompts: worst row error %.2e, %s%s%s\n", pass ? "PASS" : "FAIL",
         head_dim, type == KvType::kBf16 ? "bf16" : "fp8", is_gated ? "gate" : "softmax", v.worst,
         v.same_twice ? "same twice" : "DIFFERS THE SECOND TIME",
         pass ? "" : "; worst: ", pass ? "" : v.worst_case.c_str());
  return pass;
}

// In whole_sequences mode a sequence gives the same bits alone as in company.
bool rows_are_independent(const Device& d, int32_t head_dim, KvType type, PrefillKernel kernel,
                          bool is_gated) {
  Case c = make_case(head_dim, type, Kind::kVerify, kernel, is_gated, d.sms);
  c.config.window = 0;
  c.config.whole_sequences = true;
  c.batch = Batch{};
  for (int i = 0; i < 20; ++i) add_sequence(c.batch, Kind::kDecode, 600);
  AttentionParams p = prepare(d, c);
  const int64_t width = int64_t{c.config.num_heads} * head_dim;
  must(launch_attention_work(work_params_of(d, c.config, c.batch), d.stream), "work list");
  const std::vector<uint16_t> all = run_once(d, p, width * c.batch.tokens());
  bool same = true;
  for (int32_t s = 0; s < c.batch.seqs(); ++s) {
    Batch one;
    one.add(1, c.batch.kv_len[s]);
    one.table_row.push_back(c.batch.table_row[s]);
    upload_batch(d, one);
    AttentionParams alone = p;
    alone.bounds = {1, 1, 1};
    alone.q = d.q + s * width;
    must(launch_attention_work(work_params_of(d, c.config, one), d.stream), "work list");
    const std::vector<uint16_t> row = run_once(d, alone, width);
    same &= std::equal(row.begin(), row.end(), all.begin() + s * width);
  }
  return same;
}

// One line of cases.
bool check_cases(const Device& d, int32_t head_dim, KvType type, Kind kind, PrefillKernel kernel,
                 bool is_gated) {
  const bool tiled = kind == Kind::kPrefill || kind == Kind::kMixed;
  Verdict v;
  for (int i = 0; i < 12; ++i) {
    Case c = make_case(head_dim, type, kind, kernel, is_gated, d.sms);
    check(d, c, v);
  }
  const bool pass = v.is_good && v.same_twice;
  printf("%s hd %3d %-4s %-7s %-7s %-5s: worst row error %.2e, %s, %d cases%s%s\n",
         pass ? "PASS" : "FAIL", head_dim, type == KvType::kBf16 ? "bf16" : "fp8",
         is_gated ? "gate" : "softmax", name_of(kind),
         !tiled                            ? "split"
         : kernel == PrefillKernel::kWgmma ? "wgmma"
                                           : "mma",
         v.worst, v.same_twice ? "same twice" : "DIFFERS THE SECOND TIME", v.cases,
         pass ? "" : "; worst: ", pass ? "" : v.worst_case.c_str());
  fflush(stdout);
  return pass;
}

bool check_all(const Device& d) {
  bool good = true;
  for (const int32_t head_dim : g_head_dims) {
    for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3}) {
      for (const bool is_gated : {false, true}) {
        if (is_gated && is_wide(head_dim)) continue;
        for (const Kind kind : {Kind::kDecode, Kind::kVerify, Kind::kPrefill, Kind::kMixed}) {
          for (const PrefillKernel kernel : g_kernels) {
            const bool tiled = kind == Kind::kPrefill || kind == Kind::kMixed;
            if (!tiled && kernel == PrefillKernel::kWgmma) continue;
            good &= check_cases(d, head_dim, type, kind, kernel, is_gated);
          }
        }
        if (g_kernels.back() == PrefillKernel::kWgmma) {
          good &= check_long(d, head_dim, type, is_gated);
        }
        for (const PrefillKernel kernel : g_kernels) {
          const bool independent = rows_are_independent(d, head_dim, type, kernel, is_gated);
          good &= independent;
          printf("%s hd %3d %-4s %-7s %-5s rows independent in whole_sequences mode\n",
                 independent ? "PASS" : "FAIL", head_dim, type == KvType::kBf16 ? "bf16" : "fp8",
                 is_gated ? "gate" : "softmax", kernel == PrefillKernel::kWgmma ? "wgmma" : "mma");
        }
      }
    }
  }
  return good;
}

// --- timing ---

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

struct Shape {
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
};

// Sequences of equal lengths, whose blocks lie in a shuffled order; `rotation` tables name
// different blocks, as far as the cache goes.
struct Timed {
  AttentionConfig config;
  Batch batch;
  AttentionParams p;
  int64_t table_words = 0;
  int rotation = 1;
};

Timed prepare_timed(const Device& d, const Shape& shape, KvType type, int32_t seqs, int32_t q_len,
                    int32_t kv_len, PrefillKernel kernel) {
  Timed t;
  t.config.num_heads = shape.heads;
  t.config.num_kv_heads = shape.kv_heads;
  t.config.head_dim = shape.head_dim;
  t.config.kv_type = type;
  t.config.prefill_kernel = kernel;
  t.config.num_sms = d.sms;
  for (int32_t s = 0; s < seqs; ++s) {
    t.batch.add(q_len, kv_len);
    t.batch.table_row.push_back(s);
  }
  const int64_t block_bytes =
      int64_t{2} * shape.kv_heads * 16 * shape.head_dim * (type == KvType::kBf16 ? 2 : 1);
  const int32_t per_seq = (kv_len + 15) / 16;
  const int64_t blocks = int64_t{per_seq} * seqs;
  const int64_t all = static_cast<int64_t>(d.cache_bytes) / block_bytes;
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
  p.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  p.q = d.q;
  p.out = d.out;
  p.workspace = {d.workspace, kMaxSeqs, kMaxTokens};
  return t;
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

void bench_decode(const Device& d, std::string& table) {
  char line[256];
  table += "decode: microseconds a layer (GB/s of cache read)\n";
  for (const Shape shape : {Shape{28, 4, 128}, Shape{32, 8, 128}}) {
    for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3}) {
      struct Point {
        int32_t seqs;
        int32_t kv;
      };
      std::vector<Point> points;
      for (const int32_t n : {1, 32, 128, 256, 512}) {
        for (const int32_t kv : {16, 64, 512, 1024, 2048}) points.push_back({n, kv});
      }
      points.push_back({1, 32768});
      points.push_back({1, 131072});
      snprintf(line, sizeof line, "  heads %d/%d %s:", shape.heads, shape.kv_heads,
               type == KvType::kBf16 ? "bf16" : "fp8");
      table += line;
      for (const Point& point : points) {
        snprintf(g_now, sizeof g_now, "decode bench n %d kv %d", point.seqs, point.kv);
        alarm(30);
        const Timed t =
            prepare_timed(d, shape, type, point.seqs, 1, point.kv, PrefillKernel::kMmaSync);
        const double us = time_layers(d, t, 20);
        const double bytes = 2.0 * point.seqs * point.kv * shape.kv_heads * shape.head_dim *
                             (type == KvType::kBf16 ? 2 : 1);
        snprintf(line, sizeof line, "%s%dx%d %.1f (%.0f)",
                 &point - points.data() == 0         ? " "
                 : (&point - points.data()) % 5 == 0 ? "\n    "
                                                     : "; ",
                 point.seqs, point.kv, us, bytes / us * 1e-3);
        table += line;
        alarm(0);
      }
      table += "\n";
    }
  }
  snprintf(g_now, sizeof g_now, "work list bench");
  for (const int32_t n : {1, 128, 512}) {
    const Timed t =
        prepare_timed(d, Shape{28, 4, 128}, KvType::kBf16, n, 1, 512, PrefillKernel::kMmaSync);
    const double us = time_graph(d, 20, [&](int) {
      must(launch_attention_work(work_params_of(d, t.config, t.batch), d.stream), "work list");
    });
    snprintf(line, sizeof line, "  work list of %d decodes: %.1f us\n", n, us);
    table += line;
  }
}

void bench_prefill(const Device& d, std::string& table) {
  char line[256];
  table += "prefill, causal: TFLOP/s (microseconds a layer)\n";
  struct Point {
    int32_t seqs;
    int32_t tokens;
    int32_t prefix;
  };
  for (const Shape shape :
       {Shape{16, 16, 128}, Shape{28, 4, 128}, Shape{32, 8, 64}, Shape{8, 4, 256}}) {
    for (const PrefillKernel kernel : g_kernels) {
      for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3}) {
        snprintf(line, sizeof line, "  heads %d/%d hd %d %s %s:", shape.heads, shape.kv_heads,
                 shape.head_dim, kernel == PrefillKernel::kWgmma ? "wgmma" : "mma",
                 type == KvType::kBf16 ? "bf16" : "fp8");
        table += line;
        for (const Point& point : {Point{16, 1024, 0}, Point{4, 2048, 0}, Point{1, 8192, 0},
                                   Point{1, 32768, 0}, Point{128, 16, 0}, Point{1, 512, 7680}}) {
          snprintf(g_now, sizeof g_now, "prefill bench %d x %d", point.seqs, point.tokens);
          alarm(30);
          const int32_t kv = point.tokens + point.prefix;
          const Timed t = prepare_timed(d, shape, type, point.seqs, point.tokens, kv, kernel);
          const double us = time_layers(d, t, point.tokens > 8192 ? 2 : 10);
          const double pairs = point.seqs * (double(point.tokens) * point.prefix +
                                             double(point.tokens) * (point.tokens + 1) / 2);
          snprintf(line, sizeof line, " %dx%d%s %.0f (%.0f)", point.seqs, point.tokens,
                   point.prefix > 0 ? "+7680" : "",
                   4.0 * shape.heads * shape.head_dim * pairs / us * 1e-6, us);
          table += line;
          alarm(0);
        }
        table += "\n";
      }
    }
  }
}

// --- heads of 512 beside heads of 256 ---

constexpr Shape kWideShapes[] = {{32, 4, 512}, {32, 16, 256}};

const char* name_of(KvType type) {
  return type == KvType::kBf16 ? "bf16" : "fp8";
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

void bench_wide_decode(const Device& d) {
  const double speed = read_bytes_a_us(d);
  printf("decode: microseconds a layer, share of %.0f GB/s\n", speed * 1e-3);
  for (const Shape& shape : kWideShapes) {
    for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3}) {
      printf("  heads %d/%d hd %d %s:", shape.heads, shape.kv_heads, shape.head_dim, name_of(type));
      for (const auto& [seqs, kv] : {std::pair{1, 128},
                                     {1, 1024},
                                     {1, 4096},
                                     {1, 16384},
                                     {1, 131072},
                                     {8, 1024},
                                     {32, 1024},
                                     {32, 4096},
                                     {128, 1024}}) {
        snprintf(g_now, sizeof g_now, "wide decode %d x %d", seqs, kv);
        alarm(30);
        const Timed t = prepare_timed(d, shape, type, seqs, 1, kv, PrefillKernel::kAuto);
        const double us = time_layers(d, t, 20);
        const double bytes =
            2.0 * seqs * kv * shape.kv_heads * shape.head_dim * (type == KvType::kBf16 ? 2 : 1);
        printf(" %dx%d %.1f (%.0f%%)", seqs, kv, us, 100 * bytes / speed / us);
        alarm(0);
      }
      printf("\n");
      fflush(stdout);
    }
  }
}

void bench_wide_prefill(const Device& d) {
  constexpr double kNominal = 989;  // TFLOP/s of bf16
  printf("prefill, causal: TFLOP/s, share of %.0f\n", kNominal);
  for (const Shape& shape : kWideShapes) {
    for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3}) {
      for (const PrefillKernel kernel : g_kernels) {
        printf("  heads %d/%d hd %d %s %s:", shape.heads, shape.kv_heads, shape.head_dim,
               kernel == PrefillKernel::kWgmma ? "wgmma" : "mma", name_of(type));
        for (const auto& [seqs, tokens, prefix] :
             {std::tuple{16, 1024, 0}, {4, 2048, 0}, {1, 8192, 0}, {1, 64, 8192}, {1, 512, 7680}}) {
          snprintf(g_now, sizeof g_now, "wide prefill %d x %d", seqs, tokens);
          alarm(60);
          const Timed t = prepare_timed(d, shape, type, seqs, tokens, tokens + prefix, kernel);
          const double us = time_layers(d, t, 4);
          const double pairs = seqs * (double(tokens) * prefix + double(tokens) * (tokens + 1) / 2);
          const double rate = 4.0 * shape.heads * shape.head_dim * pairs / us * 1e-6;
          printf(" %dx%d+%d %.0f (%.0f%%)", seqs, tokens, prefix, rate, 100 * rate / kNominal);
          alarm(0);
        }
        printf("\n");
        fflush(stdout);
      }
    }
  }
}

// --- trees of drafts beside chains ---

// Of each sequence's rows: row i follows row (i - 1) / 3.
void make_trees(const Device& d, Timed& t) {
  std::vector<uint64_t> ancestors;
  for (int32_t s = 0; s < t.batch.seqs(); ++s) {
    const auto first = static_cast<size_t>(t.batch.q_begin[s]);
    ancestors.push_back(1);
    for (size_t i = 1; first + i < static_cast<size_t>(t.batch.q_begin[s + 1]); ++i) {
      ancestors.push_back(ancestors[first + (i - 1) / 3] | uint64_t{1} << i);
    }
  }
  upload(d.ancestors, ancestors);
  t.p.ancestors = d.ancestors;
  t.p.bounds.max_q_len = 0;
}

void bench_trees(const Device& d, const std::vector<Shape>& shapes) {
  printf("trees of drafts: microseconds a layer of a decode, a chain, a tree\n");
  for (const Shape& shape : shapes) {
    for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3}) {
      printf("  heads %d/%d hd %d %s:", shape.heads, shape.kv_heads, shape.head_dim, name_of(type));
      for (const auto& [seqs, kv] : {std::pair{1, 1024}, {8, 1024}, {32, 1024}, {1, 16384}}) {
        snprintf(g_now, sizeof g_now, "trees %d x %d", seqs, kv);
        alarm(30);
        const auto prepared = [&, seqs = seqs, kv = kv](int32_t rows) {
          return prepare_timed(d, shape, type, seqs, rows, kv, PrefillKernel::kAuto);
        };
        printf(" %dx%d %.1f", seqs, kv, time_layers(d, prepared(1), 20));
        for (const int32_t rows : {5, 17, 64}) {
          Timed t = prepared(rows);
          const double chain = time_layers(d, t, 20);
          make_trees(d, t);
          printf(" [%d: %.1f %.1f]", rows, chain, time_layers(d, t, 20));
        }
        alarm(0);
      }
      printf("\n");
    }
  }
}

// --- gates beside softmaxes ---

// What all timings read but those of trained sparsity.
void fill_for_timing(const Device& d) {
  fill_bf16<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(d.cache),
                           static_cast<int64_t>(d.cache_bytes / 2), 7);
  fill_bf16<<<1024, 256>>>(d.q, int64_t{kMaxTokens} * 32 * 512, 9);
  must(cudaDeviceSynchronize(), "fill");
}

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
  printf("  heads %d/%d %s, sigma 1.5, dense and sparse:", shape.heads, shape.kv_heads,
         type == KvType::kBf16 ? "bf16" : "fp8");
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
      printf("  heads %d/%d %s:", shape.heads, shape.kv_heads, name_of(type));
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
    for (const Shape shape : {Shape{16, 8, 128}, Shape{8, 4, 128}, Shape{28, 4, 128}}) {
      for (const auto& [seqs, kv] : {std::pair{32, 128}, {32, 1024}, {128, 1024}, {1, 32768}}) {
        bench_gated_decode(d, shape, type, seqs, kv);
      }
    }
    bench_sparse_threshold(d, Shape{16, 8, 128}, type);
    bench_sparse_threshold(d, Shape{8, 4, 128}, type);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool checks = true;
  bool timings = true;
  bool decode = true;
  bool prefill = true;
  bool gates = false;
  bool trees = false;
  bool chunks = false;
  std::vector<KvType> types = {KvType::kBf16, KvType::kFp8E4m3};
  bool wide = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "check") timings = false;
    if (word == "bench") checks = false;
    if (word == "decode") prefill = false;
    if (word == "prefill") decode = false;
    if (word == "gates") gates = true;
    if (word == "trees") trees = true;
    if (word == "chunks") chunks = true;
    if (word == "wide") wide = true;
    if (word == "mma") g_kernels = {PrefillKernel::kMmaSync};
    if (word == "wgmma") g_kernels = {PrefillKernel::kWgmma};
    if (word == "bf16") types = {KvType::kBf16};
    if (word == "fp8") types = {KvType::kFp8E4m3};
  }
  if (wide) g_head_dims = {512};
  signal(SIGALRM, on_alarm);
  const Device device;
  bool good = true;
  if (checks) good = check_all(device);
  if (timings) {
    fill_for_timing(device);
    if (gates && decode) bench_gated_decodes(device, types);
    if (gates && prefill) {
      bench_gated_prefill(device, types, {{28, 4, 128}, {16, 16, 128}, {16, 8, 128}},
                          {{16, 1024, 0}, {4, 2048, 0}, {1, 8192, 0}, {1, 32768, 0}});
    }
    // Steps of long prompts and short prompts behind long contexts: tiles of nearly equal lengths.
    if (chunks) {
      bench_gated_prefill(device, types, {{32, 8, 128}, {28, 4, 128}, {16, 8, 128}},
                          {{1, 2048, 0},
                           {1, 2048, 2000},
                           {1, 2048, 6000},
                           {1, 2048, 14000},
                           {1, 512, 6000},
                           {1, 256, 16000}});
    }
    if (trees) {
      using Shapes = std::vector<Shape>;
      bench_trees(device, wide ? Shapes{{32, 4, 512}} : Shapes{{32, 8, 128}, {28, 4, 128}});
    }
    if (wide && decode && !trees) bench_wide_decode(device);
    if (wide && prefill && !trees) bench_wide_prefill(device);
    decode &= !gates && !trees && !chunks && !wide;
    prefill &= !gates && !trees && !chunks && !wide;
    std::string table;
    if (decode) bench_decode(device, table);
    if (prefill) bench_prefill(device, table);
    fputs(table.c_str(), stdout);
  }
  if (checks) printf("checks: %s\n", good ? "ALL PASS" : "SOME FAIL");
  return good ? 0 : 1;
}
