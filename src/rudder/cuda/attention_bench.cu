// Checks the attention kernels against a plain one on the device, then times them. A program of its
// own, so that it runs on a bare machine with a GPU.
// attention_bench [HEAD_DIM] [check] [bench] [decode] [prefill] [mixed|gates|trees|chunks]
// [mma|wgmma] [bf16|fp8|tokens] [wide]: checks or timings only, checks of one head size, of timings
// one kind only; `mixed` decodes of different contexts, `gates` beside the softmax kernels in turn,
// `trees` of drafts beside chains, `chunks` of prompts behind contexts; `mma` and `wgmma` leave the
// other tiled kernel out, `bf16`, `fp8` and `tokens` (whose tokens have scales) the other caches;
// `wide` heads of 512 alone, timings beside heads of 256. Exit status 1 when a check fails, 3 when
// a kernel hangs.
#include "rudder/cuda/attention_bench.cuh"
#include "rudder/cuda/attention_bench_gates.cuh"
#include "rudder/cuda/attention_bench_timing.cuh"

namespace {

// --- checks ---

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
             config.head_dim, kv_type_name(config.kv_type), config.num_heads, config.num_kv_heads,
             config.window, softcap, gate.length, gate.relu_pre ? " relu" : "", gate.low,
             gate.least_sparse_pages, batch.seqs(), batch.tokens(), config.whole_sequences,
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
  // Noise in e4m3 is as good as any int8.
  fill_cache<<<1024, 256>>>(d.cache, rudder::cuda::is_narrow(config.kv_type),
                            int64_t{blocks} * block_elements, block_elements, config.head_dim,
                            d.valid, g_random());
  const int32_t block_scales = 2 * config.num_kv_heads * 16;
  if (scales_tokens(config.kv_type)) {
    fill_scales<<<256, 256>>>(d.token_scales, int64_t{blocks} * block_scales, block_scales, d.valid,
                              g_random());
  }
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
    p.scales.k = d.scales;
    p.scales.v = d.scales + kMaxHeads;
  }
  if (scales_tokens(config.kv_type)) {
    p.scales.tokens = d.token_scales;
    p.scales.token_pitch = block_scales;
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

std::vector<KvType> g_types = {KvType::kBf16, KvType::kFp8E4m3, KvType::kFp8Tokens,
                               KvType::kInt8Tokens};
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
         head_dim, kv_type_name(type), is_gated ? "gate" : "softmax", v.worst,
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
         pass ? "PASS" : "FAIL", head_dim, kv_type_name(type), is_gated ? "gate" : "softmax",
         name_of(kind),
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
    for (const KvType type : g_types) {
      if (scales_tokens(type) && is_wide(head_dim)) continue;
      for (const bool is_gated : {false, true}) {
        if (is_gated && (is_wide(head_dim) || scales_tokens(type))) continue;
        for (const Kind kind : {Kind::kDecode, Kind::kVerify, Kind::kPrefill, Kind::kMixed}) {
          for (const PrefillKernel kernel : g_kernels) {
            const bool tiled = kind == Kind::kPrefill || kind == Kind::kMixed;
            const bool has_one = !tiled || scales_tokens(type);
            if (has_one && kernel == PrefillKernel::kWgmma) continue;
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
                 independent ? "PASS" : "FAIL", head_dim, kv_type_name(type),
                 is_gated ? "gate" : "softmax", kernel == PrefillKernel::kWgmma ? "wgmma" : "mma");
        }
      }
    }
  }
  return good;
}

// --- timings ---

void bench_decode(const Device& d, std::string& table) {
  char line[256];
  table += "decode: microseconds a layer (GB/s of cache read)\n";
  for (const Shape shape : {Shape{28, 4, 128}, Shape{32, 8, 128}}) {
    for (const KvType type : g_types) {
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
               kv_type_name(type));
      table += line;
      for (const Point& point : points) {
        snprintf(g_now, sizeof g_now, "decode bench n %d kv %d", point.seqs, point.kv);
        alarm(30);
        const Timed t =
            prepare_timed(d, shape, type, point.seqs, 1, point.kv, PrefillKernel::kMmaSync);
        const double us = time_layers(d, t, 20);
        const double bytes = row_bytes(shape, type) * point.seqs * point.kv;
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

// Decodes whose contexts differ, as those of a server do, beside as many of their mean.
void bench_mixed_decodes(const Device& d) {
  const double speed = read_bytes_a_us(d);
  printf(
      "decodes of contexts drawn evenly: microseconds a layer (share of %.0f GB/s), all of the "
      "mean\n",
      speed * 1e-3);
  for (const Shape shape : {Shape{28, 4, 128}, Shape{32, 8, 128}, Shape{32, 8, 64}}) {
    for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3}) {
      printf("  heads %d/%d hd %d %s:", shape.heads, shape.kv_heads, shape.head_dim,
             kv_type_name(type));
      for (const Contexts& contexts : kMixedContexts) {
        for (const int32_t seqs : {32, 128, 256}) {
          snprintf(g_now, sizeof g_now, "mixed decodes %d of %d", seqs, contexts.most);
          alarm(30);
          const std::vector<int32_t> lengths = drawn_lengths(contexts, seqs);
          const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
          const auto timed = [&](const std::vector<int32_t>& kv_lens) {
            return time_layers(d, prepare_timed(d, shape, type, 1, kv_lens, PrefillKernel::kAuto),
                               20);
          };
          const double us = timed(lengths);
          const double even = timed(std::vector<int32_t>(seqs, static_cast<int32_t>(sum / seqs)));
          const double bytes =
              2.0 * sum * shape.kv_heads * shape.head_dim * (type == KvType::kBf16 ? 2 : 1);
          printf(" %dx%d-%d %.1f (%.0f%%) %.1f;", seqs, contexts.least, contexts.most, us,
                 100 * bytes / speed / us, even);
          alarm(0);
        }
      }
      printf("\n");
      fflush(stdout);
    }
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
      for (const KvType type : g_types) {
        if (scales_tokens(type) && kernel == PrefillKernel::kWgmma) continue;
        snprintf(line, sizeof line, "  heads %d/%d hd %d %s %s:", shape.heads, shape.kv_heads,
                 shape.head_dim, kernel == PrefillKernel::kWgmma ? "wgmma" : "mma",
                 kv_type_name(type));
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

void bench_wide_decode(const Device& d) {
  const double speed = read_bytes_a_us(d);
  printf("decode: microseconds a layer, share of %.0f GB/s\n", speed * 1e-3);
  for (const Shape& shape : kWideShapes) {
    for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3}) {
      printf("  heads %d/%d hd %d %s:", shape.heads, shape.kv_heads, shape.head_dim,
             kv_type_name(type));
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
               kernel == PrefillKernel::kWgmma ? "wgmma" : "mma", kv_type_name(type));
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
      printf("  heads %d/%d hd %d %s:", shape.heads, shape.kv_heads, shape.head_dim,
             kv_type_name(type));
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

}  // namespace

int main(int argc, char** argv) {
  bool checks = true;
  bool timings = true;
  bool decode = true;
  bool prefill = true;
  bool gates = false;
  bool mixed = false;
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
    if (word == "mixed") mixed = true;
    if (word == "trees") trees = true;
    if (word == "chunks") chunks = true;
    if (word == "wide") wide = true;
    if (word == "mma") g_kernels = {PrefillKernel::kMmaSync};
    if (std::isdigit(word[0]) != 0) g_head_dims = {std::stoi(word)};
    if (word == "wgmma") g_kernels = {PrefillKernel::kWgmma};
    if (word == "bf16") types = g_types = {KvType::kBf16};
    if (word == "fp8") types = g_types = {KvType::kFp8E4m3};
    if (word == "tokens") g_types = {KvType::kFp8Tokens, KvType::kInt8Tokens};
  }
  if (wide) g_head_dims = {512};
  signal(SIGALRM, on_alarm);
  const Device device;
  bool good = true;
  if (checks) good = check_all(device);
  if (timings) {
    fill_for_timing(device);
    if (mixed) bench_mixed_decodes(device);
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
    const bool is_special = mixed || gates || trees || chunks || wide;
    decode &= !is_special;
    prefill &= !is_special;
    std::string table;
    if (decode) bench_decode(device, table);
    if (prefill) bench_prefill(device, table);
    fputs(table.c_str(), stdout);
  }
  if (checks) printf("checks: %s\n", good ? "ALL PASS" : "SOME FAIL");
  return good ? 0 : 1;
}
