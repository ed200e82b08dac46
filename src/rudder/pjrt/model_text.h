// The forward pass of a ModelSpec as StableHLO text: a module that runs a whole pass, the modules
// of its parts, and the head. A *pass* is what one run of a module computes: `rows` tokens, each
// the only one of its sequence, or all of one sequence (a chunk of a prompt), whose KV lies in
// `pages` blocks. Rows of padding write no KV, and what comes of them nobody reads.
//
// Weights are arguments, in the order of weight_list(); so modules depend on shapes alone, and
// layers of one shape share a module. Sums and the residual are f32; what a product reads, weights
// and KV have the type of `numbers`. Formulas: ops/args.h, as the decoder of macro-ops uses them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/pjrt/hlo_text.h"

namespace rudder::pjrt {

// kUnsupported, with config.json's key: what modules do not compute.
Result<void> check_spec(const model::ModelSpec& spec);

enum class WeightName : uint8_t {
  kMixerPreNorm,
  kMixerPostNorm,
  kMlpPreNorm,
  kMlpPostNorm,
  kQNorm,
  kKNorm,
  kVNorm,
  kSinks,
  kQkv,
  kQkvBias,
  kOut,
  kOutBias,
  kGateUp,
  kGateUpBias,
  kDown,
  kDownBias,
  kScale,  // [] f32: of the layer's output
  kTable,  // [vocab, hidden]: embeddings
  kFinalNorm,
  kHead,
  kRope,  // [max_seq_len, 2, rotary_dim / 2] f32; of ModelSpec.ropes[index]
};

struct WeightRef {
  WeightName name = WeightName::kTable;
  int32_t index = 0;  // of the layer, or of the rope
  Type type;
};

// What of a model a module computes.
enum class Part : uint8_t {
  kPass,       // ids to rows behind the final norm, and the KV
  kEmbed,      // ids to the residual
  kLayer,      // the residual to the residual, and the layer's KV
  kReadMixer,  // the residual to attn_in
  kMix,        // attn_in to attn_z, and the layer's KV
  kMixed,      // attn_z to attn_out
  kReadMlp,    // the residual to mlp_in
  kMlpAct,     // mlp_in to mlp_act
  kMlpOut,     // mlp_act to mlp_out
  kEnd,        // the residual to rows behind the final norm
  kHead,       // rows behind the final norm, and which of them, to logits
};

struct PassShape {
  int64_t rows = 1;
  int64_t pages = 1;  // of the sequence, or of each
  bool is_chunk = false;
  int64_t logits_rows = 0;  // of kHead

  bool operator==(const PassShape&) const = default;
};

// What modules depend on besides.
struct ModelShape {
  model::ModelSpec spec;
  Elt numbers = Elt::kF32;
  // KV is stored as codes with a scale a token and head (ops::kInt8TokenKv), not as `numbers`.
  bool has_codes = false;
  float embed_scale = 1;  // as the table's type rounds it
  int64_t max_seq_len = 0;
  int64_t num_blocks = 0;  // of one layer's KV
  int64_t block_size = 16;
  // Of each layer, which of the KV tensors its keys and values are in. Layers of different KV
  // groups share one: their blocks are different ones.
  std::vector<int32_t> kv_index;
  std::vector<int32_t> kv_group;  // of each layer
  int32_t num_kv = 0;
  int32_t num_groups = 1;

  // Of a KV tensor's keys, and of its values: [num_blocks, block_size, kv heads, head_dim], and of
  // codes their scales [num_blocks, block_size, kv heads] f32.
  std::vector<Type> kv_types(int32_t index) const;
};

// Of a layer's part, or of a part that is none's; in the order of the module's arguments.
std::vector<WeightRef> weight_list(const ModelShape& shape, Part part, int32_t layer = 0);

// Whether the part reads the KV, and so takes positions, slots, pages and ropes.
bool reads_kv(Part part);

// The module. Its arguments, in order: the part's input (ids [rows] i32, or rows f32); where it
// reads KV positions [rows] i32, and of each KV group (of a layer's part, of its own) slots [rows,
// 2] i32 (block and offset; -1: none) and pages [rows, pages] or [pages] i32; of kHead which rows
// [logits_rows] i32; the weights; the keys and the values of each KV tensor that it uses, donated.
// Results: that KV, then the part's output.
std::string module_text(const ModelShape& shape, Part part, const PassShape& pass,
                        int32_t layer = 0);

}  // namespace rudder::pjrt
