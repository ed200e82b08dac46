// Parameter structs of the macro-ops: plain data, with shapes in the comments. T = tokens of the
// step, R = rows of logits, S = slots; an optional part is absent when its view is empty. "act" is
// the backend's activation dtype (Ops::act_dtype). Every View is device memory unless the comment
// says host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "rudder/ops/activation.h"
#include "rudder/ops/adapter_args.h"
#include "rudder/ops/fir_length.h"
#include "rudder/ops/kv_format.h"
#include "rudder/ops/tap_args.h"
#include "rudder/ops/weight_format.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

using tensor::View;

// RMS norm: y = x / sqrt(mean(x^2) + eps) * weight. Weight transforms (1 + w) happen at load.
// UClipNorm, where there is an `alpha`: y = clip(alpha * x, -1, 1) * weight. It has no sum over the
// row and no eps. NaN stays NaN.
struct NormSpec {
  View weight;  // [width] f32
  float eps = 1e-5f;
  View alpha = {};  // [width] f32

  bool empty() const { return weight.empty(); }
};

// Ops right in front of a product name its weight, where it is known: a backend may then fetch the
// weight meanwhile. Nothing depends on it but time.
struct LinearWeight;

// x = (x + delta_scale * delta_norm(delta)) * sum_scale; out = norm(x). Each part is optional:
// without `delta` nothing is added, without `delta_norm` delta is added unchanged, without `norm`
// out = x, without `out` only x changes. With `out_act` the row is written in both forms, each with
// the bits that it has alone. Taps work in fp32: delta_taps on the branch after its norm
// and scale, x_taps on the scaled sum before it is rounded and stored, out_taps on the normed row
// before it is rounded.
struct ResidualNormArgs {
  View x;                    // [T, hidden] act, in place: the residual stream
  View delta = {};           // [T, hidden] act; may be overwritten, may be `out`
  NormSpec delta_norm = {};  // post-norm of the branch (as in Gemma 2)
  NormSpec norm = {};        // pre-norm of the next branch
  View out = {};             // [T, hidden] act (may be `x`), or F8E4M3 with out_scale
  View out_scale = {};       // [T] f32, only with F8E4M3
  View out_act = {};         // [T, hidden] act: the normed row beside an `out` of F8E4M3; optional
  Taps delta_taps = {};      // attn_out, mlp_out
  Taps x_taps[2] = {};       // resid_pre, resid_mid; or resid_post and the next layer's resid_pre
  Taps out_taps = {};        // attn_in, mlp_in, final_norm
  float delta_scale = 1.0f;
  float sum_scale = 1.0f;
  // `delta` is this rank's part of a sum. The op first adds the parts of all ranks (comm.h), each
  // element in fp32 in the order of ranks: so every rank has the same bits, for any number of rows.
  bool sums_ranks = false;
  const LinearWeight* next = nullptr;  // multiplies `out`
};

// A weight in the backend's own layout, made once by Ops::make_linear.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
};
struct LinearWeight {
  std::shared_ptr<const PackedWeight> packed;
  int64_t in = 0;
  int64_t out = 0;
  int64_t bytes = 0;  // of device memory that one product reads
  WeightFormat format = {};
  InputForm input = InputForm::kAct;  // that the product takes
  bool rounds_x = false;  // the product rounds each row itself, to I8 in groups (kI8InputGroup)
  // What adapters add to the product; null: no adapter changes it. linear() does not read it.
  std::shared_ptr<const AdapterWeights> adapters = {};
};

// What a product's result is for, as far as the format of its weight depends on that: it goes on to
// other products; it is logits; it is what a mixture of experts chooses by; or it is that of the
// experts (ExpertOps), which have kernels of their own; there is none, but heads read their rows of
// the weight (LatentOps).
enum class ProductUse : uint8_t { kHidden, kHead, kRouter, kExperts, kHeads };

// One part of a weight on the host; parts are stacked along `out` (q, k, v; gate, up). The shapes
// of its tensors are those of stored_parts(format, out_i, in).
struct LinearPart {
  WeightFormat format;
  View codes;
  View scales = {};
  View offsets = {};
  View bias = {};  // [out_i] f32 | f16 | bf16; optional, for all parts or for none
  ProductUse use = ProductUse::kHidden;

  int64_t out() const { return codes.shape[0]; }
  int64_t in() const { return codes.shape[1] * codes_per_element(format.codes); }
};
// [out, in] of f32, f16 or bf16. Another dtype is a broken invariant: readers of files refuse it.
LinearPart wide_part(const View& weight, const View& bias = {});

// Copies rows of the embedding table. A tied table is the packed weight of the output head, so a
// large vocabulary is in memory once.
struct EmbedArgs {
  View table;                          // [vocab, hidden] f32 | bf16; empty when `tied` is set
  const LinearWeight* tied = nullptr;  // out = vocab, in = hidden
  View ids;                            // [T] i32
  float scale = 1.0f;                  // Gemma multiplies by sqrt(hidden)
  View out;                            // [T, hidden] act
};

struct LinearArgs {
  View x;        // [T, in] in the form weight->input
  View x_scale;  // [T] f32, when x is F8E4M3
  const LinearWeight* weight = nullptr;
  View out;  // [T, out] act
};

// KV cache of one layer, in blocks of that layer; the backend chooses the layout inside. A cache of
// codes stores value / scale, rounded to nearest even and, of F8E4M3, clipped at 448; attention
// reads the stored value times its scale. That is the head's (of F8E4M3 alone), or that of the
// head's row of the token: the row's largest magnitude / largest_code(), by whose inverse values
// are multiplied. A row with a number that is not finite is read as NaN; one whose scale has no
// normal f32 is read as zeros.
struct KvLayer {
  View storage =
      {};  // [num_blocks, parts, num_kv_heads, block_size * head_dim] f32 | bf16 | F8E4M3 | I8
  int32_t block_size = 16;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t parts = 2;  // keys and values; 1: a row is both
  int32_t group = 0;  // whose block table names its blocks
  View k_scale = {};  // [num_kv_heads] f32, > 0; only with F8E4M3, empty: 1
  View v_scale = {};
  // [num_blocks, width] f32: of each block first [parts, num_kv_heads, block_size], then what
  // belongs to other layers. Empty: tokens have no scales.
  View token_scales = {};

  KvFormat format() const { return {storage.dtype, !token_scales.empty()}; }
};

// Splits qkv, normalises q, k and v, rotates q and k, writes k and v to the cache. With no KV heads
// (kv.num_kv_heads 0) qkv is q alone: of layers that read another's keys and values.
struct QkvPrepArgs {
  View qkv;  // [T, (num_heads + 2 * num_kv_heads) * head_dim] act: q, k, v; may be overwritten
  int32_t num_heads = 0;
  NormSpec q_norm;  // optional; weight [head_dim]: per head; [num_heads * head_dim]: over all heads
  NormSpec k_norm;  // likewise with num_kv_heads
  // [rope_rows, 2, rot / 2] f32: cos then sin, scaling included; rotate-half pairs; empty: no
  // rotation
  View rope;
  View rope_row;  // [T] i32 row of `rope` (the position, or another table's row)
  View kv_slot;   // [T] i32 block * block_size + offset; -1 = do not write
  KvLayer kv;
  View q_out;            // [T, num_heads * head_dim] act
  NormSpec v_norm = {};  // optional; weight [head_dim]: per head
  // Heads are normed behind their rotation, not in front of it. No norm is over all heads then.
  bool norms_rotated = false;
  View q_scale = {};  // [rope_rows] f32: the row's queries are multiplied by it last; empty: by 1
  // q_norm and k_norm are over the heads of all ranks (comm.h): the sums of an RMS norm are taken
  // over the ranks, in their order. Weights are those of this rank's heads.
  bool norms_span_ranks = false;
};

// The sequences of a step, for attention; the views live until the step's last attention().
struct AttentionBatch {
  View q_begin;      // [num_seqs + 1] i32 prefix sums of q_len
  View kv_len;       // [num_seqs] i32 tokens in KV after this step's writes; 0 = a row of padding
  View table_row;    // [num_seqs] i32 the sequence's row of each group's block table
  View block_table;  // [groups * group_rows, max_blocks] i32 block ids; SlotState.block_table
  // Bounds that the host knows; a captured step keeps those of its capture.
  int32_t max_q_len = 0;  // of sequences that are no trees
  int32_t max_kv_len = 0;
  int32_t group_rows = 0;  // of block_table: group g has rows from g * group_rows on
  // [T] i64; optional: of a token of a tree of drafts, which tokens of its sequence's part of the
  // step it sees, itself among them: bit i is the i-th. It sees all KV before that part as well. 0,
  // and every token without the view: all up to itself. A layer that runs trees has neither a
  // window nor a gate.
  View ancestors = {};

  // A group's own block table, up to the last row of the last group.
  View table_of(int32_t group) const {
    const int64_t begin = int64_t{group} * group_rows;
    return block_table.rows(begin, block_table.num_rows() - begin);
  }
  // On the host.
  uint64_t ancestors_of(int64_t token) const {
    return ancestors.empty() ? 0 : ancestors.as<uint64_t>()[token];
  }
};

// Attention weights without a softmax. With s_j the scaled score of the key at position j, and
// r_j = relu_pre ? max(s_j, 0) : s_j, 0 where the query sees no key:
//   p_j = clip(s_j - sigma * (r_j + r_(j-1) + ... + r_(j-length+1)) / length, low, high)
//   out = gamma * sum over j of p_j * v_j
// The average is a causal FIR filter along the keys of one query. Weights are not normalised.
struct FirGate {
  View sigma;          // [num_heads] f32
  View gamma;          // [num_heads] f32
  int32_t length = 0;  // 1 to kMaxFirLength; 0: there is no gate, the weights are a softmax
  bool relu_pre = false;
  float low = 0;
  float high = 1;

  bool empty() const { return length == 0; }
};

struct AttentionArgs {
  View q;  // [T, num_heads * head_dim] act
  KvLayer kv;
  int32_t num_heads = 0;
  float scale = 1.0f;    // of q . k
  int32_t window = 0;    // 0 = all; else position p sees (p - window, p]
  float softcap = 0.0f;  // 0 = off; else s = softcap * tanh(s / softcap)
  View out;              // [T, num_heads * head_dim] act
  // [num_heads] f32; optional: a score that every softmax of the head counts in its denominator,
  // p_j = exp(s_j) / (exp(sink) + sum exp(s_i)). Source: transformers, modeling_gpt_oss.py.
  View sinks = {};
  FirGate gate = {};  // optional; then there are neither soft-cap nor sinks
  // Over rows of one part: the first elements of a row that are values. What `out` has of a head
  // behind as many may be anything. 0: all are.
  int32_t value_dim = 0;
};

// Rows that lie where the tokens of a KV group do in its blocks: as PlaceRowsArgs with a block
// size.
struct TokenRows {
  View rows;  // [num_blocks * block_size, width] of any dtype; empty: there are none
  int32_t group = 0;
  int32_t block_size = 16;
  int32_t group_layers = 1;
};

// Behind the sample() of a step with trees: of each of them the KV of the tokens whose logits were
// sampled, which are a path from its first token on, goes to where a chain of them has it, in their
// order. Nothing else changes.
struct KeepPathsArgs {
  AttentionBatch batch;             // the step's; a sequence is a tree where `ancestors` says so
  View logits_rows;                 // [R] i32 the token of each row of logits, ascending
  View sampled;                     // [R, 4] i32: SampledToken
  std::span<const KvLayer> layers;  // all of the device; they outlive the step
  TokenRows beside = {};            // move as the KV does
};

// Writes attention patterns to the records of captured tokens (ADR 0050): for each token whose
// capture set names patterns of the layer, and for each of its heads in ascending order (of a rank,
// those that it has: PatternEntry), `keys` weights in act: at j the weight with which attention()
// reads the key at position j, without a gate's gamma; 0 at keys that the token does not see. A
// token at position `keys` or behind has zeros alone.
struct PatternArgs {
  AttentionArgs attention;          // its `out` is not written
  const TapTable* table = nullptr;  // with `patterns`
  const TapBatch* batch = nullptr;  // of the T tokens
  int32_t layer = 0;                // of the model
};

// What end_patterns() makes whole: the rows of layers [first_layer, end_layer), of all ranks of a
// group for each of them.
struct EndPatternsArgs {
  const TapTable* table = nullptr;  // with `patterns`
  const TapBatch* batch = nullptr;  // of the T tokens of patterns()
  int32_t first_layer = 0;          // of the model
  int32_t end_layer = 0;
};

// out = act(gate) * up, gate and up side by side.
struct GatedActArgs {
  View x;  // [T, 2 * width] act
  Activation activation = Activation::kSilu;
  View out;                            // [T, width] act, or F8E4M3 with out_scale
  View out_scale;                      // [T] f32, only with F8E4M3
  Taps taps = {};                      // mlp_act, before it is rounded
  const LinearWeight* next = nullptr;  // multiplies `out`
};

// x = x + SiLU(y), in fp32, rounded once.
struct ResidualActArgs {
  View x;  // [T, width] act, in place
  View y;  // [T, width] act
};

struct GatherRowsArgs {
  View x;     // [T, width] of any dtype, an even number of bytes a row
  View rows;  // [R] i32 row numbers; below 0: a row of zeros
  View out;   // [R, width] likewise
};

// Copies rows to rows of a wider tensor: out[row(t), column .. column + width) = x[t].
struct PlaceRowsArgs {
  View x;  // [T, width] of any dtype
  // [T] i32: row(t) = rows[t]; below 0: row t is not placed. Empty: row(t) = t.
  View rows = {};
  View out;  // [N, out_width] likewise; no two rows go to the same place
  int64_t column = 0;
  // Above 0: `rows` are KV slots in blocks of so many tokens (QkvPrepArgs.kv_slot) of a KV group of
  // `group_layers` layers, and row(t) = rows[t] / block_size / group_layers * block_size + rows[t]
  // % block_size: places of tokens in the group's blocks.
  int32_t block_size = 0;
  int32_t group_layers = 1;
};

// Logits of some tokens as logits of all: out[r, ids[j]] = x[r, j], every other one the lowest
// float.
struct SpreadLogitsArgs {
  View x;    // [R, count] f32
  View ids;  // [count] i32, distinct tokens
  View out;  // [R, vocab] f32
};

// Quantises row by row: scale = max |x| / 448, out = x / scale, rounded to nearest even; NaN stays
// NaN; a row of zeros gives zeros. Ops that write F8E4M3 themselves use the same formula.
struct QuantiseArgs {
  View x;                              // [T, width] act
  View out;                            // [T, width] F8E4M3
  View out_scale;                      // [T] f32
  const LinearWeight* next = nullptr;  // multiplies `out`
};

struct LogitsArgs {
  View x;        // [R, hidden] in the form head->input, normed
  View x_scale;  // [R] f32, when x is F8E4M3
  const LinearWeight* head = nullptr;
  float softcap = 0.0f;  // final soft-cap (Gemma 2); 0 = off
  View out;              // [R, vocab] f32
  float scale = 1.0f;    // of the logits, before the soft-cap
};

// Puts the ranks' logits side by side, so that each rank has all of them.
struct GatherLogitsArgs {
  View part;  // [R, vocab_share(vocab).count] f32: this rank's columns
  View out;   // [R, vocab] f32
  // Of a reader (ReaderOps::make_reader), instead of `part`: the columns of every rank, in their
  // order.
  std::span<const View> parts = {};
};

// One layer's attention, for Ops::prepare.
struct AttentionShape {
  int32_t num_heads = 0;
  int32_t window = 0;  // 0 = all
  KvLayer kv;
  bool has_gate = false;
  int32_t value_dim = 0;  // AttentionArgs
};

// Bounds of every step of a loaded model.
struct StepBounds {
  int32_t max_tokens = 0;                      // T
  int32_t max_rows = 0;                        // R
  int32_t max_seqs = 0;                        // of one step
  int64_t hidden = 0;                          // width of the residual stream
  int64_t residual_width = 0;                  // of all of its streams
  int64_t max_linear_in = 0;                   // the widest row that a product takes
  const LinearWeight* head = nullptr;          // null: none, or one that was named before
  std::span<const LinearWeight> linears = {};  // all others but those of experts
  // Of ExpertOps::make_experts, and how many experts a token chooses at most.
  std::span<const LinearWeight> experts = {};
  int32_t max_chosen = 0;
  int32_t max_state_heads = 0;                     // value heads of a layer's RecurArgs
  std::span<const AttentionShape> attention = {};  // one a layer
  // Some step is cut inside an op, behind a point where it encodes (EncodeArgs) or where ranks put
  // rows together (TapSharesArgs), and stores there what other steps keep in registers.
  bool cuts_ops = false;
};

}  // namespace rudder::ops
