// qkv_prep and attention over a KV cache in panels (layout: HeadCache in kernels.h), for head sizes
// and block sizes that fill whole panels; plain_attention.h has the others. A cache of codes has
// rows (kv_rows.h): each thread makes panels of numbers of them, of one head of a sequence at a
// time. Called by the fast backend.
#pragma once

#include <cstdint>

#include "rudder/base/thread_pool.h"
#include "rudder/cpu/kernels.h"
#include "rudder/ops/args.h"

namespace rudder::cpu {

bool fits_panels(const ops::KvLayer& kv);

// The k of one cached token and KV head: [head_dim].
void panel_key(const ops::KvLayer& kv, int64_t slot, int64_t kv_head, float* out);

// Copies the k and v of one cached token to another KV slot.
void panel_move(const ops::KvLayer& kv, int64_t from, int64_t to);

// Tokens [begin, end) of args.
void panel_qkv_prep(const Kernels& kernels, const ops::QkvPrepArgs& args, int64_t begin,
                    int64_t end);

// `numbers`: F32 or BF16, what kernels multiply; that of the cache, unless it has codes.
void panel_attention(const Kernels& kernels, ThreadPool& pool, tensor::DType numbers,
                     const ops::AttentionArgs& args, const ops::AttentionBatch& batch);

}  // namespace rudder::cpu
