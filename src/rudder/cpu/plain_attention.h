// qkv_prep and attention written as their formulas, over a KV cache whose rows follow one another
// (kv_rows.h). The reference backend always uses them; the fast one only for head sizes and block
// sizes that do not fill its panels, and for rows of one part. Activations are f32.
#pragma once

#include <cstdint>
#include <span>

#include "rudder/base/thread_pool.h"
#include "rudder/ops/args.h"

namespace rudder::cpu {

// Tokens [begin, end) of args: norm, rotate, write k and v, and write q_out.
void plain_qkv_prep(const ops::QkvPrepArgs& args, int64_t begin, int64_t end);

// Every row of every sequence of `batch`. The threads of `pool` help; null: the caller's does all.
void plain_attention(const ops::AttentionArgs& args, const ops::AttentionBatch& batch,
                     ThreadPool* pool);

// The k of one cached token and KV head: [head_dim], times the head's scale.
void plain_key(const ops::KvLayer& kv, int64_t slot, int64_t kv_head, float* out);

// Copies the k and v of one cached token to another KV slot.
void plain_move(const ops::KvLayer& kv, int64_t from, int64_t to);

// Turns the scores of the positions that a row sees into weights, without the softmax's division by
// their total, which is returned; a sink of -inf is none.
double exponentials(std::span<float> scores, float sink);
// Likewise, into the weights of a gate.
void apply_gate(std::span<float> scores, const ops::FirGate& gate, int head);

// The formulas of one row, shared with the other ops of the reference.
// The norm of x [width]; out may be x.
void plain_norm(const float* x, const ops::NormSpec& norm, int64_t width, float* out);
// Rotates pairs (x[i], x[i + half]) by table row [2, half]: cos then sin.
void rotate_row(float* x, const float* table, int64_t half);
// cap * tanh(x / cap); 0 = off.
float soft_cap(float x, float cap);

}  // namespace rudder::cpu
