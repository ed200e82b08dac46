#include "rudder/cpu/latents.h"

#include <algorithm>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/double_sums.h"
#include "rudder/cpu/kv_rows.h"
#include "rudder/cpu/plain_attention.h"

namespace rudder::cpu {
namespace {

template <typename Run>
void for_heads(ThreadPool* pool, int64_t count, const Run& run) {
  if (pool != nullptr && count > 1) {
    pool->parallel_for(count, run);
  } else {
    for (int64_t i = 0; i < count; ++i) run(i);
  }
}

// Rows of a head's part of the weight: those of its keys, or of its values.
std::vector<float> head_rows(const ops::LatentShape& shape, const ops::LinearWeight& up,
                             int64_t head, bool values, ReadWeightRow read_row) {
  const int64_t first =
      head * (int64_t{shape.nope_dim} + shape.value_dim) + (values ? shape.nope_dim : 0);
  const int64_t count = values ? shape.value_dim : shape.nope_dim;
  std::vector<float> rows(static_cast<size_t>(count * shape.rank));
  for (int64_t i = 0; i < count; ++i) read_row(up, first + i, rows.data() + i * shape.rank);
  return rows;
}

// Turns pairs of neighbours by the angles of a row of the table.
void rotate_neighbours(float* x, const float* table, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float cosine = table[i];
    const float sine = table[half + i];
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cosine - b * sine;
    x[2 * i + 1] = b * cosine + a * sine;
  }
}

void rotate(const ops::LatentPrepArgs& args, int64_t token, float* x) {
  if (args.rope.empty()) return;
  const int64_t half = args.rope.shape[2];
  const int64_t row = args.rope_row.as<int32_t>()[token];
  const float* const table = args.rope.as<float>() + row * 2 * half;
  if (args.neighbours) {
    rotate_neighbours(x, table, half);
  } else {
    rotate_row(x, table, half);
  }
}

// What is kept of a token.
void keep_row(const ops::LatentPrepArgs& args, int64_t token) {
  const int64_t slot = args.kv_slot.as<int32_t>()[token];
  if (slot < 0) return;
  const int64_t width = args.shape.row();
  const float* const from = args.latent.as<float>() + token * width;
  std::vector<float> row(from, from + width);
  plain_norm(from, args.norm, args.shape.rank, row.data());
  rotate(args, token, row.data() + args.shape.rank);
  KvRows(args.kv).write(slot, 0, 0, row.data());
}

// A head's query over the rows that are kept. `keys`: [nope_dim, rank].
void absorb(const ops::LatentPrepArgs& args, int64_t token, int64_t head, const float* keys,
            std::vector<double>& sums) {
  const ops::LatentShape& shape = args.shape;
  const int64_t at = token * shape.num_heads + head;
  const float* const q = args.q.as<float>() + at * shape.query_dim();
  float* const out = args.q_out.as<float>() + at * shape.row();
  std::ranges::fill(sums, 0);
  for (int64_t i = 0; i < shape.nope_dim; ++i) {
    add_weighted(sums.data(), double{q[i]}, keys + i * shape.rank, shape.rank);
  }
  std::ranges::transform(sums, out, [](double sum) { return static_cast<float>(sum); });
  std::copy_n(q + shape.nope_dim, shape.rope_dim, out + shape.rank);
  rotate(args, token, out + shape.rank);
  if (args.q_scale.empty()) return;
  const float scale = args.q_scale.as<float>()[args.rope_row.as<int32_t>()[token]];
  for (int64_t i = 0; i < shape.row(); ++i) out[i] *= scale;
}

}  // namespace

void Latents::latent_prep(const ops::LatentPrepArgs& args) {
  const ops::LatentShape& shape = args.shape;
  RUDDER_CHECK(args.kv.parts == 1 && args.kv.num_kv_heads == 1 && args.kv.head_dim == shape.row());
  const int64_t tokens = args.q.shape[0];
  for (int64_t t = 0; t < tokens; ++t) keep_row(args, t);
  for_heads(pool_, shape.num_heads, [&](int64_t head) {
    const std::vector<float> keys = head_rows(shape, *args.up, head, false, read_row_);
    std::vector<double> sums(static_cast<size_t>(shape.rank));
    for (int64_t t = 0; t < tokens; ++t) absorb(args, t, head, keys.data(), sums);
  });
}

void Latents::latent_values(const ops::LatentValuesArgs& args) {
  const ops::LatentShape& shape = args.shape;
  for_heads(pool_, shape.num_heads, [&](int64_t head) {
    const std::vector<float> values = head_rows(shape, *args.up, head, true, read_row_);
    for (int64_t t = 0; t < args.read.shape[0]; ++t) {
      const int64_t at = t * shape.num_heads + head;
      const float* const read = args.read.as<float>() + at * shape.row();
      float* const out = args.out.as<float>() + at * shape.value_dim;
      for (int64_t i = 0; i < shape.value_dim; ++i) {
        const float* const row = values.data() + i * shape.rank;
        out[i] = static_cast<float>(sum_of_products(row, read, shape.rank));
      }
    }
  });
}

}  // namespace rudder::cpu
