#include "rudder/cuda/pattern_params.h"

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"

namespace rudder::cuda {

namespace {

PatternBatch batch_of(const ops::TapTable& table, const ops::TapBatch& taps,
                      const ops::AttentionBatch& batch, int32_t num_sms) {
  RUDDER_CHECK(!table.patterns.empty() && table.ring.dtype == tensor::DType::kBF16 &&
                   table.pattern_sums.shape[0] == table.ring.shape[0] / ops::kPatternSumElements,
               "a tap table without patterns");
  PatternBatch out;
  out.q_begin = pointer<int32_t>(batch.q_begin);
  out.kv_len = pointer<int32_t>(batch.kv_len);
  out.capture_set = pointer<int32_t>(taps.capture_set);
  out.entries = pointer<ops::PatternEntry>(table.patterns);
  out.capture_begin = pointer<int32_t>(taps.capture_begin);
  out.num_seqs = static_cast<int32_t>(batch.kv_len.shape[0]);
  out.num_tokens = static_cast<int32_t>(taps.capture_set.shape[0]);
  out.num_layers = static_cast<int32_t>(table.patterns.shape[1]);
  out.ring = table.ring.data;
  out.sums = pointer<float2>(table.pattern_sums);
  out.num_sms = num_sms;
  return out;
}

}  // namespace

PatternBatch pattern_batch(const ops::EndPatternsArgs& args, const ops::AttentionBatch& batch,
                           int32_t num_sms) {
  return batch_of(*args.table, *args.batch, batch, num_sms);
}

PatternParams pattern_params(const ops::PatternArgs& args, const ops::AttentionBatch& batch,
                             int32_t num_sms) {
  const ops::AttentionArgs& attention = args.attention;
  PatternParams params;
  params.batch = batch_of(*args.table, *args.batch, batch, num_sms);
  params.layer = args.layer;
  params.q = attention.q.data;
  params.kv = attention.kv.storage.data;
  params.kv_type = kv_type_of(attention.kv);
  params.parts = attention.kv.parts;
  params.scales.k = pointer<float>(attention.kv.k_scale);
  params.scales.tokens = pointer<float>(attention.kv.token_scales);
  if (params.scales.tokens != nullptr) {
    params.scales.token_pitch = attention.kv.token_scales.shape[1];
  }
  params.table_row = pointer<int32_t>(batch.table_row);
  params.block_table = pointer<int32_t>(batch.table_of(attention.kv.group));
  params.max_blocks = batch.block_table.shape[1];
  params.num_heads = attention.num_heads;
  params.num_kv_heads = attention.kv.num_kv_heads;
  params.head_dim = attention.kv.head_dim;
  params.block_size = attention.kv.block_size;
  params.window = attention.window;
  params.scale = attention.scale;
  params.softcap = attention.softcap;
  params.sinks = pointer<float>(attention.sinks);
  params.gate.sigma = pointer<float>(attention.gate.sigma);
  params.gate.length = attention.gate.length;
  params.gate.relu_pre = attention.gate.relu_pre;
  params.gate.low = attention.gate.low;
  params.gate.high = attention.gate.high;
  return params;
}

}  // namespace rudder::cuda
