#include "rudder/cuda/pattern_params.h"

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"

namespace rudder::cuda {

PatternParams pattern_params(const ops::PatternArgs& args, const ops::AttentionBatch& batch,
                             int32_t num_sms) {
  const ops::AttentionArgs& attention = args.attention;
  const ops::TapTable& table = *args.table;
  RUDDER_CHECK(!table.patterns.empty() && table.ring.dtype == tensor::DType::kBF16 &&
                   table.pattern_sums.shape[0] == table.ring.shape[0] / ops::kPatternSumElements,
               "a tap table without patterns");
  PatternParams params;
  params.q = attention.q.data;
  params.kv = attention.kv.storage.data;
  params.kv_is_fp8 = attention.kv.storage.dtype == tensor::DType::kF8E4M3;
  params.k_scale = pointer<float>(attention.kv.k_scale);
  params.q_begin = pointer<int32_t>(batch.q_begin);
  params.kv_len = pointer<int32_t>(batch.kv_len);
  params.table_row = pointer<int32_t>(batch.table_row);
  params.block_table = pointer<int32_t>(batch.table_of(attention.kv.group));
  params.max_blocks = batch.block_table.shape[1];
  params.num_seqs = static_cast<int32_t>(batch.kv_len.shape[0]);
  params.num_tokens = static_cast<int32_t>(attention.q.shape[0]);
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
  params.capture_set = pointer<int32_t>(args.batch->capture_set);
  params.capture_begin = pointer<int32_t>(args.batch->capture_begin);
  params.entries = pointer<ops::PatternEntry>(table.patterns);
  params.num_layers = static_cast<int32_t>(table.patterns.shape[1]);
  params.layer = args.layer;
  params.ring = table.ring.data;
  params.sums = pointer<float2>(table.pattern_sums);
  params.num_sms = num_sms;
  return params;
}

}  // namespace rudder::cuda
