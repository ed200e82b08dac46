#include "rudder/cuda/path_params.h"

#include "rudder/cuda/elements.h"

namespace rudder::cuda {
namespace {

KeptLayer kept_layer(const ops::KvLayer& kv) {
  KeptLayer layer;
  layer.storage = kv.storage.data;
  layer.group = kv.group;
  layer.heads = kv.parts * kv.num_kv_heads;
  layer.block_size = kv.block_size;
  layer.row_bytes = kv.head_dim * static_cast<int32_t>(tensor::dtype_bytes(kv.storage.dtype));
  return layer;
}

// Its tokens' scales: rows of 4 bytes.
KeptLayer kept_scales(const ops::KvLayer& kv) {
  KeptLayer layer = kept_layer(kv);
  layer.storage = kv.token_scales.data;
  layer.row_bytes = sizeof(float);
  layer.block_bytes = static_cast<int32_t>(kv.token_scales.shape[1]) * layer.row_bytes;
  return layer;
}

KeptLayer kept_rows(const ops::TokenRows& beside) {
  KeptLayer layer;
  layer.storage = beside.rows.data;
  layer.group = beside.group;
  layer.group_layers = beside.group_layers;
  layer.heads = 1;
  layer.block_size = beside.block_size;
  layer.row_bytes =
      static_cast<int32_t>(beside.rows.shape[1] * tensor::dtype_bytes(beside.rows.dtype));
  return layer;
}

}  // namespace

std::vector<KeepPathsParams> keep_paths_params(const ops::KeepPathsArgs& args) {
  KeepPathsParams params;
  params.q_begin = pointer<int32_t>(args.batch.q_begin);
  params.kv_len = pointer<int32_t>(args.batch.kv_len);
  params.table_row = pointer<int32_t>(args.batch.table_row);
  params.block_table = pointer<int32_t>(args.batch.block_table);
  params.ancestors = pointer<uint64_t>(args.batch.ancestors);
  params.logits_rows = pointer<int32_t>(args.logits_rows);
  params.sampled = pointer<int32_t>(args.sampled);
  params.max_blocks = args.batch.block_table.shape[1];
  params.num_rows = args.logits_rows.shape[0];
  params.group_rows = args.batch.group_rows;
  params.num_seqs = static_cast<int32_t>(args.batch.kv_len.shape[0]);
  std::vector<KeepPathsParams> launches;
  const auto add = [&](const KeptLayer& layer) {
    if (launches.empty() || launches.back().num_layers == kMaxKeptLayers) {
      launches.push_back(params);
    }
    KeepPathsParams& last = launches.back();
    last.layers[last.num_layers++] = layer;
  };
  for (const ops::KvLayer& kv : args.layers) {
    add(kept_layer(kv));
    if (!kv.token_scales.empty()) add(kept_scales(kv));
  }
  if (!args.beside.rows.empty()) add(kept_rows(args.beside));
  return launches;
}

}  // namespace rudder::cuda
