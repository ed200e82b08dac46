#include "rudder/cpu/plain_attention.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/double_sums.h"
#include "rudder/cpu/kv_rows.h"
#include "rudder/cpu/tree_path.h"

namespace rudder::cpu {
namespace {

// q, k or v of one token: each head, or all heads as one vector, is normalised when a norm is
// given.
void plain_norm_heads(float* x, int64_t num_heads, int64_t head_dim, const ops::NormSpec& norm) {
  if (norm.empty()) return;
  const int64_t width = norm.weight.shape.numel();
  for (int64_t i = 0; i < num_heads * head_dim; i += width) {
    plain_norm(x + i, norm, width, x + i);
  }
}

}  // namespace

void plain_norm(const float* x, const ops::NormSpec& norm, int64_t width, float* out) {
  const float* const weight = norm.weight.as<float>();
  if (!norm.alpha.empty()) {
    const float* const alpha = norm.alpha.as<float>();
    for (int64_t i = 0; i < width; ++i) {
      out[i] = std::clamp(alpha[i] * x[i], -1.0f, 1.0f) * weight[i];
    }
    return;
  }
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += double{x[i]} * x[i];
  const float inverse =
      static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(width) + norm.eps));
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] * inverse * weight[i];
}

void rotate_row(float* x, const float* table, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float cosine = table[i];
    const float sine = table[half + i];
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cosine - b * sine;
    x[i + half] = b * cosine + a * sine;
  }
}

float soft_cap(float x, float cap) {
  return cap == 0.0f ? x : cap * std::tanh(x / cap);
}

void plain_qkv_prep(const ops::QkvPrepArgs& args, int64_t begin, int64_t end) {
  const int64_t head_dim = args.kv.head_dim;
  const int64_t kv_heads = args.kv.num_kv_heads;
  const int64_t q_width = args.num_heads * head_dim;
  const int64_t kv_width = kv_heads * head_dim;
  const int64_t half = args.rope.empty() ? 0 : args.rope.shape[2];
  const KvRows cache(args.kv);
  std::vector<float> k(static_cast<size_t>(kv_width));
  std::vector<float> v(static_cast<size_t>(kv_width));
  for (int64_t t = begin; t < end; ++t) {
    const float* row = args.qkv.as<float>() + t * (q_width + 2 * kv_width);
    float* q = args.q_out.as<float>() + t * q_width;
    std::copy_n(row, q_width, q);
    std::copy_n(row + q_width, kv_width, k.data());
    std::copy_n(row + q_width + kv_width, kv_width, v.data());
    const auto norm_q_and_k = [&] {
      plain_norm_heads(q, args.num_heads, head_dim, args.q_norm);
      plain_norm_heads(k.data(), kv_heads, head_dim, args.k_norm);
    };
    if (!args.norms_rotated) norm_q_and_k();
    plain_norm_heads(v.data(), kv_heads, head_dim, args.v_norm);
    const int64_t rope_row = args.rope_row.as<int32_t>()[t];
    if (half > 0) {
      const float* table = args.rope.as<float>() + rope_row * 2 * half;
      for (int64_t h = 0; h < args.num_heads; ++h) rotate_row(q + h * head_dim, table, half);
      for (int64_t h = 0; h < kv_heads; ++h) rotate_row(k.data() + h * head_dim, table, half);
    }
    if (args.norms_rotated) norm_q_and_k();
    if (!args.q_scale.empty()) {
      const float scale = args.q_scale.as<float>()[rope_row];
      for (int64_t i = 0; i < q_width; ++i) q[i] *= scale;
    }
    const int64_t slot = args.kv_slot.as<int32_t>()[t];
    if (slot < 0) continue;
    for (int h = 0; h < kv_heads; ++h) {
      cache.write(slot, 0, h, k.data() + h * head_dim);
      cache.write(slot, 1, h, v.data() + h * head_dim);
    }
  }
}

void plain_key(const ops::KvLayer& kv, int64_t slot, int64_t kv_head, float* out) {
  KvRows(kv).read(slot, 0, kv_head, out);
}

void plain_move(const ops::KvLayer& kv, int64_t from, int64_t to) {
  KvRows(kv).move(from, to);
}

double exponentials(std::span<float> scores, float sink) {
  float highest = sink;
  for (const float score : scores) highest = std::max(highest, score);
  double total = std::exp(sink - highest);
  for (float& score : scores) {
    score = std::exp(score - highest);
    total += score;
  }
  return total;
}

void apply_gate(std::span<float> scores, const ops::FirGate& gate, int head) {
  const float sigma = gate.sigma.as<float>()[head];
  // From the last on, so that the scores before a position are still scores.
  for (size_t j = scores.size(); j-- > 0;) {
    double sum = 0;
    for (size_t i = 0; i < static_cast<size_t>(gate.length) && i <= j; ++i) {
      const float score = scores[j - i];
      sum += gate.relu_pre && score < 0 ? 0 : score;
    }
    const double average = sum / gate.length;
    scores[j] = std::clamp(static_cast<float>(scores[j] - sigma * average), gate.low, gate.high);
  }
}

namespace {

struct Row {
  const float* q;         // [head_dim]
  const int32_t* blocks;  // the sequence's block table
  int64_t first = 0;      // key positions [first, last]
  int64_t last = 0;
  TreePath path;
  int head = 0;
  int kv_head = 0;
  float* out;  // [head_dim]
};

void attend(const ops::AttentionArgs& args, const Row& row) {
  const KvRows cache(args.kv);
  const int64_t head_dim = args.kv.head_dim;
  const int64_t block_size = args.kv.block_size;
  const auto slot_of = [&](int64_t at) {
    const int64_t position = row.path.offset_of(at);
    return row.blocks[position / block_size] * block_size + position % block_size;
  };
  std::vector<float> room(static_cast<size_t>(4 * head_dim));
  const auto part_of = [&](int64_t at, int part, int64_t index) {
    return cache.row(slot_of(at), part, row.kv_head, room.data() + index * head_dim);
  };
  const float score_scale = args.scale * cache.head_scale(0, row.kv_head);
  std::vector<float> weights;
  weights.reserve(static_cast<size_t>(row.last - row.first + 1));
  const auto add_score = [&](double dot) {
    const auto at = row.first + static_cast<int64_t>(weights.size());
    const float scaled =
        static_cast<float>(dot * double{cache.token_scale(slot_of(at), 0, row.kv_head)});
    weights.push_back(soft_cap(scaled * score_scale, args.softcap));
  };
  int64_t p = row.first;
  for (; p + 3 <= row.last; p += 4) {
    const FourRows keys = {part_of(p, 0, 0), part_of(p + 1, 0, 1), part_of(p + 2, 0, 2),
                           part_of(p + 3, 0, 3)};
    for (const double dot : sums_of_products(row.q, keys, head_dim)) add_score(dot);
  }
  for (; p <= row.last; ++p) add_score(sum_of_products(row.q, part_of(p, 0, 0), head_dim));
  double total = 1;
  double gamma = 1;
  if (args.gate.empty()) {
    const float sink = args.sinks.empty() ? -INFINITY : args.sinks.as<float>()[row.head];
    total = exponentials(weights, sink);
  } else {
    apply_gate(weights, args.gate, row.head);
    gamma = args.gate.gamma.as<float>()[row.head];
  }
  std::vector<double> sum(static_cast<size_t>(head_dim));
  for (p = row.first; p <= row.last; ++p) {
    const double weight = double{weights[static_cast<size_t>(p - row.first)]} *
                          double{cache.token_scale(slot_of(p), 1, row.kv_head)};
    add_weighted(sum.data(), weight, part_of(p, 1, 0), head_dim);
  }
  const float v_scale = cache.head_scale(1, row.kv_head);
  for (int64_t i = 0; i < head_dim; ++i) {
    row.out[i] = static_cast<float>(sum[static_cast<size_t>(i)] / total * gamma) * v_scale;
  }
}

}  // namespace

void plain_attention(const ops::AttentionArgs& args, const ops::AttentionBatch& batch,
                     ThreadPool* pool) {
  const int64_t head_dim = args.kv.head_dim;
  const int64_t q_width = args.num_heads * head_dim;
  const int group = args.num_heads / args.kv.num_kv_heads;
  std::vector<Row> rows;
  const int32_t* q_begin = batch.q_begin.as<int32_t>();
  const ops::View table = batch.table_of(args.kv.group);
  for (int64_t s = 0; s < batch.kv_len.num_rows(); ++s) {
    const int64_t begin = q_begin[s];
    const int64_t end = q_begin[s + 1];
    const int32_t kv_len = batch.kv_len.as<int32_t>()[s];
    if (kv_len == 0) {
      std::fill_n(args.out.as<float>() + begin * q_width, (end - begin) * q_width, 0.0f);
      continue;
    }
    const int32_t* blocks = table.rows(batch.table_row.as<int32_t>()[s], 1).as<int32_t>();
    for (int64_t t = begin; t < end; ++t) {
      const TreePath path = path_of(batch, t, kv_len - (end - begin));
      RUDDER_CHECK(path.empty() || (args.window == 0 && args.gate.empty()));
      const int64_t position = path.empty() ? kv_len - (end - t) : path.last();
      const int64_t first =
          args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : int64_t{0};
      for (int h = 0; h < args.num_heads; ++h) {
        const int64_t at = t * q_width + h * head_dim;
        rows.push_back({args.q.as<float>() + at, blocks, first, position, path, h, h / group,
                        args.out.as<float>() + at});
      }
    }
  }
  const auto run = [&](int64_t i) { attend(args, rows[static_cast<size_t>(i)]); };
  if (pool != nullptr && rows.size() > 1) {
    pool->parallel_for(std::ssize(rows), run);
  } else {
    for (int64_t i = 0; i < std::ssize(rows); ++i) run(i);
  }
}

}  // namespace rudder::cpu
