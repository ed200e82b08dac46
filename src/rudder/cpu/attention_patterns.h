// Attention patterns of captured tokens (ops::PatternArgs): one loop in fp64 over the cached keys
// of each row that is asked for, the same for every instruction set. Called by the CPU backends.
#pragma once

#include <cstdint>

#include "rudder/base/thread_pool.h"
#include "rudder/ops/args.h"

namespace rudder::cpu {

// The k of one cached token and KV head: [head_dim], times the head's scale.
using KeyReader = void (*)(const ops::KvLayer& kv, int64_t slot, int64_t kv_head, float* out);

// `pool` may be null: one thread. A row depends on its own q and keys alone.
void write_patterns(const ops::PatternArgs& args, const ops::AttentionBatch& batch,
                    KeyReader read_key, ThreadPool* pool);

}  // namespace rudder::cpu
