#include "rudder/cpu/attention_patterns.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "rudder/cpu/plain_attention.h"

namespace rudder::cpu {
namespace {

// One head of one captured token.
struct PatternRow {
  const float* q = nullptr;         // [head_dim]
  const int32_t* blocks = nullptr;  // the sequence's block table
  int32_t head = 0;
  int64_t first = 0;  // key positions [first, last] that it sees
  int64_t last = 0;
  std::span<float> out;  // [keys]
};

double dot_key(std::span<const float> a, const float* b) {
  constexpr size_t kSums = 8;  // that the compiler can keep side by side
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= a.size(); i += kSums) {
    for (size_t k = 0; k < kSums; ++k) sums[k] += double{a[i + k]} * double{b[i + k]};
  }
  for (; i < a.size(); ++i) sums[0] += double{a[i]} * double{b[i]};
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

void write_pattern_row(const ops::AttentionArgs& args, KeyReader read_key, const PatternRow& row) {
  std::ranges::fill(row.out, 0.0f);
  if (row.last >= std::ssize(row.out)) return;
  const auto head_dim = static_cast<size_t>(args.kv.head_dim);
  const int64_t block_size = args.kv.block_size;
  const int32_t kv_head = row.head / (args.num_heads / args.kv.num_kv_heads);
  std::vector<float> key(head_dim);
  const std::span<float> weights = row.out.subspan(static_cast<size_t>(row.first),
                                                   static_cast<size_t>(row.last - row.first + 1));
  for (int64_t p = row.first; p <= row.last; ++p) {
    const int64_t slot = row.blocks[p / block_size] * block_size + p % block_size;
    read_key(args.kv, slot, kv_head, key.data());
    weights[static_cast<size_t>(p - row.first)] =
        soft_cap(static_cast<float>(dot_key(key, row.q)) * args.scale, args.softcap);
  }
  if (!args.gate.empty()) {
    apply_gate(weights, args.gate, row.head);
    return;
  }
  const float sink = args.sinks.empty() ? -INFINITY : args.sinks.as<float>()[row.head];
  const double total = exponentials(weights, sink);
  for (float& weight : weights) weight = static_cast<float>(weight / total);
}

// The entry of the token's capture set; null: none.
const ops::PatternEntry* pattern_entry_of(const ops::PatternArgs& args, int64_t token) {
  const int32_t set = args.batch->capture_set.as<int32_t>()[token];
  if (set < 0) return nullptr;
  const ops::View& table = args.table->patterns;
  const auto* const entry = static_cast<const ops::PatternEntry*>(table.data) +
                            int64_t{set} * table.shape[1] + args.layer;
  return entry->offset < 0 ? nullptr : entry;
}

// Of one token of a sequence.
void append_pattern_rows(const ops::PatternArgs& args, int64_t token, PatternRow row,
                         std::vector<PatternRow>& rows) {
  const ops::PatternEntry* const entry = pattern_entry_of(args, token);
  if (entry == nullptr) return;
  const int64_t record = args.batch->capture_begin.as<int32_t>()[token];
  float* out = args.table->ring.as<float>() + (record + entry->offset) * tap::kCaptureAlign +
               int64_t{entry->first_row} * entry->keys;
  const int64_t head_dim = args.attention.kv.head_dim;
  const float* const q = args.attention.q.as<float>() + token * args.attention.num_heads * head_dim;
  for (int32_t head = 0; head < args.attention.num_heads; ++head) {
    if (head >= tap::kMaxPatternHeads || !entry->has(head)) continue;
    row.head = head;
    row.q = q + head * head_dim;
    row.out = {out, static_cast<size_t>(entry->keys)};
    rows.push_back(row);
    out += entry->keys;
  }
}

}  // namespace

void write_patterns(const ops::PatternArgs& args, const ops::AttentionBatch& batch,
                    KeyReader read_key, ThreadPool* pool) {
  const int32_t* const q_begin = batch.q_begin.as<int32_t>();
  const ops::View table = batch.table_of(args.attention.kv.group);
  std::vector<PatternRow> rows;
  for (int64_t s = 0; s < batch.kv_len.num_rows(); ++s) {
    const int64_t kv_len = batch.kv_len.as<int32_t>()[s];
    if (kv_len == 0) continue;
    PatternRow row;
    row.blocks = table.rows(batch.table_row.as<int32_t>()[s], 1).as<int32_t>();
    for (int64_t t = q_begin[s]; t < q_begin[s + 1]; ++t) {
      row.last = kv_len - (q_begin[s + 1] - t);
      const int32_t window = args.attention.window;
      row.first = window > 0 ? std::max<int64_t>(0, row.last - window + 1) : 0;
      append_pattern_rows(args, t, row, rows);
    }
  }
  const auto run = [&](int64_t i) {
    write_pattern_row(args.attention, read_key, rows[static_cast<size_t>(i)]);
  };
  if (pool != nullptr && rows.size() > 1) {
    pool->parallel_for(std::ssize(rows), run);
  } else {
    for (int64_t i = 0; i < std::ssize(rows); ++i) run(i);
  }
}

}  // namespace rudder::cpu
